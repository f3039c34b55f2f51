"""Several nodes of Scriba as processes of the one who runs them, who may kill, stop and start each.

`scriba up --nodes` does as much for a person. Here every node has an address book of its own, so
that what nodes say to each other can be led through `links`, where it can be cut, and a device that
can be full or slow (`faulty_device`).
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from tools.kafka.brokers import HOST, PATIENCE, POLL_SECONDS, free_port
from tools.kafka.links import Links

ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("KAFKA_", "SCRIBA_"))}
PROTOCOLS = "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"
ROOT = Path(__file__).resolve().parents[2]
LISTENERS = ("PLAINTEXT", "INTERNAL", "CONTROLLER")
"""For clients, for brokers, for controllers."""
LISTENERS_OF = {"broker": LISTENERS[:2], "controller": LISTENERS[2:]}
PROGRAM = (sys.executable, "-m", "tools.kafka.faulty_device")


class ScribaNode:
    """One node, a process. It keeps its ports and its data."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.folder = folder
        self.data = folder / f"node-{number}"
        self.ports = {name: free_port() for name in LISTENERS}
        self.metrics_port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.paused = False
        self._said = 0

    @property
    def config(self) -> Path:
        return self.folder / f"node-{self.number}.properties"

    @property
    def device(self) -> Path:
        """The file that says what is wrong with its device."""
        return self.folder / f"node-{self.number}.device"

    @property
    def output(self) -> Path:
        """Everything the process said."""
        return self.folder / f"node-{self.number}.out"

    @property
    def pid(self) -> int:
        assert self.process is not None, f"node {self.number} does not run"
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.ports['PLAINTEXT']}"

    def launch(self) -> None:
        """Starts the process and returns at once."""
        assert not self.alive, f"node {self.number} runs"
        self._said = self.output.stat().st_size if self.output.exists() else 0
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(
                [*PROGRAM, "up", "--json", "--config", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**ENVIRONMENT, "PYTHONPATH": str(ROOT), "FAULTY_DEVICE": str(self.device)},
            )

    def wait(self) -> None:
        """Until it serves."""
        deadline = time.monotonic() + PATIENCE
        while b'"bootstrap_servers"' not in self._words():
            if not self.alive or time.monotonic() > deadline:
                raise RuntimeError(f"node {self.number} did not start:\n{self.tail()}")
            time.sleep(POLL_SECONDS)

    def _words(self) -> bytes:
        with self.output.open("rb") as out:
            out.seek(self._said)
            return out.read()

    def start(self) -> None:
        self.launch()
        self.wait()

    def kill(self) -> None:
        """kill -9: no farewell."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process, self.paused = None, False

    def stop(self) -> int:
        """A clean shutdown; the exit code."""
        assert self.process is not None, f"node {self.number} does not run"
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.kill()

    def pause(self) -> None:
        """SIGSTOP: its connections stay, and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self.paused = False

    def worsen(self, fault: Literal["full", "slow"]) -> None:
        """From now on its device takes nothing more, or its time."""
        whole = self.device.with_suffix(".tmp")
        whole.write_text(fault)
        whole.rename(self.device)

    def mend(self) -> None:
        self.device.unlink(missing_ok=True)

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])

    def log(self, topic: str, partition: int) -> bytes:
        """All bytes of a partition's log, over its segments."""
        return b"".join(
            path.read_bytes() for path in sorted((self.data / f"{topic}-{partition}").glob("*.log"))
        )


