"""Time that tests let pass: what a broker does after minutes and days, without them."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

import scriba.testing
from scriba.testing import Broker, Group
from tools.kafka.broker_fixtures import eventually
from tools.kafka.rawkafka import Connection, fetch, fetched


def values(broker: Broker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.records(topic)]


def test_retention_deletes_what_is_old(broker: Broker) -> None:
    broker.create_topic("t", retention_ms=3_600_000)
    broker.produce("t", "old")
    broker.clock.advance(minutes=50)
    assert values(broker, "t") == [b"old"]
    broker.clock.advance(hours=1)
    assert values(broker, "t") == []
    assert broker.produce("t", "new").offset == 1
    broker.clock.advance(minutes=50)
    assert values(broker, "t") == [b"new"]


def test_a_week_of_retention_is_over_at_once(broker: Broker) -> None:
    broker.produce("t", "old")
    broker.clock.advance(days=6)
    assert values(broker, "t") == [b"old"]
    broker.clock.advance(timedelta(days=9))
    assert values(broker, "t") == []


def test_records_carry_the_brokers_time(local: Broker) -> None:
    local.create_topic("t", message_timestamp_type="LogAppendTime")
    local.clock.advance(days=3)
    producer = Producer({"bootstrap.servers": local.bootstrap_servers})
    producer.produce("t", b"v")
    assert producer.flush(60) == 0
    (record,) = local.records("t")
    assert 3 * 86400 - 60 < record.timestamp / 1000 - time.time() < 3 * 86400 + 60
    assert abs(local.clock.time() - record.timestamp / 1000) < 60


class Poller:
    """A consumer in its own thread: what it is asked for, and whether it was thrown out."""

    def __init__(self, broker: Broker, protocol: str) -> None:
        settings = {"session.timeout.ms": 30_000, "heartbeat.interval.ms": 10_000}
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": "g",
                "group.protocol": protocol,
                **(settings if protocol == "classic" else {}),
            }
        )
        self._consumer.subscribe(["t"])
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def _poll(self) -> None:
        while not self._stopped.is_set():
            self._consumer.poll(0.05)

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._consumer.close()


@contextmanager
def member(broker: Broker, protocol: str) -> Iterator[str]:
    """A consumer that is in its group; the id of its member."""
    poller = Poller(broker, protocol)
    try:
        eventually(lambda: [group.state for group in broker.groups()] == ["Stable"])
        ((only,),) = [group.members for group in broker.groups()]
        yield only
    finally:
        poller.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_that_is_silent_is_thrown_out(broker: Broker, protocol: str) -> None:
    broker.create_topic("t")
    with member(broker, protocol):
        pass  # it leaves by itself
    assert [group.members for group in broker.groups()] == [()]
    with member(broker, protocol) as mine:
        broker.clock.advance(seconds=10)
        assert [group.members for group in broker.groups()] == [(mine,)]
        # To the broker it was silent for two minutes: longer than any session here.
        broker.drop_connections()
        broker.fail_next("FindCoordinator", "COORDINATOR_NOT_AVAILABLE", times=1000)
        broker.clock.advance(minutes=2)
        assert [group.members for group in broker.groups()] == [()]
        broker.clear_faults()


MEMBER = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "g"})
consumer.subscribe(["t"])
while True:
    consumer.poll(0.1)
    if consumer.assignment():
        print("joined", flush=True)
"""


