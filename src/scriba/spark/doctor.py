"""Checks what a pipeline on Spark needs, and says what to fix.

pyspark is imported only when a session is asked for: what is missing is to be told, not stumbled
over. Every check gives findings; a finding without a fix is good news.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

JARS_VARIABLE: Final = "SCRIBA_SPARK_JARS"
NEEDED: Final = {"pyspark": ("4.2", None), "pyarrow": ("18", None), "pandas": ("2.2", "3")}
"""Packages with the first version that does, and the first that does no more."""
JAVA: Final = (17, 21)
"""Oldest and newest Java that Spark 4 is tested with."""
_CONNECTOR: Final = "spark-sql-kafka-0-10_*.jar"
_CONNECT_SECONDS: Final = 3


@dataclass(frozen=True)
class Finding:
    subject: str
    found: str
    fix: str = ""
    """What to do; empty when all is well."""
    optional: bool = False
    """Whether pipelines run without it."""

    @property
    def well(self) -> bool:
        return not self.fix


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def check_packages() -> Iterator[Finding]:
    for name, (least, below) in NEEDED.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding(name, "not installed", "pip install 'scriba[spark]'")
            continue
        too_new = below is not None and _numbers(version) >= _numbers(below)
        if _numbers(version) < _numbers(least) or too_new:
            wanted = f"{name}>={least}" + (f",<{below}" if below else "")
            yield Finding(name, version, f"pip install '{wanted}'")
        else:
            yield Finding(name, version)


def check_python() -> Iterator[Finding]:
    """Driver and executors must run the same Python, with scriba in it."""
    here = f"{sys.version_info.major}.{sys.version_info.minor} at {sys.executable}"
    chosen = os.environ.get("PYSPARK_PYTHON")
    if (
        chosen is None
        or Path(shutil.which(chosen) or chosen).resolve() == Path(sys.executable).resolve()
    ):
        yield Finding("python", here)
        return
    script = "import sys, scriba; print('%d.%d' % sys.version_info[:2])"
    try:
        told = subprocess.run(
            [chosen, "-c", script], capture_output=True, text=True, timeout=60, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        fix = "install scriba there too, or unset PYSPARK_PYTHON"
        yield Finding("python", f"PYSPARK_PYTHON is {chosen}, which cannot import scriba", fix)
        return
    if told != f"{sys.version_info.major}.{sys.version_info.minor}":
        fix = f"set PYSPARK_PYTHON to {sys.executable}, or unset it"
        yield Finding("python", f"{here}, but PYSPARK_PYTHON is Python {told}", fix)
    else:
        yield Finding("python", f"{here}; tasks run {chosen}")


def java_program() -> str | None:
    """The Java that Spark takes."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


def check_java() -> Iterator[Finding]:
    program = java_program()
    install = f"install a JDK from {JAVA[0]} to {JAVA[1]}, such as openjdk-17-jre-headless"
    if program is None:
        yield Finding("java", "not found", f"{install}, or set JAVA_HOME")
        return
    try:
        said = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=60, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as failure:
        yield Finding(
            "java", f"{program} does not run: {failure}", "correct JAVA_HOME, or unset it"
        )
        return
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    major = 0 if found is None else int(found[2] if found[1] == "1" and found[2] else found[1])
    if major < JAVA[0]:
        yield Finding("java", f"{major} at {program}", install)
    elif major > JAVA[1]:
        fix = f"if Spark fails, {install}"
        yield Finding("java", f"{major} at {program}, newer than Spark is tested with", fix, True)
    else:
        yield Finding("java", f"{major} at {program}")


def check_records() -> Iterator[Finding]:
    from scriba.native import implementation

    unused = implementation.UNUSED
    if unused is None:
        yield Finding("records", "decoded by the native extension")
    else:
        found = f"decoded in Python, several times slower: the native extension {unused.why}"
        yield Finding("records", found, unused.fix, optional=True)


def check_jars(official: bool) -> Iterator[Finding]:
    """The jars of the other connector; they matter only to `--connector official`."""
    folder = os.environ.get(JARS_VARIABLE)
    if folder is None:
        if official:
            yield Finding(
                "jars", f"{JARS_VARIABLE} is not set: Spark brings them from Maven at each start"
            )
        return
    jars = sorted(Path(folder).glob(_CONNECTOR))
    if not jars:
        fix = f"copy spark-sql-kafka-0-10 and what it needs there, or unset {JARS_VARIABLE}"
        yield Finding("jars", f"no connector in {folder}", fix, optional=not official)
        return
    version = jars[-1].stem.rpartition("-")[2]
    try:
        spark = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return
    if _numbers(version)[:2] != _numbers(spark)[:2]:
        fix = f"use the connector of Spark {spark} if it is released; others may not load"
        yield Finding("jars", f"connector {version} for Spark {spark}", fix, optional=True)
    else:
        yield Finding("jars", f"connector {version} in {folder}")


def check_master(master: str) -> Iterator[Finding]:
    if master.startswith("local"):
        yield Finding("master", f"{master}: this machine, {os.cpu_count()} cores")
        return
    found = re.fullmatch(r"spark://([^:/]+):(\d+)", master)
    if found is None:
        yield Finding("master", f"{master}: known only to Spark itself")
        return
    try:
        address = (found[1], int(found[2]))
        socket.create_connection(address, timeout=_CONNECT_SECONDS).close()
    except OSError as failure:
        fix = "start it, or correct --master"
        yield Finding("master", f"{master} does not answer: {failure}", fix)
    else:
        yield Finding("master", f"{master} answers; its workers need scriba[spark] too")


def check_session(master: str, official: bool) -> Iterator[Finding]:
    """Starts Spark and sends a row through a Python worker and back."""
    from scriba.spark import end, session

    try:
        spark = session("doctor", master=master, connector="official" if official else "scriba")
        try:
            rows = spark.range(1).mapInArrow(_same, "id long").count()
        finally:
            end(spark)
    except Exception as failure:
        said = str(failure).strip().splitlines()
        yield Finding("session", said[0] if said else repr(failure), "see the lines above")
    else:
        yield Finding("session", f"starts, and {rows} row went through a worker")


def _same(batches: Iterator[object]) -> Iterator[object]:
    yield from batches


def examine(master: str, official: bool, run: bool) -> Iterator[Finding]:
    """All findings about this machine. A session is not tried when something stands in its way."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        check_python,
        check_packages,
        check_java,
        check_records,
        lambda: check_jars(official),
        lambda: check_master(master),
    ]
    sound = True
    for check in checks:
        for finding in check():
            sound = sound and (finding.well or finding.optional)
            yield finding
    if run and sound:
        yield from check_session(master, official)
