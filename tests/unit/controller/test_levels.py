"""A cluster writes records of the level that it has agreed on, and changes it where that loses
nothing."""

from typing import Any

import pytest

from scriba.controller.image import ClusterImage, Delta
from scriba.controller.levels import NEWEST, OLDEST, encode
from scriba.errors import ErrorCode, KafkaError
from scriba.wire.messages.stored import FeatureLevelRecord, decode_metadata_record
from tests.unit.controller.rig import update

REGISTER, PARTITION, CHANGE = 0, 3, 5
"""Types of records that look different at different levels."""


def of_level(make_cluster: Any, level: int) -> Any:
    """A cluster that somebody else made, with the level that it had."""
    image = ClusterImage()
    record = FeatureLevelRecord(name="metadata.version", feature_level=level)
    image.replay([record], 0, 1, Delta())
    return make_cluster(image)


def versions(log: list[bytes]) -> dict[int, set[int]]:
    """Of records, by their type: both are one byte behind that of the frame."""
    found: dict[int, set[int]] = {}
    for value in log:
        found.setdefault(value[1], set()).add(value[2])
    return found


@pytest.mark.parametrize(
    ("level", "register", "partition"),
    [(17, 3, 1), (22, 3, 1), (23, 3, 2), (29, 3, 2), (30, 4, 2)],
)
def test_records_are_those_of_the_clusters_level(
    make_cluster: Any, level: int, register: int, partition: int
) -> None:
    cluster = of_level(make_cluster, level).with_brokers(1, 2)
    cluster.create("orders", 2, 2)
    cluster.beat(2, want_fence=True)
    written = versions(cluster.log)
    assert written[REGISTER] == {register}
    assert written[PARTITION] == written[CHANGE] == {partition}
    kept = ClusterImage()
    for record in cluster.image.records():
        read = decode_metadata_record(encode(record, level))
        kept.replay([read], 0, 1, Delta())
    assert kept == cluster.image, "a snapshot of the level loses nothing"


@pytest.mark.parametrize("level", [OLDEST - 1, NEWEST + 1])
def test_a_level_that_is_not_known_is_not_led(make_cluster: Any, level: int) -> None:
    with pytest.raises(KafkaError) as refused:
        of_level(make_cluster, level)
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert f"level {level}, this release supports {OLDEST} to {NEWEST}" in refused.value.message


def test_an_old_cluster_is_raised_and_writes_newer_records_from_then_on(make_cluster: Any) -> None:
    cluster = of_level(make_cluster, OLDEST).with_brokers(1)
    assert update(cluster, metadata_version=NEWEST).error_code == ErrorCode.NONE
    before = len(cluster.log)
    cluster.create("orders")
    assert versions(cluster.log[before:])[PARTITION] == {2}


def test_a_level_goes_back_where_nothing_is_lost(cluster: Any) -> None:
    answer = update(cluster, metadata_version=29)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION, "a downgrade must be meant"
    assert update(cluster, 2, metadata_version=29).error_code == ErrorCode.NONE
    assert cluster.image.metadata_version == 29


def test_a_level_stays_while_replicas_are_eligible(cluster: Any) -> None:
    answer = update(cluster, 2, metadata_version=OLDEST)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "eligible.leader.replicas.version 1 needs metadata.version 23" in answer.error_message
    assert cluster.image.metadata_version == NEWEST
    answer = update(cluster, 2, metadata_version=OLDEST, eligible_leader_replicas_version=0)
    assert answer.error_code == ErrorCode.NONE, "both at once"
    assert cluster.image.metadata_version == OLDEST
    answer = update(cluster, eligible_leader_replicas_version=1)
    assert "needs metadata.version 23" in answer.error_message


def test_a_level_stays_while_voters_stand_in_the_log(cluster: Any) -> None:
    update(cluster, 2, eligible_leader_replicas_version=0)
    cluster.image.set_feature("kraft.version", 1, Delta())
    answer = update(cluster, 2, metadata_version=20)
    assert "kraft.version 1 needs metadata.version 21 (3.9-IV0)" in answer.error_message
    assert update(cluster, 2, metadata_version=21).error_code == ErrorCode.NONE


def test_a_level_stays_while_directories_are_cordoned(cluster: Any) -> None:
    (directory,) = cluster.image.brokers[1].directories
    cluster.beat(1, cordoned_log_dirs=[directory])
    answer = update(cluster, 2, metadata_version=29)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "broker 1 has some; clear its cordoned.log.dirs first" in answer.error_message
    cluster.beat(1, cordoned_log_dirs=[])
    assert update(cluster, 2, metadata_version=29).error_code == ErrorCode.NONE
    cluster.beat(1, cordoned_log_dirs=[directory])
    assert not cluster.records, "the level has no word for it"
    assert cluster.image.brokers[1].cordoned_directories == ()


def test_a_broker_of_an_older_release_keeps_the_level_down(make_cluster: Any) -> None:
    cluster = of_level(make_cluster, OLDEST)
    older = {**cluster.controller.state.supported, "metadata.version": (7, 21)}
    cluster.register(1, features=cluster.ranges(older))
    answer = update(cluster, metadata_version=22)
    assert "broker 1 supports 7 to 21" in answer.error_message
    assert update(cluster, metadata_version=21).error_code == ErrorCode.NONE
