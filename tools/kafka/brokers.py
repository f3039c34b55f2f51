"""The two brokers that tests and benchmarks run side by side, behind one small face.

Each is a child process on loopback with a data folder of its own, stopped by its process id.
Apache Kafka is formatted and started as it ships: the shipped heap and JVM options, and the
shipped `server.properties` apart from the addresses and the data folder. Scriba is started by
`scriba up` with nothing but port and data folder.
"""

import base64
import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Protocol

from tools.kafka import kafka_jars

KAFKA_JVM = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
"""What Kafka's start script passes when nothing is set."""

QUICK_JVM = (
    "-Xmx1G",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
    "-Djava.awt.headless=true",
)
"""For a short life on a busy machine."""

KAFKA_PROPERTIES: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "2",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "log.retention.hours": "168",
    "log.segment.bytes": "1073741824",
    "log.retention.check.interval.ms": "300000",
}
"""The shipped `server.properties` without its addresses and folder."""

HOST = "127.0.0.1"
POLL_SECONDS = 0.005
PATIENCE = 300.0
"""Seconds for a start or an end: only what hangs takes longer, however busy the machine."""

FIRST_PORT = 10_000
"""Ports are taken from here up to those that the system gives to connections."""


class Cluster(Protocol):
    """What a client needs to know of one node, or of several."""

    @property
    def bootstrap(self) -> str: ...


