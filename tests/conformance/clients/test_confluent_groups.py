"""confluent-kafka (librdkafka) in groups and transactions, with each protocol it knows."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    NewPartitions,
    NewTopic,
)

from tools.kafka.broker_fixtures import eventually
from tools.kafka.brokers import Broker

PATIENCE = 300.0
PROTOCOLS: dict[str, dict[str, Any]] = {
    "range": {"partition.assignment.strategy": "range"},
    "cooperative-sticky": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}
CLASSIC = {"session.timeout.ms": 45_000, "heartbeat.interval.ms": 100}


@pytest.fixture
def admin(swift: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": swift.bootstrap})


class Member:
    """A consumer, what it read, and what its listener was told, in order."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.read: list[tuple[str, int, int]] = []
        self.told: list[tuple[str, list[int]]] = []

    def subscribe(self, topic: str) -> None:
        def listen(what: str) -> Callable[[Consumer, list[TopicPartition]], None]:
            return lambda _, parts: self.told.append((what, sorted(p.partition for p in parts)))

        self.consumer.subscribe(
            [topic], on_assign=listen("gets"), on_revoke=listen("gives"), on_lost=listen("loses")
        )

    def poll(self) -> None:
        for message in self.consumer.consume(100, 0.02):
            error = message.error()
            if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                continue  # of a topic that a test has just deleted
            assert error is None, error
            place: Any = (message.topic(), message.partition(), message.offset())
            self.read.append(place)

    def held(self) -> list[int]:
        return sorted(part.partition for part in self.consumer.assignment())


@pytest.fixture
def join(swift: Broker) -> Iterator[Callable[..., Member]]:
    made: list[Member] = []

    def make(group: str, topic: str, protocol: str, **settings: Any) -> Member:
        extra = {name.replace("_", "."): value for name, value in settings.items()}
        consumer = Consumer(
            {
                "bootstrap.servers": swift.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 300,
                **PROTOCOLS[protocol],
                **({} if protocol == "consumer" else CLASSIC),
                **extra,
            }
        )
        made.append(Member(consumer))
        made[-1].subscribe(topic)
        return made[-1]

    yield make
    for one in made:
        one.consumer.close()


def polled(members: list[Member], told: Callable[[], bool]) -> None:
    """Polls all of them in turn until it is so."""
    deadline = time.monotonic() + PATIENCE
    while not told():
        assert time.monotonic() < deadline, [(m.held(), m.told, m.read[-3:]) for m in members]
        for one in members:
            one.poll()


def create(admin: AdminClient, topic: str, partitions: int) -> None:
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE)


