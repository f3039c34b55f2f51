"""Has the conversation of `dialogue.py` with Apache Kafka, and writes down its answers.

Run by hand, with the jars that `make setup` fetches:
python -m tests.unit.groups.kafka.make
"""

import json
import socket
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

from scriba.wire.apis import API
from scriba.wire.frame import decode_response, encode_request
from scriba.wire.messages import admin, metadata
from scriba.wire.messages import groups as wire
from tests.unit.groups.dialogue import Side, dialogue
from tools.kafka.brokers import KafkaBroker, running

ANSWERS = Path(__file__).parent / "answers-4.3.0.json"
RESPONSES = {api.request: api.response for api in API.values()}
SETTINGS = {
    "group.consumer.assignment.interval.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
}


class Connection:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))

    def ask(self, request: Any, version: int) -> Any:
        frame = encode_request(request, version, 1, "client")
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", self.read(4))
        return decode_response(RESPONSES[type(request)], self.read(size), version)[1]

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.socket.recv(size - len(data))
        return data


def topics(kafka: Connection) -> dict[str, bytes]:
    wanted = [
        admin.CreatableTopic(name=name, num_partitions=count, replication_factor=1)
        for name, count in (("t", 4), ("u", 2))
    ]
    kafka.ask(admin.CreateTopicsRequest(topics=wanted, timeout_ms=30_000), 7)
    answer = kafka.ask(metadata.MetadataRequest(topics=None), 12)
    return {topic.name: topic.topic_id for topic in answer.topics}


def await_coordinator(kafka: Connection) -> None:
    while True:
        kafka.ask(metadata.FindCoordinatorRequest(coordinator_keys=["g"]), 6)
        request = wire.HeartbeatRequest(group_id="g", generation_id=1, member_id="x")
        if kafka.ask(request, 4).error_code == 25:
            return
        time.sleep(0.1)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as scratch,
        running(KafkaBroker(Path(scratch), SETTINGS)) as broker,
    ):
        kafka = Connection(broker.port)
        ids = topics(kafka)
        await_coordinator(kafka)
        steps = list(dialogue(Side(kafka.ask, ids)))
    lines = ",\n".join(json.dumps(step) for step in steps)
    ANSWERS.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
