"""Runs `load.c`, compiled on first use, beside a broker whose processor time is watched."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / ".cache" / "bench"


def compiled() -> Path:
    """The generator's program, made again when its source is newer."""
    source, program = HERE / "load.c", CACHE / "load"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise FileNotFoundError("the load generator needs a C compiler: install gcc")
        CACHE.mkdir(parents=True, exist_ok=True)
        options = ["-O2", "-Wall", "-Wextra", "-o", str(program)]
        subprocess.run([compiler, *options, str(source)], check=True)
    return program


@dataclass(frozen=True)
class Outcome:
    """What the generator saw, and what it cost the broker."""

    requests: int
    seconds: float
    sent: int
    received: int
    p50: float
    p90: float
    p99: float
    p999: float
    max: float
    cpu_seconds: float

    @property
    def cpu_us(self) -> float:
        """The broker's processor time for one request."""
        return self.cpu_seconds / self.requests * 1e6


class Target(Protocol):
    """What is under load: a broker, or a cluster whose nodes' processor time is added up."""

    @property
    def name(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def bootstrap(self) -> str: ...

    def cpu_seconds(self) -> float: ...


class Load:
    """One generator process, connected and waiting for `go`."""

    def __init__(self, broker: Target, *arguments: object) -> None:
        self.broker = broker
        self.process = subprocess.Popen(
            [str(compiled()), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError(self._complaint())

    @classmethod
    def replay(
        cls,
        broker: Target,
        *files: Path,
        error_at: int,
        requests: int = 0,
        connections: int = 1,
        window: int = 1,
        least: int = 0,
        pause_us: int = 0,
        bytes_per_s: int = 0,
        ports: Sequence[int] = (),
        once: bool = False,
    ) -> Self:
        """Goes round the files; without a number of requests until it is told to stop.

        Of several `ports` and files a connection takes one each, in turn; `once` ends it when each
        has sent its file.
        """
        how = (
            connections,
            window,
            "once" if once else requests,
            error_at,
            least,
            pause_us,
            bytes_per_s,
        )
        where = ",".join(map(str, ports or [broker.port]))
        return cls(broker, "replay", where, *how, *files)

    def go(self) -> None:
        self._cpu = self.broker.cpu_seconds()
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def stop(self) -> Outcome:
        """Ends a load that has no number of requests."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.result()

    def result(self) -> Outcome:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        cpu = self.broker.cpu_seconds() - self._cpu
        if not line:
            raise RuntimeError(self._complaint())
        self._end()
        return Outcome(**json.loads(line), cpu_seconds=cpu)

    def _complaint(self) -> str:
        assert self.process.stderr is not None
        self.process.wait()
        said = self.process.stderr.read().strip()
        self._end()
        return f"load generator against {self.broker.name}: {said}"

    def _end(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        self.process.wait()
