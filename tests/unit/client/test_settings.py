"""Settings of the clients: Kafka's names, either spelling, and refusals that help."""

import re
from pathlib import Path
from typing import Any

import pytest

import scriba.client.settings
from scriba.client.settings import (
    AdminSettings,
    ClientSettings,
    ConsumerSettings,
    ProducerSettings,
    parse_duration_ms,
)
from scriba.config import ConfigError
from scriba.peers.addresses import parse_address

AT = {"bootstrap.servers": "localhost:9092"}


def refusal(cls: type[ClientSettings], **keywords: object) -> str:
    with pytest.raises(ConfigError) as caught:
        cls.build(AT, keywords)
    return str(caught.value)


def test_dotted_names_and_keywords_mean_the_same_and_a_keyword_wins() -> None:
    dotted = ProducerSettings.build({**AT, "linger.ms": "20", "acks": "all"}, {})
    words = ProducerSettings.build(None, {"bootstrap_servers": ["localhost:9092"], "linger_ms": 20})
    assert dotted == words
    assert ProducerSettings.build({**AT, "linger.ms": 3}, {"linger_ms": 4}).linger_ms == 4


def test_defaults_are_those_of_kafka_4() -> None:
    producer = ProducerSettings.build(AT, {})
    assert (producer.acks, producer.enable_idempotence) == ("all", True)
    assert (producer.linger_ms, producer.batch_size) == (5, 16384)
    assert (producer.buffer_memory, producer.max_request_size) == (33554432, 1048576)
    assert (producer.delivery_timeout_ms, producer.retries) == (120_000, 2**31 - 1)
    consumer = ConsumerSettings.build(AT, {})
    assert (consumer.auto_offset_reset, consumer.max_poll_records) == ("latest", 500)
    assert (consumer.fetch_max_bytes, consumer.max_partition_fetch_bytes) == (52428800, 1048576)


def test_a_group_has_the_defaults_of_kafka_4() -> None:
    alone, member = (ConsumerSettings.build(AT, {"group_id": g}) for g in (None, "g"))
    assert (alone.enable_auto_commit, member.enable_auto_commit) == (False, True)
    assert (member.auto_commit_interval_ms, member.max_poll_interval_ms) == (5000, 300_000)
    assert (member.session_timeout_ms, member.heartbeat_interval_ms) == (45_000, 3_000)
    assert (member.group_protocol, member.group_remote_assignor) == ("classic", None)
    assert member.partition_assignment_strategy == ("range", "cooperative-sticky")
    java = ConsumerSettings.build(
        AT,
        {
            "group_id": "g",
            "partition_assignment_strategy": [
                "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
                "roundrobin",
            ],
        },
    )
    assert java.partition_assignment_strategy == ("cooperative-sticky", "roundrobin")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"enable_auto_commit": True}, "needs a group.id"),
        ({"group_instance_id": "i"}, "needs a group.id"),
        ({"group_id": ""}, "must not be empty"),
        ({"group_id": "g", "group_protocol": "streams"}, "one of classic, consumer"),
        ({"group_id": "g", "group_remote_assignor": "uniform"}, "needs group.protocol=consumer"),
        ({"group_id": "g", "heartbeat_interval_ms": 45_000}, "below session.timeout.ms"),
        ({"group_id": "g", "partition_assignment_strategy": "fair"}, "no assignor is called"),
        ({"group_id": "g", "partition_assignment_strategy": ""}, "at least one"),
        ({"group_id": "g", "max_poll_interval_ms": 0}, "at least 1"),
        ({"group_id": "g", "session_timeout": 1}, "did you mean session_timeout_ms"),
        *(
            ({"group_id": "g", "group_protocol": "consumer", name: value}, "not used with")
            for name, value in [
                ("session_timeout_ms", 9000),
                ("heartbeat_interval_ms", 1000),
                ("partition_assignment_strategy", "range"),
            ]
        ),
    ],
)
def test_what_contradicts_itself_in_a_group_is_refused(given: dict[str, Any], told: str) -> None:
    assert told in refusal(ConsumerSettings, **given)


def test_an_unknown_name_is_refused_with_the_nearest_in_the_same_spelling() -> None:
    assert refusal(ProducerSettings, linger=1).endswith("did you mean linger_ms?")
    with pytest.raises(ConfigError, match=r"fetch\.min\.byte: .* did you mean fetch\.min\.bytes\?"):
        ConsumerSettings.build({**AT, "fetch.min.byte": 1}, {})
    assert "no such setting" in refusal(AdminSettings, acks="all")


