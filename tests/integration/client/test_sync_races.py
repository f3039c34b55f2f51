"""Threads that meet at the synchronous clients: one closes, interrupts or commits as another calls.

Where it matters which comes first, one is made to wait for the other at a chosen place.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from itertools import islice
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest

from scriba.client import (
    BufferFull,
    ClientError,
    Closed,
    NewTopic,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    TimedOut,
)
from scriba.client.sync import host as sync_host
from scriba.client.sync import producer as sync_producer
from scriba.client.sync.clients import SyncDelivery
from scriba.client.sync.host import Host
from tests.typed import present
from tools.kafka.brokers import Broker

NOBODY = "127.0.0.1:1"
"""An address where nobody listens."""


class Meanwhile:
    """A thread that calls something, and what it got."""

    def __init__(self, call: Any, *args: Any) -> None:
        self.got: list[Any] = []
        self._thread = Thread(target=self._run, args=(call, *args), daemon=True)
        self._thread.start()

    def _run(self, call: Any, *args: Any) -> None:
        try:
            self.got.append(call(*args))
        except BaseException as failure:
            self.got.append(failure)

    def result(self) -> Any:
        self._thread.join(60)
        assert self.got, "it hangs"
        return self.got[0]


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


@contextlib.contextmanager
def busy(host: Host) -> Iterator[None]:
    """While the loop does something else, and what it is told waits."""
    began: SimpleQueue[None] = SimpleQueue()
    go_on: SimpleQueue[None] = SimpleQueue()

    def work() -> None:
        began.put(None)
        go_on.get()

    host.poke(work)
    began.get()
    yield
    go_on.put(None)


def test_a_call_that_waits_when_the_client_is_closed_is_told() -> None:
    host = Host()
    waiting = Meanwhile(host.run, forever())
    host.run(asyncio.sleep(0))
    host.close()
    assert isinstance(waiting.result(), Closed)


def test_a_call_that_comes_as_the_loop_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    run = sync_host.run  # type: ignore[attr-defined] # what it imports, to be replaced there
    late: list[Any] = []

    def run_and_call(main: Any) -> None:
        run(main)
        late.append(Meanwhile(host.run, forever()).result())

    monkeypatch.setattr(sync_host, "run", run_and_call)
    host = Host()
    host.close()
    assert isinstance(late[0], Closed)
    with pytest.raises(Closed):
        host.run(forever())
    with pytest.raises(Closed):
        host.poke(lambda: None)


def test_calls_that_come_behind_the_close_are_told() -> None:
    host = Host()
    with busy(host):
        closing = Meanwhile(host.close)
        waiting = [Meanwhile(host.run, forever()) for _ in range(5)]
    assert closing.result() is None
    assert {type(call.result()) for call in waiting} == {Closed}


def test_all_who_close_wait_until_it_is_closed() -> None:
    producer = SyncProducer(bootstrap_servers=NOBODY, max_block_ms=500)
    delivery = producer.send_nowait("t", b"x")
    closers = [Meanwhile(producer.close) for _ in range(8)]
    assert [closer.result() for closer in closers] == [None] * 8
    assert isinstance(delivery.exception(), TimedOut)
    with pytest.raises(Closed):
        producer.send_nowait("t", b"y")


def test_many_records_for_a_topic_that_never_comes_fail_together() -> None:
    """Each waits for max.block.ms, but not one after the other."""
    with SyncProducer(bootstrap_servers=NOBODY, max_block_ms=1000) as producer:
        deliveries = [producer.send_nowait("t", b"%d" % n) for n in range(1000)]
        failures = [delivery.exception() for delivery in deliveries]
    assert {type(failure) for failure in failures} == {TimedOut}
    assert "max.block.ms=1000" in str(failures[-1])
    assert "cannot connect" in str(failures[-1])


@pytest.mark.parametrize("how", ["send", "send_nowait", "partitions"])
def test_a_topic_that_is_not_there_holds_up_no_other(broker: Broker, topic: str, how: str) -> None:
    """Though one thread has handed over so many records for it that it has to wait."""
    with SyncAdmin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1)])
    mistyped = topic + "-"
    with SyncProducer(
        bootstrap_servers=broker.bootstrap, buffer_memory=10_000, max_block_ms=600_000
    ) as producer:
        producer._client._cluster._auto_create = False

        def fill() -> Any:
            while True:
                producer.send_nowait(mistyped, b"x" * 1000)

        def use() -> Any:
            if how == "send":
                return [producer.send(topic, b"%d" % n).offset for n in range(3)]
            if how == "send_nowait":
                sent = [producer.send_nowait(topic, b"%d" % n) for n in range(3)]
                return [delivery.result().offset for delivery in sent]
            return producer.partitions(topic)

        filling = Meanwhile(fill)
        while producer._unsettled < 11:
            time.sleep(0.001)
        assert Meanwhile(use).result() == ([0] if how == "partitions" else [0, 1, 2])
        assert not filling.got
        assert producer._unsettled == 11
        producer.close(timeout_ms=0)
        assert isinstance(filling.result(), Closed)


def test_failures_of_two_topics_in_turn_are_logged_once_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with SyncProducer(bootstrap_servers=NOBODY, max_block_ms=100) as producer:
        sent = [producer.send_nowait(name, b"x") for _ in range(5) for name in ("one", "two")]
        assert all(isinstance(delivery.exception(), TimedOut) for delivery in sent)
    for name in ("one", "two"):
        assert caplog.text.count(f"{name}: 1 records were not delivered: the metadata") == 1


def test_a_time_limit_holds_while_records_wait_for_their_topic() -> None:
    producer = SyncProducer(bootstrap_servers=NOBODY)
    delivery = producer.send_nowait("t", b"x")
    with pytest.raises(TimedOut, match="still on its way"):
        delivery.result(timeout_ms=10)
    with pytest.raises(TimedOut, match="still wait"):
        producer.flush(timeout_ms=10)
    producer.close(timeout_ms=10)
    assert isinstance(delivery.exception(), Closed)


def test_an_error_in_the_block_does_not_wait_for_what_it_left_behind() -> None:
    with (
        contextlib.suppress(KeyError),
        SyncProducer(bootstrap_servers=NOBODY) as producer,
    ):
        delivery = producer.send_nowait("t", b"x")
        raise KeyError
    assert isinstance(delivery.exception(), Closed)


def test_the_producers_own_thread_is_never_made_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that sends what the client logs runs there."""
    monkeypatch.setattr(sync_producer, "_HANDED_OVER", 2)
    with SyncProducer(bootstrap_servers=NOBODY, max_block_ms=500) as producer:

        async def log() -> list[ClientError | None]:
            sent = [producer.send_nowait("log", b"%d" % n) for n in range(4)]
            with pytest.raises(ClientError, match="own thread"):
                producer.flush()
            with pytest.raises(ClientError, match="own thread"):
                producer.close()
            return [delivery.exception() if delivery.done() else None for delivery in sent]

        told = producer._host.run(log())
        assert [type(error) for error in told[:2]] == [type(None)] * 2
        assert isinstance(told[-1], BufferFull)