def produce(cluster: Broker, topic: str, partitions: int, each: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
    for n in range(each * partitions):
        producer.produce(topic, b"%d" % n, partition=n % partitions)
    assert producer.flush(PATIENCE) == 0


def share(members: list[Member], partitions: int) -> bool:
    held = [one.held() for one in members]
    sizes = [len(each) for each in held]
    whole = sorted(p for each in held for p in each) == list(range(partitions))
    return whole and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_growth_reaches_every_member_and_moves_no_more_than_the_protocol_needs(
    swift: Broker, admin: AdminClient, join: Callable[..., Member], topic: str, protocol: str
) -> None:
    create(admin, topic, 2)
    group = [join(topic, topic, protocol) for _ in range(2)]
    polled(group, lambda: share(group, 2))
    before = [one.held() for one in group]
    for one in group:
        one.told.clear()
    admin.create_partitions([NewPartitions(topic, 6)])[topic].result(PATIENCE)
    polled(group, lambda: share(group, 6))
    produce(swift, topic, 6, 5)
    # A member that hears of the partitions late has all share out again, and reads again.
    polled(group, lambda: len({place for one in group for place in one.read}) == 30)
    for one, had in zip(group, before, strict=True):
        gave = [parts for what, parts in one.told if what == "gives" and parts]
        assert not [parts for what, parts in one.told if what == "loses"]
        if protocol == "range":
            assert gave[0] == had, "all is given up and shared out anew"
        else:
            assert not gave, "what it had it keeps"
            assert set(had) < set(one.held())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_static_member_comes_back_to_its_partitions_and_nobody_notices(
    swift: Broker, admin: AdminClient, join: Callable[..., Member], topic: str, protocol: str
) -> None:
    create(admin, topic, 4)
    stays = join(topic, topic, protocol, group_instance_id="stays")
    goes = join(topic, topic, protocol, group_instance_id="goes")
    polled([stays, goes], lambda: share([stays, goes], 4))
    had = goes.held()
    stays.told.clear()
    goes.consumer.close()
    again = join(topic, topic, protocol, group_instance_id="goes")
    polled([stays, again], lambda: again.held() == had)
    produce(swift, topic, 4, 5)
    polled([stays, again], lambda: len({*stays.read, *again.read}) == 20)
    assert not stays.told
    described = admin.describe_consumer_groups([topic])[topic].result(PATIENCE)
    assert sorted(one.group_instance_id for one in described.members) == ["goes", "stays"]
    wanted = ConsumerGroupType.CONSUMER if protocol == "consumer" else ConsumerGroupType.CLASSIC
    assert described.type is wanted

    if protocol == "consumer":
        intruder = join(topic, topic, protocol, group_instance_id="stays")
        message = intruder.consumer.poll(PATIENCE)
        assert message is not None
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError._FATAL
        assert "instance ID is still used by another member" in error.str()
    else:
        takes_over = join(topic, topic, protocol, group_instance_id="stays")
        polled([again, takes_over], lambda: share([again, takes_over], 4))
        message = stays.consumer.poll(PATIENCE)
        assert message is not None
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError._FATAL
        assert error.fatal() or "fenced" in error.str().lower()


def test_a_pattern_is_resolved_by_the_broker_for_every_member_on_its_own(
    swift: Broker, admin: AdminClient, join: Callable[..., Member], topic: str
) -> None:
    """With the consumer protocol, in RE2's syntax (KIP-848)."""
    first, second, other = f"{topic}-a1", f"{topic}-a2", f"{topic}-b1"
    for name in (first, second, other):
        create(admin, name, 1)
    member = join(topic, f"^{topic}-a[[:digit:]]", "consumer")
    guest = join(topic, f"^{topic}-b.", "consumer")
    both = [member, guest]

    def topics(one: Member) -> set[str]:
        return {part.topic for part in one.consumer.assignment()}

    polled(both, lambda: topics(member) == {first, second} and topics(guest) == {other})
    admin.delete_topics([first])[first].result(PATIENCE)
    polled(both, lambda: topics(member) == {second})


@pytest.mark.parametrize("protocol", ["range", "consumer"])
def test_paused_partitions_are_not_read_and_resume_where_they_were(
    swift: Broker, admin: AdminClient, join: Callable[..., Member], topic: str, protocol: str
) -> None:
    create(admin, topic, 2)
    produce(swift, topic, 2, 5)
    member = join(topic, topic, protocol)
    polled([member], lambda: len(member.read) == 10)
    member.consumer.pause([TopicPartition(topic, 0)])
    produce(swift, topic, 2, 5)
    polled([member], lambda: len(member.read) == 15)
    assert {part for _, part, _ in member.read[10:]} == {1}
    member.consumer.resume([TopicPartition(topic, 0)])
    polled([member], lambda: len(member.read) == 20)
    assert member.read[15:] == [(topic, 0, offset) for offset in range(5, 10)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_committed_offsets_keep_their_remarks_and_the_next_member_goes_on(
    swift: Broker, admin: AdminClient, join: Callable[..., Member], topic: str, protocol: str
) -> None:
    create(admin, topic, 3)
    produce(swift, topic, 3, 5)
    member = join(topic, topic, protocol)
    polled([member], lambda: len(member.read) == 15)
    offsets = [TopicPartition(topic, p, p + 1, metadata=f"remark {p}") for p in range(2)]
    member.consumer.commit(offsets=offsets, asynchronous=False)
    parts = [TopicPartition(topic, p) for p in range(3)]
    found = member.consumer.committed(parts, PATIENCE)
    assert [(part.offset, part.metadata) for part in found[:2]] == [
        (1, "remark 0"),
        (2, "remark 1"),
    ]
    assert found[2].offset < 0
    too_long = TopicPartition(topic, 0, 1, metadata="x" * 5000)
    with pytest.raises(KafkaException) as caught:
        member.consumer.commit(offsets=[too_long], asynchronous=False)
    assert caught.value.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE
    member.consumer.close()
    heir = join(topic, topic, protocol)
    polled([heir], lambda: len(heir.read) == 12)
    assert sorted(heir.read)[0] == (topic, 0, 1)


@pytest.mark.parametrize("protocol", ["range", "consumer"])
def test_read_process_write_is_exactly_once_and_a_stale_twin_is_fenced(
    swift: Broker, admin: AdminClient, join: Callable[..., Member], topic: str, protocol: str
) -> None:
    out = f"{topic}-out"
    create(admin, topic, 1)
    create(admin, out, 1)
    produce(swift, topic, 1, 10)
    settings = {"bootstrap.servers": swift.bootstrap, "transactional.id": topic, "log_level": 0}
    member = join(topic, topic, protocol, isolation_level="read_committed")
    polled([member], lambda: len(member.read) == 10)
    part = TopicPartition(topic, 0)

    def committed() -> int:
        return int(member.consumer.committed([part], PATIENCE)[0].offset)

    def transform(producer: Producer, upto: int) -> None:
        producer.begin_transaction()
        producer.produce(out, b"up to %d" % upto, partition=0)
        place = TopicPartition(topic, 0, upto)
        whose = member.consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([place], whose, PATIENCE)
        assert producer.flush(PATIENCE) == 0

    first = Producer(settings)
    first.init_transactions(PATIENCE)
    transform(first, 4)
    first.commit_transaction(PATIENCE)
    assert committed() == 4
    transform(first, 6)
    first.abort_transaction(PATIENCE)
    assert committed() == 4
    transform(first, 8)
    twin = Producer(settings)
    twin.init_transactions(PATIENCE)
    with pytest.raises(KafkaException) as caught:
        first.commit_transaction(PATIENCE)
    assert caught.value.args[0].fatal()
    assert caught.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    assert committed() == 4
    transform(twin, 10)
    twin.commit_transaction(PATIENCE)
    assert committed() == 10

    reader = join(f"{topic}-reader", out, protocol, isolation_level="read_committed")
    polled([reader], lambda: len(reader.read) == 2)
    seen = join(f"{topic}-sees-all", out, protocol, isolation_level="read_uncommitted")
    polled([seen], lambda: len(seen.read) == 4)


def test_offsets_of_a_member_that_the_group_gave_up_are_refused_in_a_transaction(
    swift: Broker, admin: AdminClient, join: Callable[..., Member], topic: str
) -> None:
    create(admin, topic, 2)
    producer = Producer({"bootstrap.servers": swift.bootstrap, "transactional.id": topic})
    producer.init_transactions(PATIENCE)
    member = join(topic, topic, "range")
    polled([member], lambda: member.held() == [0, 1])
    stale = member.consumer.consumer_group_metadata()
    other = join(topic, topic, "range")
    polled([member, other], lambda: share([member, other], 2))
    producer.begin_transaction()
    with pytest.raises(KafkaException) as caught:
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], stale, PATIENCE)
    assert caught.value.args[0].code() == KafkaError.ILLEGAL_GENERATION
    assert caught.value.args[0].txn_requires_abort()
    producer.abort_transaction(PATIENCE)


def test_lz4_is_used_by_librdkafka_now_that_groups_are_served(
    swift: Broker, admin: AdminClient, topic: str
) -> None:
    create(admin, topic, 1)
    producer = Producer({"bootstrap.servers": swift.bootstrap, "compression.type": "lz4"})
    producer.produce(topic, b"again and " * 1000, partition=0)
    assert producer.flush(PATIENCE) == 0
    eventually(lambda: bool(list(swift.log_dir.glob(f"{topic}-0/*.log"))))
    (log,) = swift.log_dir.glob(f"{topic}-0/*.log")
    data = log.read_bytes()
    assert data[22] & 7 == 3, "the codec of the batch"
    assert len(data) < 1000