def test_names_of_what_is_not_here_say_what_to_do() -> None:
    assert "kernel" in refusal(ProducerSettings, send_buffer_bytes=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"bootstrap_servers": "localhost"},
        {"bootstrap_servers": "a:b:9092"},
        {"batch_size": "many"},
        {"batch_size": -1},
        {"compression_type": "brotli"},
        {"key_serializer": "xml"},
        {"key_serializer": 7},
        {"acks": 2},
        {"transactional_id": ""},
        {"acks": 1, "transactional_id": "t"},
        {"enable_idempotence": False, "transactional_id": "t"},
    ],
)
def test_a_bad_value_is_refused(wrong: dict[str, object]) -> None:
    assert next(iter(wrong)).replace("_", ".") in refusal(ProducerSettings, **wrong)


@pytest.mark.parametrize("wrong", ["localhost:9092", ["localhost:9092"], {7: 1}])
def test_what_is_no_mapping_of_names_is_told_how_servers_are_given(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"^config=.*bootstrap_servers=\"localhost:9092\""):
        ProducerSettings.build(wrong, {})


def test_bootstrap_servers_are_needed() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        ProducerSettings.build({}, {})


@pytest.mark.parametrize(
    "without",
    [{"acks": 0}, {"acks": 1}, {"retries": 0}, {"max_in_flight_requests_per_connection": 6}],
)
def test_idempotence_yields_to_what_excludes_it_but_not_when_it_was_asked_for(
    without: dict[str, int],
) -> None:
    assert not ProducerSettings.build(AT, without).enable_idempotence
    assert "drop one of the two" in refusal(ProducerSettings, **without, enable_idempotence=True)


def test_the_time_for_delivery_covers_at_least_one_try() -> None:
    assert (
        ProducerSettings.build(AT, {"request_timeout_ms": 200_000}).delivery_timeout_ms == 200_005
    )
    assert "at least" in refusal(ProducerSettings, delivery_timeout_ms=1000)


def test_a_callable_can_stand_for_a_serializer_or_partitioner() -> None:
    settings = ProducerSettings.build(AT, {"value_serializer": str.encode})
    assert settings.value_serializer is str.encode
    assert callable(ProducerSettings.build({**AT, "partitioner.class": max}, {}).partitioner_class)


def test_addresses() -> None:
    assert parse_address("localhost:9092") == ("localhost", 9092)
    assert parse_address("[::1]:9092") == ("::1", 9092)
    for wrong in ("localhost", ":9092", "localhost:0", "localhost:99999", "::1:9092", "a:٣"):
        assert parse_address(wrong) is None


def test_durations_for_resetting_by_time() -> None:
    assert parse_duration_ms("PT2H") == 7_200_000
    assert parse_duration_ms("P1DT0.5S") == 86_400_500
    assert parse_duration_ms("P") is None
    assert ConsumerSettings.build(AT, {"auto_offset_reset": "by_duration:PT1M"})
    assert "by_duration" in refusal(ConsumerSettings, auto_offset_reset="by_duration:1h")


@pytest.mark.parametrize("cls", [ProducerSettings, ConsumerSettings, AdminSettings])
def test_every_setting_that_is_taken_is_read_somewhere(cls: type[ClientSettings]) -> None:
    room = Path(scriba.client.settings.__file__).parent
    modules = [*room.rglob("*.py"), *(room.parent / "peers").rglob("*.py")]
    sources = "".join(p.read_text() for p in modules if p.name != "settings.py")
    for name, declared in cls.table.items():
        if not declared.feature:
            assert re.search(rf"\.{declared.attribute}\b", sources), f"{name} has no effect"


def test_a_keyword_of_none_takes_back_what_the_mapping_says() -> None:
    config = {**AT, "transactional.id": "orders", "linger.ms": 50}
    settings = ProducerSettings.build(config, {"transactional_id": None, "linger_ms": None})
    assert (settings.transactional_id, settings.linger_ms) == (None, 5)


def test_what_cannot_be_sent_as_text_is_refused() -> None:
    assert "client.id" in refusal(ClientSettings, client_id="\ud800")
