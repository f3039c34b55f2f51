"""Writes down what Apache Kafka answers to the requests of `transcript.py`.

    python -m tests.unit.groups.record_transcript

Every request has a connection of its own, so that one that waits holds up no other.
"""

import socket
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scriba.wire.apis import API
from scriba.wire.frame import encode_request
from scriba.wire.messages import groups as wire
from scriba.wire.messages.admin import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from scriba.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse
from scriba.wire.schema import Message
from tests.unit.groups.shard import PENDING
from tests.unit.groups.transcript import INITIAL_DELAY_MS, RECORDED, TOPICS, tell
from tools.kafka.brokers import KafkaBroker, running

RESPONSES: dict[type[Message], type[Message]] = {
    CreateTopicsRequest: CreateTopicsResponse,
    FindCoordinatorRequest: FindCoordinatorResponse,
    **{
        request: getattr(wire, name.removesuffix("Request") + "Response")
        for name, request in vars(wire).items()
        if name.endswith("Request")
    },
}
PATIENCE_SECONDS = 10.0
SOON_SECONDS = 0.5


class Live:
    """Implements `transcript.World` on a live broker."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._open: dict[int, tuple[socket.socket, type[Message], int]] = {}
        self._tokens = 0

    def send(self, request: Message, version: int, client: str) -> int:
        self._tokens += 1
        connection = socket.create_connection(("127.0.0.1", self.port))
        frame = encode_request(request, version, self._tokens, client)
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        self._open[self._tokens] = (connection, type(request), version)
        # Requests on connections of their own have no order but the one given by waiting.
        time.sleep(0.1)
        return self._tokens

    def answer(self, token: int, *, soon: bool) -> Any:
        connection, kind, version = self._open[token]
        connection.settimeout(SOON_SECONDS if soon else PATIENCE_SECONDS)
        try:
            (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        except TimeoutError:
            return PENDING
        frame = connection.recv(size, socket.MSG_WAITALL)
        connection.close()
        assert kind.KEY is not None
        head = 5 if version >= API[kind.KEY].flexible_from else 4
        return RESPONSES[kind].decode(frame[head:], version)

    def wait(self, ms: int) -> None:
        time.sleep(ms / 1000)

    def ask(self, request: Message, version: int) -> Any:
        return self.answer(self.send(request, version, "recorder"), soon=False)


def begin(live: Live) -> None:
    """Topics as the story wants them, and a coordinator that has loaded."""
    topics = [
        CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        for name, partitions in TOPICS.items()
    ]
    live.ask(CreateTopicsRequest(topics=topics, timeout_ms=10_000), 5)
    live.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    while live.ask(wire.ListGroupsRequest(), 5).error_code:
        time.sleep(0.2)
    request = wire.DescribeGroupsRequest(groups=["g", "st", "none", "s", "", "bad"])
    while any(group.error_code != 69 for group in live.ask(request, 6).groups):
        time.sleep(0.2)


def main() -> None:
    delay = {"group.initial.rebalance.delay.ms": str(INITIAL_DELAY_MS)}
    with tempfile.TemporaryDirectory() as folder:
        broker = KafkaBroker(Path(folder), delay)
        with running(broker):
            live = Live(broker.port)
            begin(live)
            lines = tell(live)
            broker.kill()
    RECORDED.write_text("\n".join(lines) + "\n")
    sys.stdout.write(f"{len(lines)} answers\n")


if __name__ == "__main__":
    main()
