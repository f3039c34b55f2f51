"""Spark's classes in an archive, with which its Java starts in half the time.

Java can archive what it has loaded when it ends, but takes longer for that than anybody waits for a
Spark to stop. So a first run only writes down the names of what it loads, which costs nothing, and
when it is over a process of its own makes the archive of them, at the lowest priority:

    options(archive)    the run: with the archive, or writing names, or neither
    keep(archive)       after the run: the archive is made in the background, if it is not there

Each version of Spark and Java is tried once, whatever becomes of it. Java does without an archive
that does not fit.
"""

import contextlib
import fcntl
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Final

from scriba.spark.doctor import java_program

PATIENCE_S: Final = 1800.0
"""At the lowest priority it may have to wait for the processor."""


def version() -> str:
    """What an archive is good for."""
    program = java_program()
    if program is None:
        return ""
    said = subprocess.run(
        [program, "-version"], capture_output=True, text=True, timeout=60, check=False
    )
    return f"pyspark {metadata.version('pyspark')}, {said.stderr.strip()}"


def options(archive: Path) -> list[str]:
    """What Java is to be started with."""
    if not _tried(archive):
        archive.parent.mkdir(parents=True, exist_ok=True)
        return [_option("DumpLoadedClassList", _names(archive))]
    return [_option("SharedArchiveFile", archive)] if archive.exists() else []


def keep(archive: Path) -> bool:
    """Whether the archive is being made, by a process that outlives this one."""
    if _tried(archive) or not _names(archive).exists():
        return False
    with archive.with_suffix(".log").open("wb") as log:
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(archive)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return True


def make(archive: Path) -> bool:
    """Makes the archive of the names that were written down; whether it is there now."""
    from pyspark.find_spark_home import _find_spark_home

    with archive.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False  # somebody else is at it
        if _tried(archive) or not _names(archive).exists():
            return archive.exists()
        _stamp(archive).write_text(version())
        archive.unlink(missing_ok=True)
        names, fresh = _names(archive), archive.with_suffix(".new")
        text = names.read_text()
        names.write_text(text[: text.rindex("\n") + 1] if "\n" in text else "")
        words = ("-Xshare:dump", "-XX:+UseSerialGC", _option("SharedClassListFile", names))
        home = Path(_find_spark_home())
        # Spark's own launcher, because the class path has to be the same to a letter.
        command = [str(home / "bin" / "spark-submit"), "--master", "local[*]"]
        java = " ".join((*words, _option("SharedArchiveFile", fresh), "-Xlog:disable"))
        command += ["--driver-java-options", java, "pyspark-shell"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "SPARK_HOME": str(home)},
                timeout=PATIENCE_S,
                check=False,
            )
        if fresh.exists():
            fresh.replace(archive)
        names.unlink()
        return archive.exists()


def _tried(archive: Path) -> bool:
    stamp = _stamp(archive)
    return stamp.exists() and stamp.read_text() == version()


def _stamp(archive: Path) -> Path:
    return archive.with_suffix(".version")


def _names(archive: Path) -> Path:
    return archive.with_suffix(".names")


def _option(name: str, path: Path) -> str:
    """In quotes, which Spark's launcher takes for what they are, where a path has spaces."""
    word = f"-XX:{name}={path}"
    return f'"{word}"' if " " in word else word


if __name__ == "__main__":
    os.nice(19)
    sys.exit(0 if make(Path(sys.argv[1])) else f"java wrote no {sys.argv[1]}")
