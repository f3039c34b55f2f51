"""Parts of the shop as processes of their own, for programs that measure it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

SCRIBA = (sys.executable, "-m", "scriba")
ROOT = Path(__file__).resolve().parent.parent
CLASSES = ROOT / ".cache" / "spark" / "classes.jsa"


def quick_java() -> tuple[str, str]:
    """A session of Spark that starts soon."""
    shared = f" -XX:SharedArchiveFile={CLASSES}" if CLASSES.exists() else ""
    return "--spark", f"spark.driver.extraJavaOptions=-XX:+UseSerialGC{shared}"


def ends_with_its_parts() -> None:
    """Also when it is asked to end: parts have sessions of their own and would stay behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


class Part:
    """`scriba ...`, whose lines are kept; `ready` is what it says when it is."""

    def __init__(self, *words: str, ready: str = "", shown: bool = False) -> None:
        self.lines: list[str] = []
        self._killed = False
        self.process = subprocess.Popen(
            (*SCRIBA, *words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if shown else subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._shown = shown
        self.found = self._until(ready) if ready else ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _until(self, pattern: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if found := re.search(pattern, line):
                return found[1] if found.lastindex else found[0]
        raise SystemExit("\n".join(("it did not start:", *self.lines)))

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if self._shown:
                print(f"    {line.rstrip()}", flush=True)

    def kill(self) -> None:
        """With everything that it started, and without a last word."""
        if self._killed:
            return  # its number may be another's by now
        self._killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait()

    def wait(self) -> int:
        return self.process.wait()


@contextlib.contextmanager
def shop_broker() -> Iterator[tuple[str, Path]]:
    """A broker and a folder, both gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="scriba-shop-") as name:
        folder = Path(name)
        broker = broker_on(folder)
        try:
            yield broker.found, folder
        finally:
            broker.kill()


def broker_on(folder: Path, port: int = 0) -> Part:
    words = ("up", "--port", str(port), "--data", str(folder / "data"))
    return Part(*words, ready=r"listening on (\S+)")
