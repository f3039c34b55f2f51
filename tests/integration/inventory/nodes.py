"""Services of an inventory as processes of their own, that may be made to die or pause at a step.

    python inventory_nodes.py BOOTSTRAP NAME FOLDER [STEP NUMBER SIGNAL]

runs one; before its step STEP is taken for the NUMBERth time, it sends itself the signal.
"""

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scriba.pipelines.inventory.http.asking import NoAnswer, call
from scriba.pipelines.inventory.model import Event, decode_event

SESSION_MS = 3000
"""So soon a service that died is missed."""
UNDISTURBED_MS = 15_000
"""For a story in which nobody may be taken for dead, however busy the machine."""
QUICK = {"group.min.session.timeout.ms": "500", "group.initial.rebalance.delay.ms": "0"}

PATIENCE = 300.0


class Node:
    """One service; `start` may be called again after it died."""

    _numbers = itertools.count(1)

    def __init__(
        self, bootstrap: str, name: str, folder: Path, session_ms: int = SESSION_MS
    ) -> None:
        self.bootstrap = bootstrap
        self.session_ms = session_ms
        self.name = name
        self.folder = folder / f"node-{next(self._numbers)}"
        self.process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self, step: str = "", number: int = 1, fate: int = signal.SIGKILL) -> None:
        command = [sys.executable, __file__, self.bootstrap, self.name, str(self.folder)]
        if step:
            command += [step, str(number), str(int(fate))]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"SESSION_MS": str(self.session_ms)},
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def ask(self, path: str, document: Any = None, seconds: float = PATIENCE) -> tuple[int, Any]:
        return call(self.url, path, document, seconds=seconds)

    def told(self, path: str) -> Any:
        """The answer to a look-up, once the service is caught up."""
        deadline = time.monotonic() + PATIENCE
        while True:
            status, answer = self.ask(path)
            if status != 503:
                return answer
            assert time.monotonic() < deadline, answer
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.process = None

    def paused(self) -> None:
        """Returns once it has stopped itself."""
        assert self.process is not None
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def died(self) -> int:
        """How it ended by itself."""
        assert self.process is not None
        return self.process.wait(PATIENCE)


@contextmanager
def nodes(
    bootstrap: str, name: str, folder: Path, count: int, session_ms: int = SESSION_MS
) -> Iterator[list[Node]]:
    """So many services, not started yet, and none left behind."""
    made = [Node(bootstrap, name, folder, session_ms) for _ in range(count)]
    try:
        yield made
    finally:
        for node in made:
            node.kill()


def carried_out(candidates: list[Node], kind: str, document: Any) -> tuple[int, Any]:
    """The outcome of a command, asked of one service after the other until there is one."""
    deadline = time.monotonic() + PATIENCE
    said: Any = "nobody was asked"
    for node in itertools.cycle(candidates):
        assert time.monotonic() < deadline, said
        try:
            status, said = node.ask(f"/{kind}", document, 60)
        except NoAnswer as failure:
            said = failure
        else:
            if status != 503:
                return status, said
        time.sleep(0.05)
    raise AssertionError


def order(name: str, **quantities: int) -> dict[str, Any]:
    lines = [{"item": item, "quantity": quantity} for item, quantity in quantities.items()]
    return {"id": name, "lines": lines}


# -- a recount by strangers ----------------------------------------------------------------------


def recounted(bootstrap: str, topic: str) -> list[Event]:
    """All committed events of a topic, read by librdkafka."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "recount",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        count = len(consumer.list_topics(topic, PATIENCE).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, n, 0) for n in range(count)])
        events, left = [], set(range(count))
        while left:
            message = consumer.poll(300)
            assert message is not None, f"{topic}: no end of {left}"
            failure = message.error()
            if failure is None:
                event = decode_event(message.value())
                assert message.key() == event.item.encode()
                events.append(event)
            else:
                assert failure.code() == KafkaError._PARTITION_EOF, failure
                left.discard(message.partition())
        return events
    finally:
        consumer.close()


def check_books(bootstrap: str, name: str) -> dict[str, int]:
    """Recounts both topics: whatever happened, they balance. The stock of every item."""
    audit = recounted(bootstrap, f"{name}-audit")
    stock: defaultdict[str, int] = defaultdict(int)
    versions: defaultdict[str, int] = defaultdict(int)
    for event in sorted(audit, key=lambda event: (event.item, event.version)):
        versions[event.item] += 1
        stock[event.item] += event.change
        assert event.version == versions[event.item]
        assert event.stock == stock[event.item] >= 0
    by_command: defaultdict[str, list[Event]] = defaultdict(list)
    for event in audit:
        by_command[event.command].append(event)
    for events in by_command.values():
        assert sorted(event.line for event in events) == list(range(1, events[0].lines + 1))
        assert len({event.sequence for event in events}) == 1
    sequences = sorted(events[0].sequence for events in by_command.values())
    assert sequences == list(range(1, len(sequences) + 1))
    latest = {event.item: event for event in recounted(bootstrap, f"{name}-events")}
    assert {item: event.stock for item, event in latest.items()} == stock
    assert {item: event.version for item, event in latest.items()} == versions
    return dict(stock)


# -- one service ---------------------------------------------------------------------------------


def main(
    bootstrap: str, name: str, folder: str, fatal: str = "", number: str = "1", fate: str = "9"
) -> None:
    import asyncio

    from scriba.pipelines.inventory.http import web
    from scriba.pipelines.inventory.service import Service, ServiceSettings
    from scriba.pipelines.inventory.topics import Names

    seen = itertools.count(1)

    def watch(step: str) -> None:
        if step == fatal and next(seen) == int(number):
            os.kill(os.getpid(), int(fate))

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            settings = ServiceSettings(
                client={"bootstrap.servers": bootstrap},
                folder=Path(folder),
                url=url,
                names=Names(name),
                allow_single_node=True,
                session_timeout_ms=int(os.environ["SESSION_MS"]),
            )
            service = await Service.open(settings, watch)
            await web.serve(service, listener, lambda: print(url))  # noqa: T201

    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    asyncio.run(run())


if __name__ == "__main__":
    main(*sys.argv[1:])
