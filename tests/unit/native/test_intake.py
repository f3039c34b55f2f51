"""Records on their way into batches: both implementations take, and leave, the same ones."""

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any, Never

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.native import implementation
from scriba.native.fallback import Builder
from scriba.native.implementation import Implementation
from scriba.records.record import Record
from scriba.runtime.clock import SystemClock

Ticket = Callable[..., Any]
"""What makes the handle of a record: of its batch, its place there and its timestamp."""

TOPIC = object()
MACHINE = SystemClock().wall_ms
ROOM = 1 << 40
SIZE = 110
"""What is counted for a record of a hundred bytes without key and headers."""


@pytest.fixture
def ticket(chosen: Implementation) -> Ticket:
    class Handle(chosen.Ticket):  # type: ignore[name-defined, misc] # a base of this run's choice
        __slots__ = ()

        def __init__(self: Any, batch: object, index: int, timestamp: int) -> None:
            self.batch = batch
            self.index = index
            self.timestamp = timestamp

    return Handle


class Setting:
    """An intake with one topic of four partitions, each with an open batch."""

    def __init__(
        self,
        chosen: Implementation,
        ticket: Ticket,
        *,
        memory: int = ROOM,
        limit: int = ROOM,
        clock: Callable[[], int] | None = None,
        by_key: bool = True,
    ) -> None:
        self.chosen = chosen
        real, clock, lock = clock is MACHINE, clock or (lambda: 77), threading.RLock()
        self.topics = {"orders": TOPIC}
        self.intake = chosen.Intake(self.topics, ticket, clock, real, lock, memory, 1000, by_key)
        self.channel = chosen.Channel(limit, lock)
        self.channel.known = TOPIC
        self.channel.partitions = 4
        self.channel.sticky, self.channel.room = 2, ROOM
        self.intake.channels["orders"] = self.channel
        self.builders = [chosen.Builder() for _ in range(4)]
        for partition, builder in enumerate(self.builders):
            self.channel.open(partition, f"batch {partition}", builder)

    def put(
        self,
        value: Any = b"v",
        key: Any = None,
        partition: Any = None,
        timestamp: Any = None,
        headers: Any = (),
        *reserved: int,
    ) -> Any:
        return self.intake.put("orders", value, key, partition, timestamp, headers, *reserved)

    def counts(self) -> list[int]:
        return [builder.count for builder in self.builders]

    def records(self, partition: int) -> list[Record]:
        builder = self.builders[partition]
        count, base = builder.count, builder.base_timestamp
        return self.chosen.decode_records(builder.take(), count, 0, base, None)


@pytest.fixture
def setting(chosen: Implementation, ticket: Ticket) -> Setting:
    return Setting(chosen, ticket)


def test_a_record_goes_into_the_open_batch_and_its_handle_tells_where(setting: Setting) -> None:
    handle = setting.put(b"v", b"k", 1, 5, (("h", b"x"), ("n", None)))
    assert (handle.batch, handle.index, handle.timestamp) == ("batch 1", 0, 5)
    assert setting.put(b"w", None, 1, 6).index == 1
    assert setting.intake.used == setting.builders[1].size
    assert setting.records(1) == [
        Record(0, 5, b"k", b"v", (("h", b"x"), ("n", None))),
        Record(1, 6, None, b"w"),
    ]


def test_time_comes_from_the_clock_that_it_was_given(setting: Setting) -> None:
    assert setting.put().timestamp == 77


def test_a_real_clock_tells_the_time_of_the_machine(chosen: Implementation, ticket: Ticket) -> None:
    before = MACHINE()
    assert before <= Setting(chosen, ticket, clock=MACHINE).put().timestamp <= MACHINE()


@given(st.binary(max_size=40))
def test_a_key_decides_on_the_partition_as_its_hash_says(
    chosen: Implementation, key: bytes
) -> None:
    setting = Setting(chosen, lambda batch, index, timestamp: batch)
    partition = (implementation.FALLBACK.murmur2(key) & 0x7FFFFFFF) % 4
    assert setting.put(key=key) == f"batch {partition}"
    assert setting.put(key=bytearray(key)) == f"batch {partition}"


def test_keys_may_be_ignored(chosen: Implementation, ticket: Ticket) -> None:
    setting = Setting(chosen, ticket, by_key=False)
    assert {setting.put(key=bytes([n])).batch for n in range(9)} == {"batch 2"}


def test_records_without_a_key_stay_until_there_is_no_room(setting: Setting) -> None:
    setting.channel.room = 2 * SIZE
    assert setting.put(bytes(100)).batch == "batch 2"
    assert setting.put(bytes(100)).batch == "batch 2"
    assert setting.channel.room == 0
    assert setting.put(bytes(100)) is None
    assert setting.put(bytes(100), partition=2).batch == "batch 2"


