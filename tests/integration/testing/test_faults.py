"""Faults on the real wire, as programs meet them."""

import random
import threading
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer
from kafka import errors as kafka_python_errors

from scriba.errors import ErrorCode
from scriba.testing import Broker
from tools.kafka.broker_fixtures import eventually


def values(broker: Broker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.records(topic)]


def delivered(producer: Producer, topic: str, value: bytes) -> KafkaError | None:
    """What the delivery report says."""
    reports: list[KafkaError | None] = []
    producer.produce(topic, value, on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(60) == 0
    return reports[0]


def test_a_fatal_error_reaches_the_delivery_report(broker: Broker) -> None:
    broker.create_topic("t")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    assert delivered(producer, "t", b"one") is None
    broker.fail_next("Produce", "MESSAGE_TOO_LARGE", times=2)
    for value in (b"two", b"three"):
        error = delivered(producer, "t", value)
        assert error is not None
        assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert delivered(producer, "t", b"four") is None
    assert values(broker, "t") == [b"one", b"four"]


def test_a_retriable_error_is_tried_again(broker: Broker) -> None:
    broker.create_topic("t")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "retry.backoff.ms": 1})
    broker.fail_next("Produce", ErrorCode.NOT_ENOUGH_REPLICAS, times=3)
    assert delivered(producer, "t", b"one") is None
    assert values(broker, "t") == [b"one"]


def test_every_client_understands_the_error(broker: Broker) -> None:
    broker.create_topic("t")
    broker.fail_next("Produce", "TOPIC_AUTHORIZATION_FAILED")
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    with pytest.raises(kafka_python_errors.TopicAuthorizationFailedError):
        producer.send("t", b"v").get(60)
    producer.close()
    assert values(broker, "t") == []


async def test_a_coroutine_meets_the_error(local: Broker) -> None:
    from aiokafka.errors import TopicAuthorizationFailedError

    local.create_topic("t")
    local.fail_next("Produce", "TOPIC_AUTHORIZATION_FAILED")
    async with AIOKafkaProducer(bootstrap_servers=local.bootstrap_servers) as producer:
        with pytest.raises(TopicAuthorizationFailedError):
            await producer.send_and_wait("t", b"one")
        await producer.send_and_wait("t", b"two")
    assert values(local, "t") == [b"two"]


def test_a_commit_is_refused(broker: Broker) -> None:
    broker.create_topic("t")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    where = [TopicPartition("t", 0, 1)]
    consumer.commit(offsets=where, asynchronous=False)
    broker.fail_next("OffsetCommit", "OFFSET_METADATA_TOO_LARGE")
    with pytest.raises(KafkaException) as refused:
        consumer.commit(offsets=[TopicPartition("t", 0, 2)], asynchronous=False)
    assert refused.value.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE
    assert broker.committed("g") == {("t", 0): 1}
    consumer.close()


def test_a_topic_is_not_created(broker: Broker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    broker.fail_next("CreateTopics", "POLICY_VIOLATION")
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic("t", 1)])["t"].result(300)
    assert refused.value.args[0].code() == KafkaError.POLICY_VIOLATION
    assert broker.topics() == []
    assert broker.create_topic("t") == "t", "the test itself meets no fault"


def test_a_transaction_has_to_be_aborted(broker: Broker) -> None:
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "books"}
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("t", b"one")
    assert producer.flush(60) == 0
    broker.fail_next("EndTxn", "INVALID_TXN_STATE")
    with pytest.raises(KafkaException):
        producer.commit_transaction(60)
    assert values(broker, "t") == []


def test_faults_may_be_for_one_client(broker: Broker) -> None:
    broker.create_topic("t")
    broker.fail_next("Produce", "MESSAGE_TOO_LARGE", times=100, client_id="unlucky")
    for name, error in (("lucky", None), ("unlucky", KafkaError.MSG_SIZE_TOO_LARGE)):
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": name})
        told = delivered(producer, "t", name.encode())
        assert (told and told.code()) == error
    broker.clear_faults()
    assert values(broker, "t") == [b"lucky"]


