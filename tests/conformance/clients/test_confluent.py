"""confluent-kafka (librdkafka): produce, consume by assignment, look-ups, administration."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    ElectionType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from tools.kafka.broker_fixtures import eventually
from tools.kafka.brokers import PATIENCE, Broker
from tools.kafka.rawkafka import T0

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def admin(cluster: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


@pytest.fixture
def consumer(cluster: Broker) -> Iterator[Consumer]:
    made = new_consumer(cluster)
    yield made
    made.close()


def new_consumer(cluster: Broker, settings: Mapping[str, Any] | None = None) -> Consumer:
    """librdkafka wants a group's name even of a consumer that joins none."""
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"none-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            **(settings or {}),
        }
    )


def create(admin: AdminClient, topic: str, partitions: int = 1, **config: str) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    wanted = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings)
    admin.create_topics([wanted])[topic].result(timeout=300)


def produce(
    cluster: Broker,
    topic: str,
    values: list[bytes],
    partition: int = 0,
    times: list[int] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[Message]:
    """Delivered messages in order; any failure fails the test."""
    delivered: list[Message] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        delivered.append(message)

    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "linger.ms": 20, **(settings or {})}
    )
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            key=b"k%d" % number,
            partition=partition,
            timestamp=times[number] if times else 0,
            headers=[("n", b"%d" % number)],
            on_delivery=on_delivery,
        )
    assert producer.flush(300) == 0
    assert len(delivered) == len(values)
    return delivered


def take(consumer: Consumer, count: int, timeout: float = PATIENCE) -> list[Message]:
    taken: list[Message] = []
    deadline = time.monotonic() + timeout
    while len(taken) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(taken), timeout=1):
            error = message.error()
            assert error is None, error
            taken.append(message)
    assert len(taken) == count
    return taken


def listed(admin: AdminClient) -> set[str]:
    return set(admin.list_topics(timeout=300).topics)


def refusal(future: Any) -> int:
    """The error code that a future of the admin client ends with."""
    with pytest.raises(KafkaException) as caught:
        future.result(timeout=300)
    code: int = caught.value.args[0].code()
    return code


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_comes_back_byte_for_byte(
    cluster: Broker, consumer: Consumer, topic: str, codec: str
) -> None:
    values = [b"%d " % n * 40 for n in range(500)]
    delivered = produce(cluster, topic, values, settings={"compression.type": codec})
    assert [m.offset() for m in delivered] == list(range(500))
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    taken = take(consumer, 500)
    assert [m.value() for m in taken] == values
    assert [m.key() for m in taken] == [b"k%d" % n for n in range(500)]
    assert [m.offset() for m in taken] == list(range(500))
    assert taken[7].headers() == [("n", b"7")]
    assert all(m.leader_epoch() == 0 for m in taken)


@pytest.mark.parametrize(
    "settings",
    [{"acks": 0}, {"acks": 1}, {"acks": "all"}, {"enable.idempotence": True}],
    ids=["acks-0", "acks-1", "acks-all", "idempotent"],
)
def test_every_kind_of_acknowledgement(
    cluster: Broker,
    admin: AdminClient,
    consumer: Consumer,
    topic: str,
    settings: dict[str, Any],
) -> None:
    create(admin, topic)
    values = [b"value %d" % n for n in range(300)]
    produce(cluster, topic, values, settings={"batch.num.messages": 25, **settings})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [m.value() for m in take(consumer, 300)] == values


def test_a_fetch_may_begin_in_the_middle_of_a_batch(
    cluster: Broker, consumer: Consumer, topic: str
) -> None:
    produce(cluster, topic, [b"%d" % n for n in range(100)], settings={"compression.type": "lz4"})
    consumer.assign([TopicPartition(topic, 0, 37)])
    assert [m.offset() for m in take(consumer, 63)] == list(range(37, 100))
    consumer.seek(TopicPartition(topic, 0, 99))
    assert take(consumer, 1)[0].value() == b"99"


def test_offsets_beyond_the_log_are_out_of_range(
    cluster: Broker, consumer: Consumer, topic: str
) -> None:
    produce(cluster, topic, [b"only"])
    consumer.assign([TopicPartition(topic, 0, 5)])
    message = consumer.poll(300)
    assert message is not None
    error = message.error()
    assert error is not None
    assert error.code() == KafkaError._AUTO_OFFSET_RESET


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_plain_records_are_seen_at_both_isolation_levels(
    cluster: Broker, topic: str, isolation: str
) -> None:
    produce(cluster, topic, [b"a", b"b"])
    reader = new_consumer(cluster, {"isolation.level": isolation})
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [m.value() for m in take(reader, 2)] == [b"a", b"b"]
    reader.close()


