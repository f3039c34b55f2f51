"""Apache Kafka's released jars and the command-line tools in them.

The jars come from Maven by `pom.xml` into `.cache/kafka/lib`, outside git, on first use; those of
Streams and Connect likewise by `tools/streams/pom.xml`. A tool runs in a JVM tuned for a short
life (one compiler tier, serial collector, an archive of loaded classes), because its start costs
more than what it does; a test that needs many of them keeps one JVM for all (`Tools`).
"""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

HERE = Path(__file__).resolve().parent
CACHES = HERE.parent.parent / ".cache"
CACHE = CACHES / "kafka"
KAFKA, STREAMS = "kafka", "streams"
"""Sets of jars, each with its list in tools/NAME/pom.xml."""

DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"

TOOLS: Mapping[str, str] = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "client-compatibility": "org.apache.kafka.tools.ClientCompatibilityTest",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "metadata-shell": "org.apache.kafka.shell.MetadataShell",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "storage": "kafka.tools.StorageTool",
    "streams-application-reset": "org.apache.kafka.tools.StreamsResetter",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactional-message-copier": "org.apache.kafka.tools.TransactionalMessageCopier",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
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
    f"-Djava.io.tmpdir={tempfile.gettempdir()}",
    "-Dfile.encoding=UTF-8",
    "-Dstdout.encoding=UTF-8",
    "-Dstderr.encoding=UTF-8",
)
"""Texts are UTF-8 whatever the machine's locale: without these, Java asks it. And Java does not ask
TMPDIR where temporary files go."""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one process at a time inside, however many test workers start at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def jars(name: str = KAFKA) -> Path:
    """A folder of jars, brought from Maven when it is missing or its list has changed."""
    cache, pom = CACHES / name, HERE.parent / name / "pom.xml"
    library, stamp = cache / "lib", cache / "lib.pom"
    with locked(cache / "lib.lock"):
        if stamp.exists() and stamp.read_bytes() == pom.read_bytes():
            return library
        for program in ("java", "mvn"):
            if shutil.which(program) is None:
                raise FileNotFoundError(f"Apache Kafka's jars need {program}: install it first")
        shutil.rmtree(library, ignore_errors=True)
        for archive in cache.glob("*.jsa"):
            archive.unlink()
        goal = f"{DEPENDENCY_PLUGIN}:copy-dependencies"
        where = [f"-DoutputDirectory={library}", "-DincludeScope=runtime"]
        command = ["mvn", "-q", "-B", "-f", str(pom), goal, *where]
        _fetched(command)
        stamp.write_bytes(pom.read_bytes())
    return library


def _fetched(command: list[str]) -> None:
    """Runs what needs the network, which may fail once or twice for no reason of ours."""
    for pause in (5, 20):
        if subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode == 0:
            return
        time.sleep(pause)
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


def compiled(source: Path, name: str = KAFKA) -> Path:
    """The folder with the classes of one source file, compiled when it has changed."""
    folder = CACHES / name / "classes" / source.stem
    stamp = folder / source.name
    with locked(CACHES / name / "classes.lock"):
        if not stamp.exists() or stamp.read_bytes() != source.read_bytes():
            shutil.rmtree(folder, ignore_errors=True)
            options = ["-cp", classpath(name), "-d", str(folder), "-proc:none"]
            subprocess.run(["javac", *options, str(source)], check=True)
            stamp.write_bytes(source.read_bytes())
    return folder


def version() -> str:
    (clients,) = jars().glob("kafka-clients-*.jar")
    return clients.stem.removeprefix("kafka-clients-")


def classpath(name: str = KAFKA) -> str:
    return ":".join(str(jar) for jar in sorted(jars(name).glob("*.jar")))


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
    options += archive_option()
    return ["java", *options, TOOLS[name], *args]


def archive_option() -> list[str]:
    """Takes classes from the archive, once there is one."""
    return [f"-XX:SharedArchiveFile={_archive()}"] if _archive().exists() else []


def tool(name: str, *args: str, stdin: str = "", timeout: float = 300) -> Outcome:
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


class Tools:
    """Kafka's tools in one JVM, one after the other, for tests that use many."""

    def __init__(self) -> None:
        path = f"{compiled(HERE / 'ToolServer.java')}:{classpath()}"
        logging = logging_option("tools-log4j2.properties")
        self._process = subprocess.Popen(
            ["java", *TOOL_JVM, logging, "-cp", path, "ToolServer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, name: str, *args: str, stdin: str = "") -> Outcome:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([TOOLS[name], stdin, *args]) + "\n")
        self._process.stdin.flush()
        told = json.loads(self._process.stdout.readline())
        return Outcome(name, told["code"], told["out"], told["err"])


def _archive() -> Path:
    return CACHE / "tools.jsa"
