"""Plans are cut into slices, and no slice changes one thing twice."""

from collections.abc import Iterator

import pytest

from scriba.controller.image import BROKER
from scriba.controller.plans import BARRIER, Cut, Slice, Step, in_slices, next_slice, twice
from scriba.wire.messages.stored import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from scriba.wire.schema import Message


def record(index: int) -> PartitionChangeRecord:
    return PartitionChangeRecord(topic_id=bytes(16), partition_id=index)


def test_slice_ends_at_a_barrier_when_it_is_full_and_with_the_plan() -> None:
    plan: Iterator[Step] = iter(
        [record(0), BARRIER, BARRIER, record(1), record(2), record(3), BARRIER]
    )
    cuts = [next_slice(plan, lambda records: len(records) == 2) for _ in range(5)]
    assert cuts == [
        Slice([record(0)], Cut.BARRIER),
        Slice([], Cut.BARRIER),
        Slice([record(1), record(2)], Cut.FULL),
        Slice([record(3)], Cut.BARRIER),
        Slice([], Cut.END),
    ]


def test_barrier_before_the_first_record_ends_nothing() -> None:
    assert list(in_slices([BARRIER, record(0), BARRIER])) == [[record(0)]]
    assert list(in_slices([])) == []


@pytest.mark.parametrize(
    ("records", "what"),
    [
        ([record(0), record(1)], None),
        ([record(0), record(1), record(0)], ("partition", bytes(16), 0)),
        (
            [PartitionRecord(topic_id=bytes(16), partition_id=0), record(0)],
            ("partition", bytes(16), 0),
        ),
        ([TopicRecord(topic_id=bytes(16)), record(0)], None),
        (
            [RegisterBrokerRecord(broker_id=1), BrokerRegistrationChangeRecord(broker_id=1)],
            ("broker", 1),
        ),
        ([BrokerRegistrationChangeRecord(broker_id=at) for at in (1, 2)], None),
        (
            [ConfigRecord(resource_type=BROKER, resource_name="", name="x", value=v) for v in "12"],
            ("config", BROKER, "", "x"),
        ),
        ([NoOpRecord(), NoOpRecord()], None),
    ],
)
def test_what_two_records_change_is_found(
    records: list[Message], what: tuple[object, ...] | None
) -> None:
    assert twice(records) == what
