"""What happens to a producer between two of its steps, in virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from scriba.client.errors import BufferFull
from scriba.client.model import TopicPartition
from scriba.peers.errors import Closed, TimedOut
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.apis import ApiKey
from tests.unit.client.clients import producer, values
from tests.unit.client.fake_cluster import HANG_UP, SILENCE, FakeCluster

LITTLE: dict[str, Any] = {"buffer_memory": 2000, "batch_size": 500, "linger_ms": 0}


async def until(holds: Callable[[], bool]) -> None:
    """Lets the others go on, one step each, until something holds."""
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never holds")


@pytest.mark.parametrize("steps", range(4))
def test_memory_is_not_lost_however_late_its_taker_is_cancelled(steps: int) -> None:
    cluster = FakeCluster()
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, **LITTLE) as p:
            await p.send("t", b"first")
            accumulator = p._accumulator
            await accumulator.room(accumulator.memory)
            sender = asyncio.ensure_future(p.enqueue("t", b"x" * 100))
            await until(lambda: bool(accumulator.waiting))
            accumulator.release(accumulator.memory)
            for _ in range(steps):
                await asyncio.sleep(0)
            sender.cancel()
            await asyncio.wait([sender])
            await p.flush()
            assert accumulator.used == 0

    cluster.run(main)


def test_memory_that_one_gives_up_waiting_for_goes_to_the_next_at_once() -> None:
    cluster = FakeCluster()
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, **LITTLE) as p:
            await p.send("t", b"first")
            accumulator = p._accumulator
            await accumulator.room(1000)  # a batch that takes its time
            large = asyncio.ensure_future(p.enqueue("t", b"x" * 1500))
            small = asyncio.ensure_future(p.enqueue("t", b"y"))
            await until(lambda: len(accumulator.waiting) == 2)
            large.cancel()
            async with asyncio.timeout(1):
                await (await small)
            accumulator.release(1000)

    cluster.run(main)


def test_who_waits_for_memory_when_the_producer_closes_is_told() -> None:
    cluster = FakeCluster()
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        p = producer(cluster, world, **LITTLE)
        await p.send("t", b"first")
        sending = [asyncio.ensure_future(p.send("t", b"%d" % n + b"x" * 300)) for n in range(30)]
        await until(lambda: bool(p._accumulator.waiting))
        await p.close()
        async with asyncio.timeout(1):
            told = await asyncio.gather(*sending, return_exceptions=True)
        assert {type(fate) for fate in told} >= {Closed}
        assert all(isinstance(fate, Closed) or not isinstance(fate, Exception) for fate in told)
        assert p._accumulator.used == 0

    cluster.run(main)


def test_a_flush_does_not_wait_for_a_record_that_was_refused() -> None:
    """The first of its topic: somebody began to look for that before the buffer was full."""
    cluster = FakeCluster()
    cluster.topic("t")
    cluster.topic("new")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, **LITTLE | {"linger_ms": 1000}) as p:
            await p.send("t", b"first")
            await p.enqueue("t", b"x" * 400)
            with pytest.raises(BufferFull):
                p.send_nowait("new", b"y" * 1800)
            async with asyncio.timeout(5):
                await p.flush()
            assert (await p.send("new", b"z")).offset == 0

    cluster.run(main)


def test_a_topic_that_vanishes_while_its_batch_is_compressed_stops_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    [other] = cluster.topic("u")

    async def main(world: ProcessWorld) -> None:
        settings: dict[str, Any] = {"compression_type": "gzip", "batch_size": 1 << 20}
        async with producer(cluster, world, linger_ms=0, **settings) as p:
            await p.send("t", b"first")
            await p.send("u", b"first")
            run = p._ports.offload.run

            async def forgetting(work: Any, *args: Any) -> Any:
                p._cluster.forget(["t"])
                return await run(work, *args)

            monkeypatch.setattr(p._ports.offload, "run", forgetting)
            delivery = p.send_nowait("t", b"x" * 70_000)
            assert (await delivery).offset == 1
            assert (await p.send("u", b"second")).offset == 1

    cluster.run(main)
    assert (len(log.batches), len(other.batches)) == (2, 2)


def test_a_batch_that_an_old_picture_closes_is_sent_all_the_same() -> None:
    """Of two senders one still sees the topic as it was before a partition was added."""
    cluster = FakeCluster()
    cluster.topic("t", partitions=1)

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, linger_ms=50) as p:
            await p.send("t", b"first")
            old = p._cluster.topics["t"]
            cluster.topics["t"].logs.append(type(cluster.topics["t"].logs[0])(1))
            delivery = await p.enqueue("t", b"new", partition=1)
            p._router.put(old, b"old", None, 0, None, ())
            async with asyncio.timeout(5):
                assert (await delivery).partition == 1

    cluster.run(main)


def test_a_parked_record_that_fails_does_not_fail_those_that_were_placed_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, **LITTLE | {"max_block_ms": 1000}) as p:
            deliveries = [p.send_nowait("t", b"%d" % n) for n in range(3)]
            # None of the memory comes back for the fourth: it is parked in little, placed in much.
            whole = p._accumulator.memory
            put, calls = p._unresolved._put, []

            def put_three(*args: Any) -> Any:
                calls.append(args)
                if len(calls) > 3:
                    raise BufferFull("no room", whole)
                return put(*args)

            monkeypatch.setattr(p._unresolved, "_put", put_three)
            last = [p.send_nowait("t", b"%d" % n) for n in range(3, 5)]
            await p._accumulator.room(100)
            assert [(await delivery).offset for delivery in deliveries] == [0, 1, 2]
            for delivery in last:
                with pytest.raises(BufferFull):
                    await delivery
            p._accumulator.release(100)
            assert p._accumulator.used == 0
            await p.flush(1000)

    cluster.run(main)
    assert values(log) == [b"0", b"1", b"2"]


def test_nothing_is_begun_anew_once_the_producer_is_closed() -> None:
    """A batch was to be tried again after a pause that ends behind the close."""
    cluster = FakeCluster(brokers=2)
    log = cluster.topic("t")[0]

    async def main(world: ProcessWorld) -> None:
        p = producer(cluster, world, linger_ms=0, retry_backoff_ms=1000)
        await p.send("t", b"first")
        cluster.next(ApiKey.PRODUCE, lambda broker, request: SILENCE)
        p.send_nowait("t", b"second")
        [queue] = p._accumulator.queues()
        await until(lambda: bool(queue.in_flight))
        p._cluster.learn_leader(TopicPartition("t", 0), 2, 5, [])
        before = dict(p._sender._destinations)
        p._sender._again(queue, queue.in_flight[0], TimedOut("late"))
        await p.close(0)
        await asyncio.sleep(5)
        assert p._sender._destinations == before
        assert not len(p._cluster.tasks)

    cluster.run(main)
    assert values(log) == [b"first"]


@pytest.mark.parametrize("seed", range(8))
def test_a_record_that_comes_as_its_broker_is_lost_waits_for_a_producer_id(seed: int) -> None:
    """The request for one fails while more is to be sent; the broker is found again any time."""
    cluster = FakeCluster(seed=seed)
    cluster.topic("t")
    cluster.next(ApiKey.INIT_PRODUCER_ID, *[lambda broker, request: HANG_UP] * 20)

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, linger_ms=0, retry_backoff_ms=1) as p:
            await p.partitions("t")
            first = p.send_nowait("t", b"first")
            while not first.done():
                p._sender.ready_all()
                await asyncio.sleep(world.rng.below(4000) * 1e-6)
            assert (await first).offset == 0

    cluster.run(main)


def test_batch_that_the_old_leader_took_and_never_answered_is_not_written_again() -> None:
    """The new leader has it. Whatever is sent behind it meanwhile, it is still known there."""
    cluster = FakeCluster(brokers=2)
    (log,) = cluster.topic("t")

    async def work(world: ProcessWorld) -> None:
        settings = {"linger_ms": 0, "metadata_max_age_ms": 500, "request_timeout_ms": 10_000}
        async with producer(cluster, world, **settings) as p:
            await p.send("t", b"0")

            def take_and_say_nothing(broker: int, request: Any) -> object:
                cluster._produce(broker, request, 13)
                return SILENCE

            cluster.next(ApiKey.PRODUCE, take_and_say_nothing)
            deliveries = [await p.enqueue("t", b"1")]
            await asyncio.sleep(0.1)
            log.elect(2)
            await asyncio.sleep(1)  # until the producer knows
            for n in range(2, 30):
                deliveries.append(await p.enqueue("t", b"%d" % n))
                await asyncio.sleep(0.1)
            places = [(await delivery).offset for delivery in deliveries]
            assert places == list(range(1, 30))

    cluster.run(work)
    assert values(log) == [b"%d" % n for n in range(30)]
