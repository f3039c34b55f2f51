"""Features are raised on the data a cluster has, by all or by nobody."""

from typing import Any

import pytest

from scriba.controller.features import SUPPORTED
from scriba.controller.image import Delta
from scriba.errors import ErrorCode, KafkaError
from scriba.wire.messages.brokers import (
    ControllerRegistrationRequest,
    ControllerRegistrationRequestFeature,
)
from tests.unit.controller.rig import update

LAST_RELEASE = {name: SUPPORTED[name] for name in ("metadata.version", "kraft.version")}


def test_new_cluster_has_all_that_is_served_and_nothing_else(cluster: Any) -> None:
    assert cluster.image.features == {
        "metadata.version": 30,
        "group.version": 1,
        "transaction.version": 2,
        "eligible.leader.replicas.version": 1,
    }
    answer = update(cluster, share_version=1)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION


def test_next_release_raises_features_on_existing_data(make_cluster: Any) -> None:
    old = make_cluster(supported=LAST_RELEASE).with_brokers(1)
    old.create("kept", 3)
    new = make_cluster(old.reloaded(), own_broker=1)
    assert new.image.features == {"metadata.version": 30}
    answer = update(new, transaction_version=2)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "broker 1" in answer.error_message, "the broker of the old release is still registered"
    new.register(1, incarnation_id=b"the new release.")
    new.beat(1)
    assert update(new, transaction_version=2, validate=True).error_code == ErrorCode.NONE
    assert "transaction.version" not in new.image.features
    assert update(new, transaction_version=2, group_version=1).error_code == ErrorCode.NONE
    assert new.image.features["transaction.version"] == 2
    assert len(new.image.topics_by_name["kept"].partitions) == 3
    with pytest.raises(KafkaError) as refused:
        make_cluster(new.image.copy(), supported=LAST_RELEASE)
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert "this release supports" in refused.value.message


@pytest.mark.parametrize(
    ("kind", "level", "code"),
    [
        (1, 1, ErrorCode.INVALID_UPDATE_VERSION),
        (2, 1, ErrorCode.NONE),
        (2, 0, ErrorCode.NONE),
        (3, 0, ErrorCode.NONE),
        (2, 2, ErrorCode.NONE),
        (1, 3, ErrorCode.INVALID_UPDATE_VERSION),
        (1, -1, ErrorCode.INVALID_UPDATE_VERSION),
        (0, 2, ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
def test_downgrades_must_be_meant(
    make_cluster: Any, kind: int, level: int, code: ErrorCode
) -> None:
    cluster = make_cluster().with_brokers(1)
    assert update(cluster, kind, transaction_version=level).error_code == code


def test_downgrade_to_something_newer_is_refused(make_cluster: Any) -> None:
    cluster = make_cluster().with_brokers(1)
    update(cluster, 2, group_version=0)
    assert update(cluster, 2, group_version=1).error_code == ErrorCode.INVALID_UPDATE_VERSION


def test_feature_at_zero_is_off(make_cluster: Any) -> None:
    cluster = make_cluster().with_brokers(1)
    update(cluster, 2, group_version=0)
    assert "group.version" not in cluster.image.features
    assert cluster.reloaded() == cluster.image


def test_one_bad_update_stops_all(make_cluster: Any) -> None:
    cluster = make_cluster().with_brokers(1)
    update(cluster, 2, group_version=0)
    answer = update(cluster, group_version=1, transaction_version=9)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert not cluster.records


def test_older_requests_hear_about_each_feature(make_cluster: Any) -> None:
    cluster = make_cluster().with_brokers(1)
    answer = update(cluster, version=0, transaction_version=2)
    assert [(r.feature, r.error_code) for r in answer.results] == [("transaction.version", 0)]
    assert answer.error_message is None
    assert update(cluster, kind=2, version=0, transaction_version=1).error_code == 0
    assert cluster.image.features["transaction.version"] == 1


def test_an_older_request_that_is_refused_hears_so_once(make_cluster: Any) -> None:
    cluster = make_cluster().with_brokers(1)
    answer = update(cluster, version=1, transaction_version=2, group_version=9)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert answer.error_message
    assert answer.results == []


def test_every_controller_must_support_it(make_cluster: Any) -> None:
    cluster = make_cluster().with_brokers(1)
    feature = ControllerRegistrationRequestFeature(
        name="group.version", min_supported_version=0, max_supported_version=0
    )
    cluster.do(ControllerRegistrationRequest(controller_id=7, features=[feature]))
    answer = update(cluster, group_version=1)
    assert "controller 7" in answer.error_message


def test_quorum_writes_its_version_itself_and_never_goes_back(cluster: Any) -> None:
    assert update(cluster, kraft_version=0).error_code == ErrorCode.NONE, "it is there"
    assert update(cluster, kraft_version=1).error_code == ErrorCode.NONE
    assert not cluster.records, "a record of the quorum says so, none of the controller"
    cluster.image.set_feature("kraft.version", 1, Delta())
    answer = update(cluster, 2, kraft_version=0)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "voters stand in the log" in answer.error_message
