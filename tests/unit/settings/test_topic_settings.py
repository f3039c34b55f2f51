"""What a topic gets: its own words over the node's, and how both are shown."""

import pytest

from scriba.config import ConfigError, Kind, Source, Synonym
from scriba.settings import (
    NodeSettings,
    TopicSettings,
    describe_broker,
    describe_cluster,
    describe_topic,
)

NODE = NodeSettings.parse({})


def test_a_topic_without_overrides_shares_the_nodes_object() -> None:
    assert TopicSettings.resolve({}, NODE) is TopicSettings.resolve({}, NODE)
    assert TopicSettings.resolve({}, NODE) == TopicSettings()


def test_overrides_win_over_the_node() -> None:
    node = NodeSettings.parse({"log.segment.bytes": "2097152", "log.retention.hours": "1"})
    topic = TopicSettings.resolve({"retention.ms": "5"}, node)
    assert (topic.segment_bytes, topic.retention_ms) == (2_097_152, 5)


def test_text_is_read_as_kafka_reads_it() -> None:
    topic = TopicSettings.resolve(
        {
            "retention.ms": " +7 ",
            "unclean.leader.election.enable": "TRUE",
            "cleanup.policy": "delete,delete",
        },
        NODE,
    )
    assert topic.retention_ms == 7
    assert topic.unclean_leader_election_enable is True
    assert topic.cleanup_policy == ("delete",)
    assert TopicSettings.resolve({"cleanup.policy": ""}, NODE).cleanup_policy == ()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"retention.ms": "-2"}, "retention.ms=-2: must be at least -1"),
        ({"retention.ms": "1e3"}, "retention.ms=1e3: must be a whole number"),
        ({"retention.ms": "9" * 20}, "must be from -9223372036854775808"),
        ({"segment.bytes": "5"}, "must be at least 1048576"),
        ({"compression.type": "GZIP"}, "must be one of uncompressed, zstd"),
        ({"cleanup.policy": "Delete"}, "must be one of compact, delete"),
        ({"cleanup.policy": "compact,keep"}, "must be one of compact, delete"),
        ({"min.cleanable.dirty.ratio": "1.5"}, "must be from 0 to 1"),
        (
            {"min.compaction.lag.ms": "7", "max.compaction.lag.ms": "6"},
            "min.compaction.lag.ms=7: must not exceed max.compaction.lag.ms (6)",
        ),
        ({"remote.storage.enable": "true"}, "needs tiered storage"),
        ({"retention.sm": "5"}, "no such setting; did you mean retention.ms?"),
    ],
)
def test_a_wrong_override_is_refused(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TopicSettings.checked(overrides, NODE)
    assert message in str(caught.value)


def test_what_another_controller_let_pass_is_left_aside_and_the_rest_is_in_force() -> None:
    foreign = {"remote.storage.enable": "true", "of.a.later.release": "1", "segment.bytes": "5"}
    topic = TopicSettings.resolve({**foreign, "retention.ms": "5"}, NODE)
    assert topic == TopicSettings.resolve({"retention.ms": "5"}, NODE)
    lags = {"min.compaction.lag.ms": "7", "max.compaction.lag.ms": "6"}
    assert TopicSettings.resolve(lags, NODE).max_compaction_lag_ms == 6
    described = {row.name: row.value for row in describe_topic({**foreign, **lags}, NODE)}
    assert described["segment.bytes"] == "1073741824"


def test_the_default_of_a_feature_to_come_is_accepted() -> None:
    given = {"remote.storage.enable": "false", "preallocate": "false"}
    assert TopicSettings.resolve(given, NODE) == TopicSettings()


def test_a_topic_may_be_compacted_deleted_or_both() -> None:
    for text in ("compact", "compact,delete", "delete,compact"):
        topic = TopicSettings.resolve({"cleanup.policy": text}, NODE)
        assert topic.cleanup_policy == tuple(text.split(","))


def test_a_large_number_is_shown_as_kafka_shows_it() -> None:
    shown = {row.name: row.value for row in describe_broker(NODE)}
    assert shown["log.cleaner.io.max.bytes.per.second"] == "1.7976931348623157E308"
    slow = NodeSettings.parse({"log.cleaner.io.max.bytes.per.second": "50000000"})
    [row] = describe_broker(slow, ["log.cleaner.io.max.bytes.per.second"])
    assert row.value == "5.0E7"


def test_small_segments_are_there_for_tests() -> None:
    topic = TopicSettings.resolve({"internal.segment.bytes": "1000"}, NODE)
    assert topic.segment_bytes == 1000


def test_settings_are_frozen_and_compare_by_value() -> None:
    topic = TopicSettings(segment_bytes=5)
    with pytest.raises(AttributeError):
        topic.segment_bytes = 6  # type: ignore[misc]
    assert topic.replace(segment_bytes=1 << 30) == TopicSettings()
    assert repr(topic) == "TopicSettings(segment_bytes=5)"
    with pytest.raises(TypeError):
        topic.replace(segment_byte=1)


def test_a_described_topic_tells_every_layer_that_had_a_word() -> None:
    node = NodeSettings.parse({"log.segment.bytes": "2097152"})
    node = node.with_dynamic({"log.segment.bytes": "3145728"}, {"log.segment.bytes": "4194304"})
    [row] = describe_topic({"segment.bytes": "1048576"}, node, ["segment.bytes", "no.such"])
    assert (row.value, row.source, row.kind) == (
        "1048576",
        Source.DYNAMIC_TOPIC_CONFIG,
        Kind.INT,
    )
    assert row.synonyms == (
        Synonym("segment.bytes", "1048576", Source.DYNAMIC_TOPIC_CONFIG),
        Synonym("log.segment.bytes", "4194304", Source.DYNAMIC_BROKER_CONFIG),
        Synonym("log.segment.bytes", "3145728", Source.DYNAMIC_DEFAULT_BROKER_CONFIG),
        Synonym("log.segment.bytes", "2097152", Source.STATIC_BROKER_CONFIG),
        Synonym("log.segment.bytes", "1073741824", Source.DEFAULT_CONFIG),
    )


def test_retention_that_comes_from_the_hours_counts_as_default_as_in_kafka() -> None:
    [row] = describe_topic({}, NODE, ["retention.ms"])
    assert (row.value, row.source, row.synonyms) == ("604800000", Source.DEFAULT_CONFIG, ())
    node = NodeSettings.parse({"log.retention.ms": "5"})
    [row] = describe_topic({}, node, ["retention.ms"])
    assert (row.value, row.source) == ("5", Source.STATIC_BROKER_CONFIG)
    assert [word.name for word in row.synonyms] == ["log.retention.ms", "log.retention.hours"]


def test_a_whole_description_leaves_out_what_is_internal_and_not_set() -> None:
    names = [row.name for row in describe_topic({}, NODE)]
    assert "internal.segment.bytes" not in names
    assert len(names) == 34
    given = describe_topic({"internal.segment.bytes": "9"}, NODE)
    assert "internal.segment.bytes" in [row.name for row in given]


def test_a_broker_shows_what_is_read_only_and_where_values_come_from() -> None:
    node = NodeSettings.parse({"num.partitions": "3"}).with_dynamic({"max.connections": "9"}, {})
    rows = {row.name: row for row in describe_broker(node)}
    assert rows["num.partitions"].source is Source.STATIC_BROKER_CONFIG
    assert rows["num.partitions"].read_only
    assert rows["max.connections"].source is Source.DYNAMIC_DEFAULT_BROKER_CONFIG
    assert not rows["max.connections"].read_only
    assert rows["log.retention.ms"].value is None
    assert rows["log.retention.hours"].value == "168"
    assert rows["log.retention.hours"].is_default


def test_the_clusters_description_holds_only_what_was_set_for_the_cluster() -> None:
    node = NODE.with_dynamic({"max.connections": "9"}, {"message.max.bytes": "5"})
    assert [(row.name, row.value) for row in describe_cluster(node)] == [("max.connections", "9")]