def test_an_answer_that_is_lost_makes_no_duplicate_of_an_idempotent_producer(
    broker: Broker,
) -> None:
    broker.create_topic("t")
    settings: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap_servers,
        "retry.backoff.ms": 1,
        "reconnect.backoff.ms": 1,
        "max.in.flight.requests.per.connection": 1,
    }
    for idempotent, written in ((True, 1), (False, 2)):
        broker.drop_next("Produce")
        producer = Producer({**settings, "enable.idempotence": idempotent})
        assert delivered(producer, "t", str(idempotent).encode()) is None
        assert values(broker, "t").count(str(idempotent).encode()) == written


def test_a_request_that_is_lost_is_sent_again(broker: Broker) -> None:
    broker.create_topic("t")
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": False}
    )
    broker.drop_next("Produce", carried_out=False)
    assert delivered(producer, "t", b"v") is None
    assert values(broker, "t") == [b"v"]


def test_dropped_connections_come_back(broker: Broker) -> None:
    broker.create_topic("t")
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "reconnect.backoff.ms": 1,
            "enable.idempotence": True,  # what was under way may be sent again
        }
    )
    assert delivered(producer, "t", b"one") is None
    assert broker.drop_connections() >= 1
    assert delivered(producer, "t", b"two") is None
    assert values(broker, "t") == [b"one", b"two"]


def test_an_answer_is_held_back(broker: Broker) -> None:
    broker.create_topic("t")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    assert delivered(producer, "t", b"one") is None
    broker.delay("Produce", 700)
    producer.produce("t", b"two")
    assert producer.flush(0.2) == 1
    eventually(lambda: values(broker, "t") == [b"one", b"two"])
    assert producer.flush(60) == 0


def test_a_consumer_goes_on_after_errors_of_fetch(broker: Broker) -> None:
    broker.produce("t", "one")
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["t"])
    assert [message.value() for message in consumer.consume(1, 60)] == [b"one"]
    broker.fail_next("Fetch", "KAFKA_STORAGE_ERROR", times=2)
    broker.fail_next("Metadata", "LEADER_NOT_AVAILABLE", times=2)
    broker.produce("t", "two")
    found: list[bytes | None] = []

    def read() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value())
        return bool(found)

    eventually(read)
    assert found == [b"two"]
    consumer.close()


def test_what_makes_no_sense_is_refused(local: Broker) -> None:
    with pytest.raises(ValueError, match="never answered with REBALANCE_IN_PROGRESS"):
        local.fail_next("Produce", "REBALANCE_IN_PROGRESS")
    with pytest.raises(ValueError, match="no API 'Prodduce' is served; did you mean Produce"):
        local.fail_next("Prodduce", "MESSAGE_TOO_LARGE")
    with pytest.raises(ValueError, match="at least 1"):
        local.fail_next("Produce", "MESSAGE_TOO_LARGE", times=0)
    with pytest.raises(ValueError, match="at least a millisecond"):
        local.delay("Produce", 0)


def test_a_broker_is_asked_from_many_threads(broker: Broker) -> None:
    failures: list[BaseException] = []

    def use(name: str) -> None:
        try:
            for number in range(20):
                broker.produce(name, str(number))
            assert len(broker.records(name)) == 20
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=use, args=(f"t{n}",)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_a_large_request_that_is_held_back_is_whole(local: Broker, codec: str) -> None:
    local.create_topic("t", max_message_bytes=8 << 20)
    producer = Producer(
        {
            "bootstrap.servers": local.bootstrap_servers,
            "message.max.bytes": 8 << 20,
            "compression.type": codec,
        }
    )
    value = random.Random(1).randbytes(6 << 20)  # more than is judged at once on the loop
    local.delay("Produce", 50)
    assert delivered(producer, "t", value) is None
    assert values(local, "t") == [value]