def test_offsets_are_found_by_time(cluster: Broker, consumer: Consumer, topic: str) -> None:
    times = [T0 + 1000 * n for n in range(200)]
    produce(cluster, topic, [b"x"] * 200, times=times, settings={"batch.num.messages": 10})

    def at(timestamp: int) -> int:
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp)], timeout=300)
        return int(found.offset)

    assert at(T0) == 0
    assert at(T0 - 1) == 0
    assert at(T0 + 57_001) == 58
    assert at(T0 + 199_000) == 199
    assert at(T0 + 199_001) == OFFSET_END


def test_watermarks_follow_the_log(
    cluster: Broker, admin: AdminClient, consumer: Consumer, topic: str
) -> None:
    create(admin, topic)
    part = TopicPartition(topic, 0)
    assert consumer.get_watermark_offsets(part, timeout=300) == (0, 0)
    produce(cluster, topic, [b"x"] * 10)
    assert consumer.get_watermark_offsets(part, timeout=300) == (0, 10)
    admin.delete_records([TopicPartition(topic, 0, 4)])[part].result(timeout=300)
    assert consumer.get_watermark_offsets(part, timeout=300) == (4, 10)


def test_unknown_topics_come_into_being_when_written(cluster: Broker, topic: str) -> None:
    assert produce(cluster, topic, [b"first"])[0].offset() == 0


def test_records_over_the_topics_limit_are_refused(
    cluster: Broker, admin: AdminClient, consumer: Consumer, topic: str
) -> None:
    create(admin, topic, max_message_bytes="5000")
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for size in (100, 6000, 100):
        producer.produce(topic, b"x" * size, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(300) == 0
    assert errors[0] is None
    assert errors[1] is not None
    assert errors[1].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert errors[2] is None
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=300) == (0, 2)