def test_between_a_look_at_the_producer_and_a_put_it_is_not_closed(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SyncProducer(bootstrap_servers=broker.bootstrap, linger_ms=0) as producer:
        producer.send(topic, b"first")
        put = producer._client._router.put
        lock: Any = producer._client._accumulator.lock

        def watched(*args: Any) -> Any:
            assert Meanwhile(lock.acquire, False).result() is False, "a close could come now"
            return put(*args)

        monkeypatch.setattr(producer._client._router, "put", watched)
        assert producer.send_nowait(topic, b"second").result().offset == 1


def test_threads_that_send_while_it_is_closed_know_of_each_record(
    broker: Broker, topic: str
) -> None:
    """Written, or told that it is not; and no thread is left behind."""
    with SyncAdmin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 3)])
    for round_ in range(3):
        producer = SyncProducer(
            bootstrap_servers=broker.bootstrap,
            linger_ms=round_,
            batch_size=99,
            buffer_memory=5000,
        )
        producer.partitions(topic)
        began: SimpleQueue[None] = SimpleQueue()

        def send(
            producer: SyncProducer = producer, began: "SimpleQueue[None]" = began
        ) -> list[Any]:
            sent: list[Any] = []
            try:
                while True:
                    sent.append(producer.send_nowait(topic, b"x" * 20))
                    if len(sent) == 100:
                        began.put(None)
            except Closed:
                return sent

        senders = [Meanwhile(send) for _ in range(3)]
        for _ in senders:
            began.get()
        producer.close()
        for sender in senders:
            sent = sender.result()
            assert all(delivery.done() for delivery in sent)
            errors = [delivery.exception() for delivery in sent]
            assert {type(error) for error in errors} <= {type(None), Closed}
            assert errors[:100] == [None] * 100


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("what", ["interrupted", "failed"])
def test_records_of_a_poll_that_never_returned_are_given_again(
    broker: Broker, topic: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SyncProducer(bootstrap_servers=broker.bootstrap) as producer:
        for n in range(10):
            producer.send(topic, b"%d" % n)
    with SyncConsumer(
        bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", group_id=topic
    ) as consumer:
        consumer.assign(consumer.partitions(topic))
        first = consumer.poll(10_000, max_records=3)
        if what == "interrupted":
            poll = consumer._client.poll

            async def interrupted(*args: Any) -> Any:
                records = await poll(*args)
                sync_host._caller.get().calls.put(interrupt)
                return records

            with monkeypatch.context() as patch:
                patch.setattr(consumer._client, "poll", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    consumer.poll(10_000, max_records=3)
        else:
            consumer._committed.append(interrupt)  # what a callback of a commit raises
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(10_000, max_records=3)
        seen = [record.offset for record in first]
        while len(seen) < 10:
            seen += [record.offset for record in consumer.poll(10_000)]
        assert seen == list(range(10))


@pytest.mark.parametrize("call", ["poll", "close", "unsubscribe"])
def test_what_a_listener_cannot_do_is_told_in_its_thread(
    quick_broker: Broker, topic: str, call: str
) -> None:
    with SyncProducer(bootstrap_servers=quick_broker.bootstrap) as producer:
        producer.send(topic, b"x")
    with SyncConsumer(
        bootstrap_servers=quick_broker.bootstrap, group_id=topic, auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe(topic, on_assigned=lambda partitions: getattr(consumer, call)())
        with pytest.raises(ClientError, match=f"a listener cannot {call}"):
            consumer.poll(60_000)
        assert [record.value for record in consumer.poll(60_000)] == [b"x"]


def test_what_waits_for_its_topic_takes_no_more_memory_than_the_buffer() -> None:
    most = 0
    with SyncProducer(bootstrap_servers=NOBODY, max_block_ms=100, buffer_memory=1000) as producer:
        for _ in range(10):
            producer.send_nowait("t", b"x" * 300)
            most = max(most, producer._bytes)
    assert 300 <= most <= 1000


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def cut_connections(producer: SyncProducer) -> None:
    """Has them break, whatever is under way."""

    def cut() -> None:
        for link in list(producer._client._cluster._connections._connections.values()):
            if link.connection is not None:
                link.connection._lost(None)

    producer._host.poke(cut)


CROWDS: dict[str, dict[str, Any]] = {
    "at once": {"linger_ms": 0, "batch_size": 300},
    "soon": {"linger_ms": 5, "batch_size": 2000, "buffer_memory": 20_000},
    "crammed": {"linger_ms": 0, "batch_size": 400, "buffer_memory": 3000, "max_request_size": 900},
    "packed": {"linger_ms": 1, "batch_size": 100_000, "compression_type": "gzip"},
    "in transactions": {"linger_ms": 0, "batch_size": 300, "transactional_id": "crowd"},
}


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("how", CROWDS)
def test_a_crowd_of_threads_loses_doubles_and_disorders_nothing(
    broker: Broker, topic: str, how: str
) -> None:
    """While connections break, threads flush, and others wait for single records."""
    settings = CROWDS[how]
    with SyncAdmin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 2)])
    producer = SyncProducer(
        bootstrap_servers=broker.bootstrap, retry_backoff_ms=10, reconnect_backoff_ms=10, **settings
    )

    def send(thread: int, first: int, last: int) -> list[SyncDelivery]:
        sent = []
        for n in range(first, last):
            sent.append(producer.send_nowait(topic, b"%d %d" % (thread, n), key=b"%d" % thread))
            if n % 250 == 10 * thread:
                cut_connections(producer)
            elif n % 150 == 10 * thread:
                producer.flush()
            elif n % 100 == 10 * thread:
                sent[-1].result()
        return sent

    def crowd(first: int, last: int) -> None:
        senders = [Meanwhile(send, thread, first, last) for thread in range(3)]
        for sender in senders:
            sent = sender.result()
            assert not isinstance(sent, BaseException), sent
            deliveries.extend(sent)

    deliveries: list[SyncDelivery] = []
    with producer:
        if "transactional_id" in settings:
            for first in (0, 250):
                with producer.transaction():
                    crowd(first, first + 250)
        else:
            crowd(0, 500)
    assert [delivery.exception() for delivery in deliveries] == [None] * 1500
    assert producer._client._accumulator.used == 0
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    with SyncConsumer(
        bootstrap_servers=broker.bootstrap,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:
        consumer.assign(consumer.partitions(topic))
        for record in islice(consumer, 1500):
            thread, n = map(int, present(record.value).split())
            seen[thread].append(n)
        assert consumer.poll(0) == []
    assert seen == {thread: list(range(500)) for thread in range(3)}


def test_records_that_fail_before_they_are_in_a_batch_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with SyncProducer(bootstrap_servers=NOBODY, max_block_ms=100) as producer:
        sent = [producer.send_nowait("t", b"x") for _ in range(5)]
        assert all(isinstance(delivery.exception(), TimedOut) for delivery in sent)
    assert caplog.text.count("t: 1 records were not delivered: the metadata of topic t") == 1
    with SyncProducer(bootstrap_servers=NOBODY, value_serializer="json") as producer:
        refused = producer.send_nowait("t", object())
        assert refused.exception() is not None
    assert "t: 1 records were not delivered: the value of a record for t" in caplog.text
