"""A snapshot's records become an image as those of the log do, only sooner."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from scriba.controller import loading
from scriba.controller.difference import SLICE, difference
from scriba.controller.image import ClusterImage, Delta, ImageError, PartitionImage
from scriba.controller.loading import Loading
from scriba.controller.parts import MOST_SHARED, Shared
from scriba.errors import ParseError
from scriba.wire.messages.stored import (
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
    decode_metadata_record,
    encode_metadata_record,
)
from scriba.wire.schema import Message

TOPIC_ID = b"the topic's id.."
DIRECTORIES = [bytes([n]) * 16 for n in range(6)]


def partition(index: int, rng: random.Random, **more: Any) -> PartitionRecord:
    replicas = rng.sample(range(1, 6), rng.randrange(1, 5))
    return PartitionRecord(
        partition_id=index,
        topic_id=TOPIC_ID,
        replicas=replicas,
        isr=rng.sample(replicas, rng.randrange(0, len(replicas) + 1)),
        leader=rng.choice([-1, *replicas]),
        leader_epoch=rng.randrange(1 << 31),
        partition_epoch=rng.randrange(300),
        directories=[DIRECTORIES[broker] for broker in replicas],
        **more,
    )


def unusual(rng: random.Random) -> Iterator[PartitionRecord]:
    """Records that are laid out in other ways."""
    yield partition(1000, rng, adding_replicas=[1])
    yield partition(1001, rng, removing_replicas=[2, 3])
    yield partition(1002, rng, leader_recovery_state=1)
    yield partition(1003, rng, eligible_leader_replicas=[2], last_known_elr=[3])
    without = partition(1004, rng)
    without.directories = []
    yield without


def story() -> list[Message]:
    rng = random.Random(7)
    return [
        TopicRecord(name="t", topic_id=TOPIC_ID),
        *(partition(index, rng) for index in range(300)),
        *unusual(rng),
        *(partition(index, rng) for index in range(300, 600)),
        ConfigRecord(resource_type=2, resource_name="t", name="retention.ms", value="1"),
        partition(5, rng),
    ]


def loaded(values: list[bytes]) -> ClusterImage:
    work = Loading(10, 2)
    for value in values:
        work.add(value)
    return work.done(1)


def replayed(records: list[Message]) -> ClusterImage:
    image, delta = ClusterImage(), Delta()
    for record in records:
        image.replay((record,), 9, 2, delta)
    image.set_feature("kraft.version", 1, delta)
    return image


@pytest.mark.parametrize("version", [0, 1, 2])
def test_snapshot_gives_the_image_that_a_replay_of_its_records_gives(version: int) -> None:
    records = story()
    values = []
    for record in records:
        if isinstance(record, PartitionRecord):
            record = PartitionRecord(**{name: getattr(record, name) for name in fields(version)})
            values.append(encode_metadata_record(record, version))
        else:
            values.append(encode_metadata_record(record))
    image = loaded(values)
    if version == 2:
        assert image == replayed(records)
    assert image == replayed([decode_metadata_record(value) for value in values])
    assert (image.end_offset, image.epoch) == (10, 2)


def fields(version: int) -> list[str]:
    later = {"directories": 1, "eligible_leader_replicas": 2, "last_known_elr": 2}
    return [each.name for each in PartitionRecord.FIELDS if later.get(each.name, 0) <= version]


def test_partitions_as_usual_are_not_decoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    records = story()
    values = [encode_metadata_record(record) for record in records]
    decoded = []
    decode = decode_metadata_record

    def counted(value: Any) -> Message:
        decoded.append(value)
        return decode(value)

    monkeypatch.setattr(loading, "decode_metadata_record", counted)
    loaded(values)
    assert len(decoded) == 1 + 5 + 1, "the topic, what is unusual, the config"


def test_any_cut_or_changed_byte_gives_what_the_schema_gives() -> None:
    """Taken apart by position, a record is judged as strictly as by its schema."""
    rng = random.Random(11)
    first = encode_metadata_record(TopicRecord(name="t", topic_id=TOPIC_ID))
    whole = encode_metadata_record(partition(3, rng))
    variants = [whole[:size] for size in range(3, len(whole))] + [whole + b"\0"]
    for at in range(3, len(whole)):
        others = (0, 1, 2, 3, 0x7F, 0x80, 0xFF)
        variants += [whole[:at] + bytes([byte]) + whole[at + 1 :] for byte in others]
    for value in variants:
        outcomes = []
        for fast in (True, False):
            try:
                if fast:
                    outcomes.append(loaded([first, value]))
                else:
                    records = [decode_metadata_record(each) for each in (first, value)]
                    outcomes.append(replayed(records))
            except (ParseError, ImageError) as error:
                outcomes.append(type(error))  # type: ignore[arg-type]
        assert outcomes[0] == outcomes[1], value.hex()


def test_partition_of_an_unknown_topic_is_refused() -> None:
    with pytest.raises(ImageError, match="no topic with id"):
        loaded([encode_metadata_record(partition(0, random.Random(1)))])


def test_equal_lists_of_brokers_are_kept_once() -> None:
    """However they came in: by a snapshot, by a record of the log, by a change."""
    rng = random.Random(3)
    record = partition(0, rng)
    record.isr = list(record.replicas)
    values = [
        encode_metadata_record(TopicRecord(name="t", topic_id=TOPIC_ID)),
        encode_metadata_record(record),
    ]
    image = loaded(values)
    delta = Delta()
    record.partition_id = 1
    image.replay((record,), 10, 2, delta)
    image = image.copy()
    shrunk = PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, isr=record.isr[:1])
    grown = PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, isr=list(record.isr))
    image.replay((shrunk, grown), 11, 2, delta)
    by_snapshot, by_log = (image.topics_by_id[TOPIC_ID].partitions[n] for n in (0, 1))
    assert by_snapshot.replicas is by_snapshot.isr is by_log.replicas is by_log.isr
    assert by_snapshot.directories is by_log.directories


def test_lists_to_share_are_bounded_and_dropped_a_few_at_a_time() -> None:
    share, most_dropped = Shared(), 0
    for number in range(MOST_SHARED):
        assert share([number]) == (number,)
    known = len(share)
    for number in range(MOST_SHARED, MOST_SHARED + 20_000):
        assert share([number]) == (number,)
        before, known = known, len(share)
        most_dropped = max(most_dropped, before - known)
        assert known <= MOST_SHARED
    assert 0 < most_dropped <= 1024


# ---- changes in parts ----


def image_of(partitions: int, epoch: int = 0) -> ClusterImage:
    image = ClusterImage()
    records: list[Message] = [TopicRecord(name="t", topic_id=TOPIC_ID)]
    records += [
        PartitionRecord(
            partition_id=n, topic_id=TOPIC_ID, replicas=[1], isr=[1], leader=1, leader_epoch=epoch
        )
        for n in range(partitions)
    ]
    image.replay(records, 0, 1, Delta())
    return image


def test_large_change_is_told_in_parts_that_make_up_the_whole() -> None:
    whole = Delta()
    whole.partitions = {bytes([n]) * 16: dict.fromkeys(range(n)) for n in range(1, 40)}
    whole.configs[2, "t"] = {}
    whole.end_offset = 77
    parts = list(whole.parts(100))
    together: dict[bytes, dict[int, PartitionImage | None]] = {}
    for part in parts:
        assert sum(map(len, part.partitions.values())) <= 100
        assert part.end_offset == 77
        for topic_id, changes in part.partitions.items():
            together.setdefault(topic_id, {}).update(changes)
    assert together == whole.partitions
    assert len(parts) == 8
    assert [part.configs for part in parts] == [whole.configs] + [{}] * 7
    assert list(whole.parts(1000)) == [whole]


async def test_images_are_compared_in_slices_of_partitions() -> None:
    pauses: list[None] = []

    async def pause() -> None:
        pauses.append(None)

    before, after = image_of(3 * SLICE), image_of(3 * SLICE + 5, epoch=1)
    delta = await difference(before, after, pause)
    assert len(pauses) == 3
    changes = delta.partitions[TOPIC_ID]
    assert len(changes) == 3 * SLICE + 5
    assert changes[3 * SLICE] is None
    assert changes[0] == before.topics_by_id[TOPIC_ID].partitions[0]
