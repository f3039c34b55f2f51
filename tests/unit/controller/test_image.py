"""Images fold records, tell what changed, and can be written down again."""

from typing import Any

import pytest

from scriba.controller.image import _FOLDS, TOPIC, ClusterImage, Delta, ImageError
from scriba.controller.levels import NEWEST, encode
from scriba.errors import KafkaError
from scriba.wire.messages.brokers import AllocateProducerIdsRequest
from scriba.wire.messages.stored import (
    METADATA_RECORDS,
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EndTransactionRecord,
    EntityData,
    FeatureLevelRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnknownRecord,
    UserScramCredentialRecord,
    decode_metadata_record,
)
from scriba.wire.schema import Message

A, B = b"a" * 16, b"b" * 16


def topic(name: str, topic_id: bytes, partitions: int = 1) -> list[Message]:
    return [
        TopicRecord(name=name, topic_id=topic_id),
        *(
            PartitionRecord(
                partition_id=i,
                topic_id=topic_id,
                replicas=[1],
                isr=[1],
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
                directories=[A],
            )
            for i in range(partitions)
        ),
    ]


def fold(image: ClusterImage, *records: Message) -> Delta:
    delta = Delta()
    image.replay(records, image.end_offset, 1, delta)
    return delta


def test_delta_tells_what_was_created_changed_and_deleted() -> None:
    image = ClusterImage()
    delta = fold(image, *topic("a", A, 2))
    assert list(delta.created) == [A]
    assert delta.partitions == {A: {0: None, 1: None}}
    assert delta.end_offset == image.end_offset == 3
    before = image.topics_by_id[A].partitions[1]
    delta = fold(image, PartitionChangeRecord(topic_id=A, partition_id=1, leader=2))
    assert delta.partitions == {A: {1: before}}
    assert not delta.created
    delta = fold(
        image,
        ConfigRecord(resource_type=TOPIC, resource_name="a", name="k", value="v"),
        FeatureLevelRecord(name="group.version", feature_level=1),
    )
    assert delta.configs == {(TOPIC, "a"): {}}
    assert delta.features == {"group.version": 0}
    delta = fold(image, RemoveTopicRecord(topic_id=A))
    assert [t.name for t in delta.deleted.values()] == ["a"]
    assert not delta.partitions
    assert delta.configs == {(TOPIC, "a"): {"k": "v"}}


def test_topic_made_and_deleted_within_one_delta_is_not_told() -> None:
    delta = fold(ClusterImage(), *topic("a", A), RemoveTopicRecord(topic_id=A), *topic("a", B))
    assert list(delta.created) == [B]
    assert not delta.deleted
    assert list(delta.partitions) == [B]


def test_what_a_reader_holds_does_not_change_under_it() -> None:
    image = ClusterImage()
    fold(image, *topic("a", A))
    held, copied = image.topics_by_name["a"], image.copy()
    fold(image, PartitionChangeRecord(topic_id=A, partition_id=0, leader=-1), *topic("b", B))
    assert held.partitions[0].leader == 1
    assert list(copied.topics_by_name) == ["a"]
    assert copied.topics_by_name["a"].partitions[0].leader == 1
    assert image.topics_by_name["a"].partitions[0].leader == -1


def test_naming_the_same_leader_still_starts_a_new_epoch() -> None:
    image = ClusterImage()
    fold(image, *topic("a", A))
    fold(image, PartitionChangeRecord(topic_id=A, partition_id=0, leader=1))
    partition = image.topics_by_id[A].partitions[0]
    assert (partition.leader_epoch, partition.partition_epoch) == (1, 1)
    fold(image, PartitionChangeRecord(topic_id=A, partition_id=0, isr=[1, 2]))
    partition = image.topics_by_id[A].partitions[0]
    assert (partition.leader_epoch, partition.partition_epoch) == (1, 2)


def test_transaction_takes_effect_at_its_end_or_never() -> None:
    image = ClusterImage()
    fold(image, BeginTransactionRecord(name="x"), *topic("a", A))
    assert image.in_transaction
    assert not image.topics_by_name
    other = image.copy()
    assert fold(image, EndTransactionRecord()).created
    assert list(image.topics_by_name) == ["a"]
    fold(other, AbortTransactionRecord(reason="x"))
    assert not other.topics_by_name
    assert not other.in_transaction


@pytest.mark.parametrize(
    "record",
    [
        TopicRecord(name="a", topic_id=B),
        PartitionChangeRecord(topic_id=B, partition_id=0),
        PartitionChangeRecord(topic_id=A, partition_id=7),
        RemoveTopicRecord(topic_id=B),
        FenceBrokerRecord(id=1, epoch=1),
        ClearElrRecord(topic_name="b"),
        EndTransactionRecord(),
    ],
)
def test_record_that_contradicts_the_log_is_an_error(record: Message) -> None:
    image = ClusterImage()
    fold(image, *topic("a", A))
    with pytest.raises(ImageError):
        fold(image, record)