class Broker(ABC):
    """One node of either kind. It keeps its port and its data across restarts."""

    name: ClassVar[str]

    def __init__(self, data: Path, settings: Mapping[str, str] | None = None) -> None:
        self.data = data
        self.settings = dict(settings or {})
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        data.mkdir(parents=True, exist_ok=True)

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    @property
    def output(self) -> Path:
        """Everything the process said."""
        return self.data / "server.out"

    @property
    @abstractmethod
    def log_dir(self) -> Path:
        """The folder that holds the partitions."""

    @abstractmethod
    def command(self) -> list[str]: ...

    @abstractmethod
    def ready(self) -> bool:
        """Whether the port takes connections."""

    @abstractmethod
    def configuration(self) -> list[str]:
        """What was set, a line each, for a report."""

    @abstractmethod
    def prepare(self) -> None:
        """What a first start needs that is not part of the start itself."""

    def launch(self) -> None:
        """Starts the process and returns at once."""
        assert self.process is None, "already started"
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.data,
            )

    def start(self, timeout: float = PATIENCE) -> None:
        self.prepare()
        self.launch()
        deadline = time.monotonic() + timeout
        while not self.ready():
            if self.ended() or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.name} did not start:\n{self.tail()}")
            time.sleep(POLL_SECONDS)

    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def stop(self, timeout: float = PATIENCE) -> int:
        """A clean shutdown; the exit code."""
        assert self.process is not None, "not started"
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        finally:
            self.kill()

    def kill(self) -> None:
        """kill -9: no farewell."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])

    def cpu_seconds(self) -> float:
        """User plus system time of the process and its descendants, dead children included."""
        return sum(_cpu_ticks(pid) for pid in _tree(self.pid)) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        return sum(_resident(pid) for pid in _tree(self.pid))


def new_cluster_id() -> str:
    """What `kafka-storage random-uuid` prints, which never begins with a dash."""
    while (made := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:22]).startswith("-"):
        pass
    return made


class KafkaBroker(Broker):
    """Apache Kafka, broker and controller in one process."""

    name = "Apache Kafka"

    def java_options(self) -> list[str]:
        return [*KAFKA_JVM]

    @property
    def log_dir(self) -> Path:
        return self.data / "logs"

    @property
    def _config(self) -> Path:
        return self.data / "server.properties"

    def prepare(self) -> None:
        """Writes the configuration, and gives an empty folder its cluster id."""
        self.port = self.port or free_port()
        quorum = self.data / "controller.port"
        if not quorum.exists():
            quorum.write_text(str(free_port()))
        controller = f"{HOST}:{quorum.read_text()}"
        addresses = f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}"
        properties = {
            **KAFKA_PROPERTIES,
            "controller.quorum.bootstrap.servers": controller,
            "listeners": addresses,
            "advertised.listeners": addresses,
            "log.dirs": str(self.log_dir),
            **self.settings,
        }
        self._config.write_text("".join(f"{k}={v}\n" for k, v in properties.items()))
        if not (self.log_dir / "meta.properties").exists():
            where = ["-t", new_cluster_id(), "-c", str(self._config)]
            kafka_jars.tool("storage", "format", "--standalone", *where).ok()

    def command(self) -> list[str]:
        log4j = kafka_jars.logging_option("log4j2.properties")
        folder = f"-Djava.io.tmpdir={tempfile.gettempdir()}"
        options = [*self.java_options(), folder, log4j, "-cp", kafka_jars.classpath()]
        return ["java", *options, "kafka.Kafka", str(self._config)]

    def ready(self) -> bool:
        return accepts(self.port)

    def configuration(self) -> list[str]:
        properties = {**KAFKA_PROPERTIES, **self.settings}
        told = [f"Apache Kafka {kafka_jars.version()}", "java " + " ".join(KAFKA_JVM)]
        return told + [f"{key}={value}" for key, value in properties.items()]


class QuickKafka(KafkaBroker):
    """Apache Kafka for tests: as it ships, in a JVM that starts in a third of the time."""

    def java_options(self) -> list[str]:
        return [*QUICK_JVM, f"-XX:SharedArchiveFile={_classes_of_kafka()}"]


class _KafkaOnce(KafkaBroker):
    """One whose classes are archived when it ends."""

    def __init__(self, data: Path, archive: Path) -> None:
        super().__init__(data)
        self._into = archive

    def java_options(self) -> list[str]:
        return [*QUICK_JVM, f"-XX:ArchiveClassesAtExit={self._into}"]


def _classes_of_kafka() -> Path:
    """The archive of what a broker loads, made by the first that needs it.

    It is good for the folder its jars are in. Java does without one that does not fit, as an empty
    one, which says that it was tried.
    """
    place = zlib.crc32(kafka_jars.classpath().encode())
    archive = kafka_jars.CACHE / f"server-{place:08x}.jsa"
    with kafka_jars.locked(kafka_jars.CACHE / "server.lock"):
        if not archive.exists():
            with tempfile.TemporaryDirectory() as folder:
                fresh = kafka_jars.CACHE / f"server.{os.getpid()}"
                with running(_KafkaOnce(Path(folder), fresh)):
                    pass
                fresh.touch()
                fresh.replace(archive)
    return archive


class ScribaBroker(Broker):
    """Scriba as `scriba up` starts it."""

    name = "Scriba"

    @property
    def log_dir(self) -> Path:
        found = sorted(self.data.rglob("meta.properties"))
        assert found, f"no log directory under {self.data}"
        return found[0].parent

    def prepare(self) -> None:
        """A port that it keeps; there is no format step."""
        self.port = self.port or free_port()

    def launch(self) -> None:
        self._said = self.output.stat().st_size if self.output.exists() else 0
        super().launch()

    def command(self) -> list[str]:
        overrides = [part for kv in self.settings.items() for part in ("--set", "=".join(kv))]
        start = ["--port", str(self.port), "--data", str(self.data / "data"), *overrides]
        return [sys.executable, "-m", "scriba", "up", *start]

    def ready(self) -> bool:
        with self.output.open("rb") as out:
            out.seek(self._said)
            said = re.search(rb"listening on [^\s:]+:(\d+)", out.read())
        if said is None:
            return False
        self.port = int(said[1])
        return True

    def configuration(self) -> list[str]:
        return ["scriba up", *(f"{k}={v}" for k, v in self.settings.items())]


ANY_TRACER = """
import ctypes, os, sys
PR_SET_PTRACER, ANY = 0x59616D61, -1
ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(ANY), 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class TraceableBroker(ScribaBroker):
    """One that strace may watch, also where the kernel lets only parents watch their children."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", ANY_TRACER, *super().command()]


KINDS: Mapping[str, type[Broker]] = {"scriba": ScribaBroker, "kafka": KafkaBroker}
TESTED: Mapping[str, type[Broker]] = {"scriba": ScribaBroker, "kafka": QuickKafka}


@contextlib.contextmanager
def running(broker: Broker) -> Iterator[Broker]:
    """Started on entry; stopped on the way out, however the block ends."""
    try:
        broker.start()
        yield broker
        if broker.process is not None:
            broker.stop()
    finally:
        broker.kill()


def free_port() -> int:
    """A port for a server that is stopped and started again.

    It is not one that the system gives to a connection, or to whoever asks for any: such a one
    may be gone when the server wants it, or wants it back. A client that tries such a port while
    nobody listens can even be connected to itself.
    """
    for _ in range(1000):
        port = random.randrange(FIRST_PORT, _first_given())
        if _reserved(port):
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind((HOST, port))
                return port
    raise RuntimeError("no port is free")


def _first_given() -> int:
    """The lowest port that the system gives away by itself."""
    try:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        lowest = 32_768
    return lowest if lowest > FIRST_PORT + 1000 else 32_768


_reservations: list[socket.socket] = []


def _reserved(port: int) -> bool:
    """Keeps other test processes from the port until this one ends.

    Linux has names for sockets that are no files, and go with their process.
    """
    if sys.platform != "linux":
        return True
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0scriba-tests-port-{port}")
    except OSError:
        held.close()
        return False
    _reservations.append(held)
    return True


def accepts(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def _tree(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for parent in found:
        for thread in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found.extend(int(child) for child in thread.read_text().split())
    return found


def _cpu_ticks(pid: int) -> int:
    """utime, stime, cutime and cstime: the fields 14 to 17 of /proc/PID/stat."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(int(ticks) for ticks in after_name[11:15])


def _resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
