"""Configs are set, deleted, appended to and subtracted from; bad ones are refused."""

from typing import Any

import pytest

from scriba.controller.image import BROKER, GROUP, TOPIC
from scriba.errors import ErrorCode
from scriba.wire.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from tests.unit.controller.rig import APPEND, DELETE, SET, SUBTRACT, change, replace


@pytest.fixture
def topic(cluster: Any) -> Any:
    cluster.create("t")
    return cluster


def test_topic_config_is_set_and_deleted(topic: Any) -> None:
    change(topic, TOPIC, "t", ("retention.ms", SET, "5"), ("segment.ms", SET, "9"))
    assert topic.image.config(TOPIC, "t") == {"retention.ms": "5", "segment.ms": "9"}
    change(topic, TOPIC, "t", ("retention.ms", DELETE, None))
    assert topic.image.config(TOPIC, "t") == {"segment.ms": "9"}
    change(topic, TOPIC, "t", ("segment.ms", SET, "9"))
    assert not topic.records, "no change, no record"


def test_older_request_replaces_everything(topic: Any) -> None:
    change(topic, TOPIC, "t", ("retention.ms", SET, "5"))
    assert replace(topic, TOPIC, "t", {"segment.ms": "9"}) is ErrorCode.NONE
    assert topic.image.config(TOPIC, "t") == {"segment.ms": "9"}
    assert replace(topic, TOPIC, "t", {}) is ErrorCode.NONE
    assert topic.image.config(TOPIC, "t") == {}
    assert replace(topic, TOPIC, "t", {"segment.ms": None}) is ErrorCode.INVALID_REQUEST


def test_lists_grow_and_shrink_from_their_default(topic: Any) -> None:
    assert change(topic, TOPIC, "t", ("cleanup.policy", APPEND, "delete")).error_code == 0
    assert topic.image.config(TOPIC, "t") == {"cleanup.policy": "delete"}
    assert change(topic, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")).error_code == 0
    assert topic.image.config(TOPIC, "t") == {"cleanup.policy": ""}
    answer = change(topic, TOPIC, "t", ("retention.ms", APPEND, "1"))
    assert answer.error_code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("kind", "name", "op", "code"),
    [
        (TOPIC, "t", ("retention.ms", SET, "x"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("retension.ms", SET, "1"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("retention.ms", SET, None), ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", ("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST),
        (TOPIC, "nobody", ("retention.ms", SET, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "", ("retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ("log.retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "-1", ("log.retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "9", ("log.retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
        (BROKER, "1", ("node.id", SET, "2"), ErrorCode.INVALID_REQUEST),
        (BROKER, "", ("log.retention.ms", SET, "often"), ErrorCode.INVALID_REQUEST),
        (99, "t", ("a", SET, "b"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_bad_changes_are_refused(
    topic: Any, kind: int, name: str, op: Any, code: ErrorCode
) -> None:
    assert change(topic, kind, name, op).error_code == code
    assert not topic.records


def test_resource_and_key_may_appear_once(topic: Any) -> None:
    answer = change(topic, TOPIC, "t", ("segment.ms", SET, "1"), ("segment.ms", SET, "2"))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=TOPIC, resource_name="t"
    )
    response = topic.do(IncrementalAlterConfigsRequest(resources=[resource, resource]))
    assert [r.error_code for r in response.responses] == [ErrorCode.INVALID_REQUEST] * 2


def test_validate_only_changes_nothing(topic: Any) -> None:
    op = ("retention.ms", SET, "5")
    assert change(topic, TOPIC, "t", op, validate_only=True).error_code == ErrorCode.NONE
    assert not topic.records
    assert topic.image.config(TOPIC, "t") == {}


def test_broker_config_takes_effect_in_the_controller(topic: Any) -> None:
    change(topic, BROKER, "", ("log.retention.ms", SET, "77"))
    shown = {c.name: c.value for c in topic.create("u").configs}
    assert shown["retention.ms"] == "77"
    change(topic, BROKER, "1", ("log.retention.ms", SET, "88"))
    shown = {c.name: c.value for c in topic.create("v").configs}
    assert shown["retention.ms"] == "88"
    change(topic, BROKER, "1", ("log.retention.ms", SET, "88"))
    assert topic.records, "a broker's config is written again: it may name a file to reload"
    change(topic, BROKER, "", ("log.retention.ms", DELETE, None))
    change(topic, BROKER, "1", ("log.retention.ms", DELETE, None))
    shown = {c.name: c.value for c in topic.create("w").configs}
    assert shown["retention.ms"] == "604800000"


def test_a_group_has_settings_of_its_own_within_the_bounds_of_the_nodes(cluster: Any) -> None:
    session = "consumer.session.timeout.ms"
    assert change(cluster, GROUP, "g", (session, SET, "50000")).error_code == ErrorCode.NONE
    assert cluster.image.config(GROUP, "g") == {session: "50000"}
    assert cluster.reloaded() == cluster.image
    change(cluster, GROUP, "g", (session, DELETE, None))
    assert cluster.image.config(GROUP, "g") == {}


@pytest.mark.parametrize(
    ("name", "key", "value", "code", "words"),
    [
        ("", "consumer.session.timeout.ms", "50000", ErrorCode.INVALID_REQUEST, "no name"),
        ("g", "consumer.session.timeout.ms", "44999", ErrorCode.INVALID_CONFIG, "(45000)"),
        ("g", "consumer.session.timeout.ms", "60001", ErrorCode.INVALID_CONFIG, "(60000)"),
        ("g", "consumer.heartbeat.interval.ms", "4999", ErrorCode.INVALID_CONFIG, "at least"),
        ("g", "consumer.assignment.interval.ms", "x", ErrorCode.INVALID_CONFIG, "whole number"),
        ("g", "share.session.timeout.ms", "50000", ErrorCode.INVALID_CONFIG, "share groups"),
        ("g", "consumer.sesion.timeout.ms", "1", ErrorCode.INVALID_CONFIG, "did you mean"),
    ],
)
def test_a_group_is_refused_what_cannot_be(
    cluster: Any, name: str, key: str, value: str, code: ErrorCode, words: str
) -> None:
    answer = change(cluster, GROUP, name, (key, SET, value))
    assert answer.error_code == code
    assert words in answer.error_message
    assert not cluster.records