def test_a_killed_member_makes_room_for_the_next(broker: Broker) -> None:
    """Without the clock, its partitions would be nobody's until its session has ended."""
    broker.create_topic("t")
    command = [sys.executable, "-c", MEMBER, broker.bootstrap_servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as dying:
        assert dying.stdout is not None
        assert dying.stdout.readline() == b"joined\n"
        dying.kill()
    (group,) = broker.groups()
    assert (group.state, len(group.members)) == ("Stable", 1)
    broker.clock.advance(minutes=1)
    assert broker.groups() == [Group("g", "Empty", "classic", ())]


def test_a_transaction_times_out(broker: Broker) -> None:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": "books",
            "transaction.timeout.ms": 60_000,
        }
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("t", b"never")
    assert producer.flush(60) == 0
    broker.clock.advance(30)
    assert [each.state for each in broker.transactions()] == ["Ongoing"]
    broker.clock.advance(minutes=2)
    assert [each.state for each in broker.transactions()] == ["CompleteAbort"]
    broker.produce("t", "after")
    assert values(broker, "t") == [b"after"]
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(60)
    assert refused.value.args[0].code() in (
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_TXN_STATE,
    )


def test_committed_offsets_expire(broker: Broker) -> None:
    broker.create_topic("t")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
    consumer.close()
    broker.clock.advance(days=6)
    assert broker.committed("g") == {("t", 0): 1}
    broker.clock.advance(days=2)
    assert broker.committed("g") == {}
    assert broker.groups() == []


def test_a_fetch_that_waits_is_answered(broker: Broker) -> None:
    broker.create_topic("t")
    port = int(broker.bootstrap_servers.rpartition(":")[2])
    with Connection(port) as connection:
        for _ in range(2):  # the ordinary way, then the fast path of one that repeats itself
            answers: list[object] = []

            def ask(answers: list[object] = answers) -> None:
                answers.append(connection.call(fetch(0, "t", max_wait_ms=3_600_000), 12))

            asking = threading.Thread(target=ask)
            asking.start()
            asking.join(0.5)
            assert asking.is_alive()
            broker.clock.advance(minutes=61)
            asking.join(60)
            assert not asking.is_alive()
            assert fetched(answers[0]).records in (b"", None)


def test_connections_that_are_idle_are_closed(broker: Broker) -> None:
    with Connection(int(broker.bootstrap_servers.rpartition(":")[2])) as connection:
        broker.clock.advance(minutes=9)
        connection.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.socket.recv(1)
        broker.clock.advance(minutes=2)
        connection.socket.settimeout(60)
        assert connection.socket.recv(1) == b""


def test_a_delayed_answer_comes_with_the_time(broker: Broker) -> None:
    broker.create_topic("t")
    broker.delay("Produce", 3_600_000)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("t", b"v")
    eventually(lambda: values(broker, "t") == [b"v"])
    assert producer.flush(0.2) == 1
    broker.clock.advance(hours=2)
    assert producer.flush(60) == 0
    assert values(broker, "t") == [b"v"]


def test_compaction_is_done_when_its_time_has_come(local: Broker) -> None:
    local.create_topic(
        "t",
        cleanup_policy="compact",
        segment_ms=60_000,
        min_cleanable_dirty_ratio=0.01,
        min_compaction_lag_ms=0,
    )
    for text in ("one", "two", "three"):
        local.produce("t", text, key="k")
    local.clock.advance(minutes=2)
    local.produce("t", "other", key="j")
    local.clock.advance(minutes=10)
    assert values(local, "t") == [b"three", b"other"]


def test_the_clock_goes_on_over_a_restart(broker: Broker) -> None:
    broker.clock.advance(days=2)
    for kill in (False, True):
        broker.restart(kill=kill)
        assert broker.clock.time() - time.time() > 2 * 86400 - 60
    broker.produce("t", "v")
    broker.clock.advance(days=15)
    assert values(broker, "t") == []


def test_the_broker_stays_in_its_cluster(broker: Broker) -> None:
    """However long it was: a broker is not thrown out by its own controller."""
    broker.create_topic("t")
    for seconds in (1, 7, 20, 400, 86400, 40 * 86400):
        broker.clock.advance(seconds)
        broker.produce("t", "v")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("t", b"w")
    assert producer.flush(60) == 0


def test_time_does_not_go_back(local: Broker) -> None:
    with pytest.raises(ValueError, match="does not go back"):
        local.clock.advance(-1)
    with scriba.testing.broker() as other:
        other.clock.advance(0)
