"""The same requests to two brokers, and their answers made comparable.

Whatever a broker gives out (producer ids, member ids, topic ids) is a `Name` here: each side puts
its own value in its place when it asks, and finds the name again in what it is answered. Lists are
compared without their order, texts of errors by whether there is one, times by whether one is set.
"""

import json
import socket
import struct
from dataclasses import dataclass
from typing import Any

from scriba.errors import ErrorCode
from scriba.wire.apis import API
from scriba.wire.frame import encode_request
from scriba.wire.messages import admin, groups, metadata, produce, security, txn
from scriba.wire.schema import Message, Struct
from tools.kafka.brokers import HOST, Broker
from tools.kafka.rawkafka import batch

PATIENCE_S = 60
ANSWERS: dict[type[Message], type[Message]] = {
    request: vars(room)[name.removesuffix("Request") + "Response"]
    for room in (admin, groups, metadata, produce, security, txn)
    for name, request in vars(room).items()
    if name.endswith("Request") and getattr(request, "KEY", None) is not None
}
LEFT_OUT = {"throttle_time_ms", "heartbeat_interval_ms", "client_host"}
TEXTS = {"error_message", "batch_index_error_message"}
TIMES = {"transaction_start_time_ms", "last_timestamp", "log_append_time_ms", "port"}


@dataclass(frozen=True)
class Name:
    kind: str
    number: object

    def __repr__(self) -> str:
        return f"<{self.kind} {self.number}>"


@dataclass(frozen=True)
class OneRecord:
    """A batch of one record, whose producer may have a name."""

    producer: object
    epoch: int
    sequence: int
    attributes: int


class Side:
    def __init__(self, broker: Broker) -> None:
        self._port = broker.port
        self._socket: socket.socket | None = None
        self._sent = 0
        self._values: dict[Name, Any] = {}
        self._names: dict[Any, Name] = {}

    def know(self, name: Name, value: Any) -> None:
        self._values[name] = value
        self._names[value] = name

    def knows(self, value: Any) -> bool:
        return value in self._names

    def ask(self, request: Message, version: int) -> Any:
        """The answer; a text where there is none."""
        filled = self._filled(request)
        self._sent += 1
        frame = encode_request(filled, version, self._sent, "side-by-side")
        if self._socket is None:
            self._socket = socket.create_connection((HOST, self._port), timeout=PATIENCE_S)
        try:
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)
            (size,) = struct.unpack(">i", self._read(4))
            data = self._read(size)
        except OSError as failure:
            self.close()
            return "silent" if isinstance(failure, TimeoutError) else "closed"
        head = 5 if version >= API[type(request).KEY or 0].flexible_from else 4
        return ANSWERS[type(request)].decode(data[head:], version)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _read(self, size: int) -> bytes:
        assert self._socket is not None
        data = self._socket.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            raise ConnectionError
        return data

    def _filled(self, value: Any) -> Any:
        if isinstance(value, Name):
            return self._values[value]
        if isinstance(value, OneRecord):
            return batch(
                [b"v"],
                producer_id=self._filled(value.producer),
                producer_epoch=value.epoch,
                base_sequence=value.sequence,
                attributes=value.attributes,
            ).encode()
        if isinstance(value, list):
            return [self._filled(each) for each in value]
        if isinstance(value, Struct):
            return type(value)(
                **{f.name: self._filled(getattr(value, f.name)) for f in value.FIELDS}
            )
        return value

    def comparable(self, value: Any, name: str = "") -> Any:
        if isinstance(value, list):
            return sorted((self.comparable(each, name) for each in value), key=repr)
        if isinstance(value, Struct):
            return {
                f.name: self.comparable(getattr(value, f.name), f.name)
                for f in value.FIELDS
                if f.name not in LEFT_OUT
            }
        if name in TEXTS:
            return "a text" if value else value
        if name in TIMES:
            return "a time" if value > 0 else value
        if name.endswith("error_code"):
            return ErrorCode(value).name
        if isinstance(value, int) and name != "producer_id":
            return value
        return self._names.get(value, value)

    def told(self, answer: Any) -> str:
        return json.dumps(self.comparable(answer), default=repr, sort_keys=True)