@pytest.mark.parametrize(
    "record",
    [
        {"value": "text"},
        {"key": 7},
        {"value": memoryview(b"v")},
        {"value": bytes(991)},
        {"partition": 4},
        {"partition": -1},
        {"partition": 2**70},
        {"partition": True},
        {"timestamp": -1},
        {"timestamp": 2**63},
        {"timestamp": 1.5},
        {"headers": [("h", b"x")]},
        {"headers": {}},
        {"headers": (("h", "x"),)},
        {"headers": (("h", b"x", 1),)},
        {"headers": ((b"h", b"x"),)},
        {"headers": (("h", bytes(990)),)},
    ],
    ids=lambda record: "-".join(f"{k} {v!r:.20}".partition(" at ")[0] for k, v in record.items()),
)
def test_what_is_not_plain_is_left_to_others_and_changes_nothing(
    setting: Setting, record: dict[str, Any]
) -> None:
    assert setting.put(**record) is None
    assert setting.counts() == [0, 0, 0, 0]
    assert setting.intake.used == 0
    assert setting.channel.room == ROOM


def test_a_topic_has_to_be_known_as_the_channel_knows_it(setting: Setting) -> None:
    assert setting.intake.put("payments", b"v", None, None, None, ()) is None
    assert setting.intake.put(b"orders", b"v", None, None, None, ()) is None  # type: ignore[arg-type]
    setting.topics["orders"] = object()
    assert setting.put() is None
    setting.channel.known = setting.topics["orders"]
    assert setting.put() is not None
    del setting.topics["orders"]
    assert setting.put() is None
    setting.channel.known = None
    assert setting.put() is None


def test_nothing_goes_into_a_closed_batch(setting: Setting) -> None:
    setting.channel.close(2)
    assert setting.put() is None
    setting.channel.close(17)
    setting.channel.open(2, "another", setting.chosen.Builder())
    assert setting.put().batch == "another"


def test_a_batch_gets_full_only_when_somebody_looks_at_it_afterwards(
    chosen: Implementation, ticket: Ticket
) -> None:
    setting = Setting(chosen, ticket, limit=3 * SIZE)
    assert setting.put(bytes(100)) is not None
    assert setting.put(bytes(100)) is not None
    assert setting.put(bytes(100)) is None
    assert setting.put(bytes(100), None, None, None, (), 0) is not None
    assert setting.put(bytes(100), None, None, None, (), 0) is None


def test_memory_is_a_limit_except_for_what_was_reserved(
    chosen: Implementation, ticket: Ticket
) -> None:
    setting = Setting(chosen, ticket, memory=2 * SIZE)
    assert setting.put(bytes(100)) is not None
    setting.intake.spend(SIZE)
    assert setting.put(bytes(100)) is None
    assert setting.put(bytes(100), None, None, None, (), SIZE) is not None
    assert setting.intake.used == setting.builders[2].size
    setting.intake.spend(-setting.builders[2].size)
    assert setting.intake.used == 0


def test_while_it_is_shut_only_those_get_in_that_have_memory(setting: Setting) -> None:
    setting.intake.shut = True
    assert setting.put() is None
    setting.intake.spend(20)
    assert setting.put(b"v", None, None, None, (), 20) is not None


def test_any_callable_can_make_the_handles(chosen: Implementation) -> None:
    setting = Setting(chosen, lambda *fields: fields)
    assert setting.put(timestamp=9) == ("batch 2", 0, 9)


def test_no_partition_is_below_zero(setting: Setting) -> None:
    with pytest.raises(ValueError, match="no partition"):
        setting.channel.open(-1, "batch", setting.chosen.Builder())


def test_a_clock_that_fails_is_heard(chosen: Implementation, ticket: Ticket) -> None:
    def stopped() -> Never:
        raise LookupError("no time")

    with pytest.raises(LookupError, match="no time"):
        Setting(chosen, ticket, clock=stopped).put()


def test_a_batch_that_refers_to_its_intake_is_collected(
    chosen: Implementation, ticket: Ticket
) -> None:
    class Batch:
        home: Setting
        handle: object

    setting, batch = Setting(chosen, ticket), Batch()
    setting.channel.open(2, batch, chosen.Builder())
    batch.home, batch.handle = setting, setting.put()
    gone = weakref.ref(batch)
    del setting, batch
    gc.collect()
    assert gone() is None


def test_threads_lose_nothing_while_another_one_closes_batches(
    chosen: Implementation, ticket: Ticket
) -> None:
    """Each batch ends up with what its handles say, and memory with the sum of all."""
    setting = Setting(chosen, ticket)
    builders: dict[str, Builder] = {"batch 2": setting.builders[2]}
    handles: list[list[Any]] = [[], [], []]

    def send(mine: list[Any]) -> None:
        while len(mine) < 2000:
            handle = setting.put(len(mine).to_bytes(4, "big"))
            if handle is not None:
                mine.append(handle)

    threads = [threading.Thread(target=send, args=(mine,)) for mine in handles]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        name, builder = f"batch {len(builders) + 2}", chosen.Builder()
        builders[name] = builder
        setting.channel.open(2, name, builder)
        setting.channel.close(2)
        setting.channel.open(2, name, builder)
    for thread in threads:
        thread.join()
    everything = [handle for mine in handles for handle in mine]
    places = [(handle.batch, handle.index) for handle in everything]
    assert len(set(places)) == len(places) == 6000
    assert sum(builder.count for builder in builders.values()) == 6000
    assert setting.intake.used == sum(builder.size for builder in builders.values())
    for mine in handles:
        order = [(int(handle.batch.split()[1]), handle.index) for handle in mine]
        assert order == sorted(order)