def test_older_fencing_records_are_understood() -> None:
    image = ClusterImage()
    fold(image, RegisterBrokerRecord(broker_id=1, broker_epoch=5))
    fold(image, UnfenceBrokerRecord(id=1, epoch=5))
    assert image.brokers[1].active
    fold(image, FenceBrokerRecord(id=1, epoch=5))
    assert not image.brokers[1].active


def test_image_written_down_folds_into_the_same_image(trio: Any) -> None:
    trio.create("a.b", 5, 3, configs={"retention.ms": "5", "segment.ms": "7"})
    trio.create("c", 2)
    trio.beat(2, want_fence=True)
    trio.beat(3, want_shut_down=True)
    epoch = trio.image.brokers[1].epoch
    trio.do(AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch))
    again = ClusterImage()
    records = [decode_metadata_record(encode(record, NEWEST)) for record in trio.image.records()]
    again.replay(records, 0, 1, Delta())
    assert again == trio.image
    assert trio.reloaded() == trio.image


def test_image_knows_every_record_that_a_controller_may_write() -> None:
    """Each is folded, or steers a transaction; what else is in a metadata log is not known."""
    steering: set[type[Message]] = {
        BeginTransactionRecord,
        EndTransactionRecord,
        AbortTransactionRecord,
    }
    assert set(METADATA_RECORDS.values()) - steering == set(_FOLDS) - {UnknownRecord}


def clear(elr: str) -> tuple[ClusterImage, Delta]:
    image = ClusterImage()
    fold(image, *topic("a", A, 3), *topic("b", B))
    for topic_id in (A, B):
        change = PartitionChangeRecord(topic_id=topic_id, partition_id=0, isr=[])
        change.eligible_leader_replicas, change.last_known_elr = [1], [2]
        fold(image, change)
    return image, fold(image, ClearElrRecord(topic_name=elr))


def test_eligible_replicas_are_cleared_in_one_topic_or_in_all() -> None:
    image, delta = clear("a")
    assert [list(d) for d in delta.partitions.values()] == [[0]], "those that had some"
    one, other = (image.topics_by_id[id].partitions[0] for id in (A, B))
    assert (one.eligible_leader_replicas, one.last_known_elr) == ((), ())
    assert (one.partition_epoch, one.leader_epoch) == (2, 0)
    assert (other.eligible_leader_replicas, other.last_known_elr) == ((1,), (2,))
    image, delta = clear("")
    assert set(delta.partitions) == {A, B}
    assert all(not image.topics_by_id[id].partitions[0].last_known_elr for id in (A, B))


def quota(*entity: tuple[str, str | None], remove: bool = False, value: float = 1.0) -> Message:
    data = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
    return ClientQuotaRecord(entity=data, key="producer_byte_rate", value=value, remove=remove)


def test_rules_that_are_not_served_here_are_kept_and_written_down() -> None:
    image = ClusterImage()
    acl = AccessControlEntryRecord(id=A, resource_type=2, resource_name="a", principal="User:x")
    scram = UserScramCredentialRecord(name="x", mechanism=1, iterations=4096)
    token = DelegationTokenRecord(owner="User:x", token_id="t")
    by_user, by_default = quota(("user", "x")), quota(("user", None))
    delta = fold(image, acl, scram, token, by_user, by_default)
    assert delta.security
    assert list(image.security) == [acl, scram, token, by_user, by_default]
    assert image.security.unenforced() == "1 ACL and 2 client quotas"
    kept = image.copy()
    changed = quota(("user", "x"), value=2.0)
    fold(
        image,
        RemoveAccessControlEntryRecord(id=A),
        RemoveUserScramCredentialRecord(name="x", mechanism=1),
        RemoveDelegationTokenRecord(token_id="t"),
        quota(("user", None), remove=True),
        changed,
        RemoveAccessControlEntryRecord(id=B),
    )
    assert list(image.security) == [changed]
    assert len(list(kept.security)) == 5
    again = ClusterImage()
    written = [decode_metadata_record(encode(record, NEWEST)) for record in kept.records()]
    again.replay(written, 0, 1, Delta())
    assert again == kept
    assert again != image


def test_controller_does_not_rule_where_it_cannot_enforce_the_rules(make_cluster: Any) -> None:
    image = make_cluster().image
    fold(image, UserScramCredentialRecord(name="x", mechanism=1))
    make_cluster(image.copy())
    fold(image, AccessControlEntryRecord(id=A))
    with pytest.raises(KafkaError, match="1 ACL, which this release does not enforce"):
        make_cluster(image)
