"""Apache Kafka's released jars and the command-line tools in them.

The jars come from Maven by `pom.xml` into `.cache/kafka/lib`, outside git, on first use. A tool
runs in a JVM tuned for a short life (one compiler tier, serial collector, an archive of loaded
classes), because its start costs more than what it does.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent.parent / ".cache" / "kafka"

DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"

TOOLS: Mapping[str, str] = {
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "metadata-shell": "org.apache.kafka.shell.MetadataShell",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "storage": "kafka.tools.StorageTool",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
}

ARCHIVE_MAKER = "configs"
"""The tool whose classes, kept in one archive, cover most of what every other tool loads."""

TOOL_JVM = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xmx256M",
    "-Xshare:auto",
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    "-Djava.awt.headless=true",
)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one process at a time inside, however many test workers start at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def jars() -> Path:
    """The folder of jars, brought from Maven when it is missing or the list has changed."""
    library, pom, stamp = CACHE / "lib", HERE / "pom.xml", CACHE / "lib.pom"
    with locked(CACHE / "lib.lock"):
        if stamp.exists() and stamp.read_bytes() == pom.read_bytes():
            return library
        for program in ("java", "mvn"):
            if shutil.which(program) is None:
                raise FileNotFoundError(f"Apache Kafka's jars need {program}: install it first")
        shutil.rmtree(library, ignore_errors=True)
        _archive().unlink(missing_ok=True)
        goal = f"{DEPENDENCY_PLUGIN}:copy-dependencies"
        where = [f"-DoutputDirectory={library}", "-DincludeScope=runtime"]
        command = ["mvn", "-q", "-B", "-f", str(pom), goal, *where]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        stamp.write_bytes(pom.read_bytes())
    return library


def version() -> str:
    (clients,) = jars().glob("kafka-clients-*.jar")
    return clients.stem.removeprefix("kafka-clients-")


def classpath() -> str:
    return ":".join(str(jar) for jar in sorted(jars().glob("*.jar")))


def logging_option(name: str) -> str:
    return f"-Dlog4j2.configurationFile={HERE / name}"


@dataclass(frozen=True)
class Outcome:
    """What a tool said and how it ended."""

    tool: str
    code: int
    out: str
    err: str

    def ok(self) -> str:
        """The standard output of a tool that must have succeeded."""
        if self.code != 0:
            raise AssertionError(f"{self.tool} ended with {self.code}\n{self.out}\n{self.err}")
        return self.out


def command(name: str, *args: str) -> list[str]:
    """The command line that runs one of Kafka's tools."""
    path = classpath()
    options = [*TOOL_JVM, logging_option("tools-log4j2.properties"), "-cp", path]
    if _archive().exists():
        options.append(f"-XX:SharedArchiveFile={_archive()}")
    return ["java", *options, TOOLS[name], *args]


def tool(name: str, *args: str, stdin: str = "", timeout: float = 60) -> Outcome:
    """Runs one of Kafka's tools to its end, in a JVM of its own."""
    line = command(name, *args)
    fresh: Path | None = None
    if name == ARCHIVE_MAKER and not _archive().exists():
        fresh = _archive().with_suffix(f".{os.getpid()}")
        line.insert(1, f"-XX:ArchiveClassesAtExit={fresh}")
    done = subprocess.run(
        line, input=stdin, capture_output=True, text=True, timeout=timeout, check=False
    )
    if fresh is not None and fresh.exists():
        fresh.replace(_archive())
    return Outcome(name, done.returncode, done.stdout, done.stderr)


def _archive() -> Path:
    return CACHE / "tools.jsa"