def test_log_append_time_replaces_the_producers_clock(
    cluster: Broker, admin: AdminClient, consumer: Consumer, topic: str
) -> None:
    create(admin, topic, message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    produce(cluster, topic, [b"a", b"b"], times=[T0, T0 + 1], settings={"compression.type": "zstd"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    for message in take(consumer, 2):
        kind, timestamp = message.timestamp()
        assert kind == 2
        assert before - 1000 <= timestamp <= int(time.time() * 1000) + 1000


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_the_topics_own_codec_wins_over_the_producers(
    cluster: Broker, admin: AdminClient, consumer: Consumer, topic: str, codec: str
) -> None:
    create(admin, topic, compression_type=codec)
    values = [b"%d " % n * 50 for n in range(200)]
    produce(
        cluster, topic, values, settings={"compression.type": "gzip" if codec == "lz4" else "lz4"}
    )
    produce(cluster, topic, values, settings={"compression.type": "none"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [m.value() for m in take(consumer, 400)] == values * 2


def test_topics_are_made_described_and_deleted(
    cluster: Broker, admin: AdminClient, new_topic: Callable[[], str]
) -> None:
    first, second = new_topic(), new_topic()
    create(admin, first, partitions=3)
    create(admin, second)
    described = admin.describe_topics(TopicCollection([first]))[first].result(timeout=300)
    assert [p.id for p in described.partitions] == [0, 1, 2]
    assert all(p.leader.port == cluster.port and len(p.isr) == 1 for p in described.partitions)
    assert not described.is_internal
    eventually(lambda: {first, second} <= listed(admin))
    admin.delete_topics([first])[first].result(timeout=300)
    eventually(lambda: first not in listed(admin))
    gone = admin.describe_topics(TopicCollection([first]))[first]
    assert refusal(gone) == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert refusal(admin.delete_topics([first])[first]) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_topic_made_again_under_its_old_name_is_empty(
    cluster: Broker, admin: AdminClient, consumer: Consumer, topic: str
) -> None:
    create(admin, topic)
    produce(cluster, topic, [b"old"] * 5)
    admin.delete_topics([topic])[topic].result(timeout=300)
    create(admin, topic)
    assert produce(cluster, topic, [b"new"])[0].offset() == 0
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert take(consumer, 1)[0].value() == b"new"


def test_topics_that_cannot_be_are_refused_with_kafkas_reasons(
    admin: AdminClient, topic: str
) -> None:
    create(admin, topic)

    def attempt(wanted: NewTopic) -> int:
        return refusal(admin.create_topics([wanted])[wanted.topic])

    assert attempt(NewTopic(topic, 1, 1)) == KafkaError.TOPIC_ALREADY_EXISTS
    assert attempt(NewTopic("a/b", 1, 1)) == KafkaError.TOPIC_EXCEPTION
    assert attempt(NewTopic("x" * 250, 1, 1)) == KafkaError.TOPIC_EXCEPTION
    assert attempt(NewTopic(topic + "-b", 0, 1)) == KafkaError.INVALID_PARTITIONS
    assert attempt(NewTopic(topic + "-c", 1, 9)) == KafkaError.INVALID_REPLICATION_FACTOR
    bad = NewTopic(topic + "-d", 1, 1, config={"retention.ms": "soon"})
    assert attempt(bad) == KafkaError.INVALID_CONFIG
    bad = NewTopic(topic + "-e", 1, 1, config={"no.such.setting": "1"})
    assert attempt(bad) == KafkaError.INVALID_CONFIG


def test_validate_only_makes_nothing(admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)], validate_only=True)[topic].result(timeout=300)
    assert topic not in listed(admin)


def test_partitions_can_be_added_never_taken_away(
    cluster: Broker, admin: AdminClient, topic: str
) -> None:
    create(admin, topic, partitions=2)
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(timeout=300)
    eventually(lambda: len(admin.list_topics(timeout=300).topics[topic].partitions) == 4)
    assert produce(cluster, topic, [b"x"], partition=3)[0].offset() == 0
    fewer = admin.create_partitions([NewPartitions(topic, 3)])[topic]
    assert refusal(fewer) == KafkaError.INVALID_PARTITIONS


def config_of(admin: AdminClient, resource: ConfigResource) -> dict[str, ConfigEntry]:
    found: dict[str, ConfigEntry]
    found = admin.describe_configs([resource])[resource].result(timeout=300)
    return found


def source(entry: ConfigEntry) -> ConfigSource:
    return ConfigSource(entry.source)


def test_topic_settings_are_described_with_their_source(admin: AdminClient, topic: str) -> None:
    create(admin, topic, retention_ms="1234567")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    eventually(lambda: config_of(admin, resource)["retention.ms"].value == "1234567")
    found = config_of(admin, resource)
    assert found["retention.ms"].value == "1234567"
    assert source(found["retention.ms"]) == ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert not found["retention.ms"].is_default
    assert found["cleanup.policy"].value == "delete"
    assert found["cleanup.policy"].is_default
    assert found["max.message.bytes"].value == "1048588"
    assert source(found["max.message.bytes"]) == ConfigSource.DEFAULT_CONFIG


def test_settings_change_one_by_one_and_all_at_once(admin: AdminClient, topic: str) -> None:
    create(admin, topic, retention_ms="1000000", segment_bytes="2000000")
    entry, op = ConfigEntry, AlterConfigOpType

    def now(name: str) -> str | None:
        return config_of(admin, ConfigResource(ResourceType.TOPIC, topic))[name].value

    def change(*entries: ConfigEntry) -> Any:
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=list(entries))
        return admin.incremental_alter_configs([resource])[resource]

    change(
        entry("retention.ms", "2000000", incremental_operation=op.SET),
        entry("segment.bytes", None, incremental_operation=op.DELETE),
    ).result(timeout=300)
    eventually(lambda: now("retention.ms") == "2000000")
    eventually(lambda: now("segment.bytes") == "1073741824")
    bad = change(entry("retention.ms", "never", incremental_operation=op.SET))
    assert refusal(bad) == KafkaError.INVALID_CONFIG

    whole = ConfigResource(ResourceType.TOPIC, topic, set_config={"flush.messages": "77"})
    with pytest.deprecated_call():
        admin.alter_configs([whole])[whole].result(timeout=300)
    eventually(lambda: now("flush.messages") == "77")
    eventually(lambda: now("retention.ms") == "604800000")


def test_broker_settings_are_described_and_changed(admin: AdminClient) -> None:
    broker = str(next(iter(admin.list_topics(timeout=300).brokers)))
    name = "log.flush.interval.messages"

    def now() -> dict[str, ConfigEntry]:
        return config_of(admin, ConfigResource(ResourceType.BROKER, broker))

    def change(value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.BROKER, broker, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(timeout=300)

    assert now()["log.segment.bytes"].value == "1073741824"
    assert now()["node.id"].is_read_only
    change("123456", AlterConfigOpType.SET)
    eventually(lambda: now()[name].value == "123456")
    assert source(now()[name]) == ConfigSource.DYNAMIC_BROKER_CONFIG
    change(None, AlterConfigOpType.DELETE)
    eventually(lambda: now()[name].value == "9223372036854775807")
    assert source(now()[name]) == ConfigSource.DEFAULT_CONFIG


def test_list_offsets_earliest_latest_newest_and_by_time(
    cluster: Broker, admin: AdminClient, topic: str
) -> None:
    create(admin, topic)
    times = [T0, T0 + 9000, T0 + 1000, T0 + 2000]
    produce(cluster, topic, [b"x"] * 4, times=times)
    part = TopicPartition(topic, 0)

    specs: Any = OffsetSpec  # these functions of it have no types

    def at(spec: OffsetSpec, isolation: IsolationLevel) -> tuple[int, int]:
        asked = admin.list_offsets({part: spec}, isolation_level=isolation)
        found = asked[part].result(timeout=300)
        return found.offset, found.timestamp

    for isolation in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED):
        assert at(specs.earliest(), isolation) == (0, -1)
        assert at(specs.latest(), isolation) == (4, -1)
        assert at(specs.max_timestamp(), isolation) == (1, T0 + 9000)
        assert at(OffsetSpec.for_timestamp(T0 + 500), isolation) == (1, T0 + 9000)
        assert at(OffsetSpec.for_timestamp(T0 + 9001), isolation) == (-1, -1)


def test_records_before_an_offset_can_be_deleted(
    cluster: Broker, admin: AdminClient, consumer: Consumer, topic: str
) -> None:
    create(admin, topic)
    produce(cluster, topic, [b"%d" % n for n in range(20)])
    part = TopicPartition(topic, 0)
    deleted = admin.delete_records([TopicPartition(topic, 0, 12)])[part].result(timeout=300)
    assert deleted.low_watermark == 12
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [m.value() for m in take(consumer, 8)] == [b"%d" % n for n in range(12, 20)]
    beyond = admin.delete_records([TopicPartition(topic, 0, 21)])[part]
    assert refusal(beyond) == KafkaError.OFFSET_OUT_OF_RANGE
    everything = admin.delete_records([TopicPartition(topic, 0, OFFSET_END)])[part]
    assert everything.result(timeout=300).low_watermark == 20


def test_the_cluster_describes_itself(cluster: Broker, admin: AdminClient) -> None:
    found = admin.describe_cluster().result(timeout=300)
    assert len(found.cluster_id) == 22
    assert [node.port for node in found.nodes] == [cluster.port]
    assert found.controller.id == found.nodes[0].id


def test_leaders_that_lead_need_no_election(admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(timeout=300)
    places = [TopicPartition(topic, 0), TopicPartition(topic, 9)]
    elected = admin.elect_leaders(ElectionType.PREFERRED, places).result(timeout=300)
    codes = {place.partition: failure.code() for place, failure in elected.items()}
    assert codes == {0: KafkaError.ELECTION_NOT_NEEDED, 9: KafkaError.UNKNOWN_TOPIC_OR_PART}


def test_without_an_authorizer_there_are_no_lists(admin: AdminClient) -> None:
    place = (ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:ann", "*")
    grant = (AclOperation.READ, AclPermissionType.ALLOW)
    some = AclBindingFilter(*place, *grant)
    # Of a description that failed this binding makes an empty one, whatever the broker.
    assert admin.describe_acls(some).result(timeout=300) == []
    grant_of = AclBinding(*place, *grant)
    for each in (*admin.delete_acls([some]).values(), *admin.create_acls([grant_of]).values()):
        with pytest.raises(KafkaException) as refused:
            each.result(timeout=300)
        assert refused.value.args[0].code() == KafkaError.SECURITY_DISABLED


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("fault", ["key", "timestamp"])
def test_of_a_batch_with_bad_records_exactly_those_are_blamed(
    cluster: Broker, admin: AdminClient, topic: str, codec: str, fault: str
) -> None:
    """The others fail as well, but for no fault of theirs."""
    create(admin, topic, cleanup_policy="compact", message_timestamp_after_max_ms="3600000")
    far = int(time.time() * 1000) + 86_400_000
    told: dict[int, int] = {}
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "compression.type": codec,
            "linger.ms": 60_000,
            "batch.num.messages": 100,
        }
    )

    def note(number: int) -> Callable[[KafkaError | None, Message], None]:
        def tell(error: KafkaError | None, message: Message) -> None:
            told[number] = 0 if error is None else error.code()

        return tell

    # Messages for a topic that the client does not know yet are moved to their partition one by
    # one, while a flush already sends: then they are several batches.
    producer.produce(topic, b"known", b"known", 0)
    assert producer.flush(300) == 0
    for number in range(100):
        bad = number % 10 == 7
        key = None if bad and fault == "key" else b"k%d" % number
        producer.produce(
            topic,
            b"v" * 100,
            key,
            0,
            timestamp=far if bad and fault == "timestamp" else 0,
            on_delivery=note(number),
        )
    assert producer.flush(300) == 0
    named = {number for number, code in told.items() if code == KafkaError.INVALID_RECORD}
    others = {n for n, code in told.items() if code == KafkaError._INVALID_DIFFERENT_RECORD}
    assert named == {7, 17, 27, 37, 47, 57, 67, 77, 87, 97}, told
    # librdkafka may send the first ones apart while it learns of the topic: those are written.
    written = {number for number, code in told.items() if code == 0}
    assert others, told
    assert len(told) == 100
    assert named | others | written == set(range(100)), told