class ScribaNodes:
    """Nodes of one cluster; each is broker and controller, unless `own` says otherwise."""

    def __init__(
        self,
        folder: Path,
        count: int = 3,
        settings: Mapping[str, str] | None = None,
        own: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.nodes = {number: ScribaNode(number, folder) for number in range(1, count + 1)}
        self.settings = dict(settings or {})
        self.own = dict(own or {})
        """What one node has and the others have not."""
        self.links: Links | None = None

    def roles(self, number: int) -> list[str]:
        return self.own.get(number, {}).get("process.roles", "broker,controller").split(",")

    @property
    def bootstrap(self) -> str:
        brokers = (node for n, node in self.nodes.items() if "broker" in self.roles(n))
        return ",".join(node.address for node in brokers)

    @property
    def voters(self) -> str:
        controllers = (n for n in self.nodes if "controller" in self.roles(n))
        return ",".join(f"{n}@{self.controller_address(n)}" for n in controllers)

    def controller_address(self, number: int) -> str:
        """Where the others find a node's controller."""
        return self._advertised(number, "CONTROLLER")

    def _advertised(self, number: int, listener: str) -> str:
        port = self.nodes[number].ports[listener]
        if self.links is not None and listener != "PLAINTEXT":
            port = self.links.port(number, listener)
        return f"{HOST}:{port}"

    def configure(self) -> None:
        for number, node in self.nodes.items():
            roles = self.roles(number)
            names = LISTENERS if len(roles) == 2 else LISTENERS_OF[roles[0]]
            listeners = (f"{name}://{HOST}:{node.ports[name]}" for name in names)
            advertised = (f"{name}://{self._advertised(number, name)}" for name in names)
            texts = {
                "node.id": str(number),
                "process.roles": "broker,controller",
                "listeners": ",".join(listeners),
                "advertised.listeners": ",".join(advertised),
                "listener.security.protocol.map": PROTOCOLS,
                "inter.broker.listener.name": "INTERNAL",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": self.voters,
                "log.dirs": str(node.data),
                **{key: self._of(node, text) for key, text in self.settings.items()},
                **self.own.get(number, {}),
            }
            node.config.write_text("".join(f"{k}={v}\n" for k, v in texts.items()))

    def _of(self, node: ScribaNode, text: str) -> str:
        """A setting that names the node or its port for metrics."""
        return text.replace("{node}", str(node.number)).replace("{metrics}", str(node.metrics_port))

    def start(self, numbers: Sequence[int] | None = None) -> None:
        """All at once: the controllers of a new cluster wait for each other."""
        wanted = [self.nodes[number] for number in numbers or self.nodes]
        for node in wanted:
            node.launch()
        for node in wanted:
            node.wait()

    def stop(self) -> list[int]:
        """SIGTERM to all at once; their exit codes."""
        running = [node for node in self.nodes.values() if node.process is not None]
        for node in running:
            assert node.process is not None
            node.process.send_signal(signal.SIGTERM)
        return [node.process.wait(PATIENCE) for node in running if node.process is not None]

    def kill(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def pids(self) -> dict[int, int]:
        """Node by process."""
        return {node.process.pid: n for n, node in self.nodes.items() if node.process is not None}

    def tail(self) -> str:
        return "\n".join(f"-- node {n}\n{node.tail(15)}" for n, node in self.nodes.items())

    def cluster_id(self) -> str:
        told = (line for line in self.nodes[1].output.read_text().splitlines() if line[:1] == "{")
        found: str = json.loads(next(told))["cluster_id"]
        return found


@contextlib.contextmanager
def running_nodes(
    folder: Path,
    settings: Mapping[str, str] | None = None,
    *,
    linked: bool = False,
    count: int = 3,
    own: Mapping[int, Mapping[str, str]] | None = None,
) -> Iterator[ScribaNodes]:
    """Started on entry, killed on the way out; `linked` leads what they say through `links`."""
    nodes = ScribaNodes(folder, count, settings, own)
    with contextlib.ExitStack() as stack:
        if linked:
            targets = {(n, name): node.ports[name] for n, node in nodes.nodes.items()
                       for name in LISTENERS[1:]}  # fmt: skip
            nodes.links = stack.enter_context(Links(targets, nodes.pids))
        stack.callback(nodes.kill)
        nodes.configure()
        nodes.start()
        yield nodes
