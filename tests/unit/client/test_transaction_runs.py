"""Transactions through a network and coordinators that fail in every way, in virtual time."""

import asyncio
from typing import Any

import pytest

from scriba.client import (
    AbortableTransactionError,
    FatalTransactionError,
    Producer,
    ProducerFenced,
    TimedOut,
    TransactionStateError,
)
from scriba.client.model import TopicPartition
from scriba.errors import ErrorCode
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.apis import ApiKey
from scriba.wire.messages import txn as wire
from scriba.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tests.unit.client.fake_cluster import HANG_UP, SILENCE, Hook
from tests.unit.client.fake_coordinator import FakeTransactions

HERE = TopicPartition("t", 0)

GENERATIONS = pytest.mark.parametrize("generation", [1, 2])


def producer(cluster: FakeTransactions, world: ProcessWorld, **settings: Any) -> Producer:
    return Producer(
        bootstrap_servers=cluster.bootstrap,
        transactional_id="orders",
        _ports=world,
        linger_ms=0,
        **settings,
    )


def refuse(code: ErrorCode) -> Hook:
    """Every partition of a Produce is refused."""

    def hook(broker: int, request: ProduceRequest) -> ProduceResponse:
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_responses=[
                        PartitionProduceResponse(index=p.index, error_code=code)
                        for p in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )

    return hook


def say(answer: Any) -> Hook:
    return lambda broker, request: answer


BUSY = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


@GENERATIONS
@pytest.mark.parametrize("code", BUSY)
def test_a_coordinator_that_is_busy_is_asked_again(generation: int, code: ErrorCode) -> None:
    cluster = FakeTransactions(generation=generation)
    cluster.topic("t")
    cluster.next(ApiKey.INIT_PRODUCER_ID, say(wire.InitProducerIdResponse(error_code=code)))
    cluster.next(ApiKey.END_TXN, say(wire.EndTxnResponse(error_code=code)))
    cluster.next(ApiKey.ADD_OFFSETS_TO_TXN, say(wire.AddOffsetsToTxnResponse(error_code=code)))

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world) as p, p.transaction() as transaction:
            await p.send("t", b"1")
            await transaction.send_offsets({HERE: 7}, "g")

    cluster.run(main)
    assert cluster.committed == [b"1"]
    assert cluster.offsets == {HERE: 7}
    assert len(cluster.requests(wire.EndTxnRequest)) == 2


@GENERATIONS
def test_a_coordinator_that_moves_is_found_again(generation: int) -> None:
    cluster = FakeTransactions(brokers=2, generation=generation)
    cluster.topic("t", 2)

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world) as p:
            for n in range(4):
                async with p.transaction() as transaction:
                    await p.enqueue("t", b"%d" % n, partition=n % 2)
                    await transaction.send_offsets({HERE: n}, "g")
                    cluster.coordinator = 3 - cluster.coordinator

    cluster.run(main)
    assert sorted(cluster.committed) == [b"0", b"1", b"2", b"3"]
    assert cluster.offsets == {HERE: 3}


@GENERATIONS
@pytest.mark.parametrize("lost", [HANG_UP, SILENCE])
def test_a_lost_answer_to_the_end_is_asked_for_again_and_ends_it_once(
    generation: int, lost: object
) -> None:
    cluster = FakeTransactions(generation=generation)
    cluster.topic("t")
    version = 5 if generation == 2 else 4

    def end_and_lose(broker: int, request: wire.EndTxnRequest) -> object:
        cluster.answer(broker, request, version)
        return lost

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, request_timeout_ms=1000) as p:
            for n in range(3):
                cluster.next(ApiKey.END_TXN, end_and_lose)
                async with p.transaction():
                    await p.send("t", b"%d" % n)

    cluster.run(main)
    assert cluster.committed == [b"0", b"1", b"2"]
    assert [committed for _, committed in cluster.ids["orders"].ends] == [True] * 3


@GENERATIONS
def test_a_commit_that_timed_out_goes_on_when_it_is_called_again(generation: int) -> None:
    cluster = FakeTransactions(generation=generation)
    cluster.topic("t")
    busy = say(wire.EndTxnResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, max_block_ms=2000) as p:
            await p.begin_transaction()
            await p.send("t", b"1")
            cluster.next(ApiKey.END_TXN, *[busy] * 50)
            with pytest.raises(TimedOut):
                await p.commit_transaction()
            with pytest.raises(TransactionStateError, match="may have happened"):
                await p.abort_transaction()
            with pytest.raises(TransactionStateError, match="commit_transaction"):
                await p.send("t", b"2")
            cluster.hooks.clear()
            await p.commit_transaction()
            async with p.transaction():
                await p.send("t", b"3")

    cluster.run(main)
    assert cluster.committed == [b"1", b"3"]


@GENERATIONS
def test_a_cancelled_commit_goes_on_when_it_is_called_again(generation: int) -> None:
    cluster = FakeTransactions(generation=generation)
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world) as p:
            await p.begin_transaction()
            await p.enqueue("t", b"1")
            ending = asyncio.ensure_future(p.commit_transaction())
            await asyncio.sleep(0)
            ending.cancel()
            await asyncio.wait([ending])
            await p.commit_transaction()

    cluster.run(main)
    assert cluster.committed == [b"1"]


@GENERATIONS
def test_a_batch_of_unknown_fate_is_never_part_of_the_next_transaction(generation: int) -> None:
    """Its answer never comes. The abort leaves the next transaction another epoch."""
    cluster = FakeTransactions(generation=generation)
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, request_timeout_ms=1000, delivery_timeout_ms=1500) as p:
            async with p.transaction():
                await p.send("t", b"1")
            before = cluster.ids["orders"].epoch
            cluster.next(ApiKey.PRODUCE, *[say(SILENCE)] * 3)
            await p.begin_transaction()
            with pytest.raises(AbortableTransactionError):
                await p.send("t", b"lost")
            with pytest.raises(AbortableTransactionError):
                await p.commit_transaction()
            await p.abort_transaction()
            assert cluster.ids["orders"].epoch > before
            cluster.hooks.clear()
            async with p.transaction():
                await p.send("t", b"2")

    cluster.run(main)
    assert cluster.committed == [b"1", b"2"]


@GENERATIONS
def test_records_that_wait_for_a_leader_or_a_topic_are_dropped_by_an_abort(
    generation: int,
) -> None:
    cluster = FakeTransactions(generation=generation)
    [log, _] = cluster.topic("t", 2)

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world) as p:
            await p.begin_transaction()
            await p.send("t", b"sent", partition=1)
            log.leader = -1
            p._cluster.stale()
            await p._cluster.next_update()
            waiting = await p.enqueue("t", b"no leader", partition=0)
            parked = p.send_nowait("later", b"no topic")
            await p.abort_transaction()
            for delivery in (waiting, parked):
                assert isinstance(delivery.exception(), AbortableTransactionError)
            log.leader = 1
            cluster.topic("later")
            async with p.transaction():
                await p.send("later", b"yes")

    cluster.run(main)
    assert cluster.committed == [b"yes"]


@GENERATIONS
def test_a_parked_record_that_turns_out_to_be_none_spoils_its_transaction(
    generation: int,
) -> None:
    cluster = FakeTransactions(generation=generation)
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world) as p:
            await p.begin_transaction()
            parked = [p.send_nowait("t", value) for value in (b"1", "no bytes", b"2")]
            with pytest.raises(AbortableTransactionError):
                await p.commit_transaction()
            assert all(delivery.done() for delivery in parked)
            await p.abort_transaction()
            async with p.transaction():
                p.send_nowait("t", b"yes")

    cluster.run(main)
    assert cluster.committed == [b"yes"]


@GENERATIONS
def test_a_batch_that_is_too_large_goes_in_parts_within_its_transaction(generation: int) -> None:
    cluster = FakeTransactions(generation=generation)
    [log] = cluster.topic("t")
    log.limit = 400
    values = [b"%02d" % n * 20 for n in range(30)]

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, batch_size=4000) as p:
            for _ in range(2):
                async with p.transaction():
                    for value in values:
                        p.send_nowait("t", value)

    cluster.run(main)
    assert cluster.committed == values * 2


def test_a_leader_that_waits_for_the_last_end_is_asked_again_soon() -> None:
    cluster = FakeTransactions()
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, retry_backoff_ms=10_000) as p, p.transaction():
            await p.send("t", b"0")
            cluster.next(ApiKey.PRODUCE, *[refuse(ErrorCode.CONCURRENT_TRANSACTIONS)] * 3)
            before = world.clock.mono_ms()
            await p.send("t", b"1")
            assert world.clock.mono_ms() - before < 200

    cluster.run(main)
    assert cluster.committed == [b"0", b"1"]


@GENERATIONS
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, AbortableTransactionError),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, AbortableTransactionError),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, FatalTransactionError),
        (ErrorCode.PRODUCER_FENCED, ProducerFenced),
    ],
)
def test_what_a_leader_refuses_fails_the_others_that_wait_as_well(
    generation: int, code: ErrorCode, kind: type[Exception]
) -> None:
    cluster = FakeTransactions(generation=generation)
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, batch_size=1) as p:
            await p.begin_transaction()
            await p.send("t", b"0")
            cluster.next(ApiKey.PRODUCE, refuse(code))
            deliveries = [p.send_nowait("t", b"%d" % n) for n in range(1, 9)]
            with pytest.raises(kind):
                await p.commit_transaction()
            assert any(isinstance(d.exception(), kind) for d in deliveries)
            if kind is AbortableTransactionError:
                await p.abort_transaction()
                async with p.transaction():
                    await p.send("t", b"yes")

    cluster.run(main)
    assert cluster.committed == ([b"yes"] if kind is AbortableTransactionError else [])


@GENERATIONS
def test_an_identity_that_the_coordinator_forgot_is_renewed_by_the_abort(generation: int) -> None:
    cluster = FakeTransactions(generation=generation)
    cluster.topic("t")
    forgotten = wire.EndTxnResponse(error_code=ErrorCode.INVALID_PRODUCER_ID_MAPPING)

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world) as p:
            cluster.next(ApiKey.END_TXN, say(forgotten))
            with pytest.raises(AbortableTransactionError):
                async with p.transaction():
                    await p.send("t", b"no")
            async with p.transaction():
                await p.send("t", b"yes")

    cluster.run(main)
    assert cluster.committed == [b"yes"]
    assert len(cluster.requests(wire.InitProducerIdRequest)) == 2


@GENERATIONS
def test_partitions_are_told_once_each_and_an_empty_transaction_asks_nothing(
    generation: int,
) -> None:
    cluster = FakeTransactions(generation=generation)
    cluster.topic("t", 3)

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world) as p:
            async with p.transaction():
                pass
            assert not cluster.requests(wire.EndTxnRequest)
            async with p.transaction():
                for n in range(30):
                    await p.send("t", b"%d" % n, partition=n % 3)

    cluster.run(main)
    told: list[int] = [
        index
        for request in cluster.requests(wire.AddPartitionsToTxnRequest)
        for topic in request.v3_and_below_topics
        for index in topic.partitions
    ]
    assert told == ([0, 1, 2] if generation == 1 else [])
    assert len(cluster.committed) == 30


def test_partitions_of_an_aborted_transaction_are_not_told_any_more() -> None:
    cluster = FakeTransactions(generation=1)
    cluster.topic("t")

    def busy(broker: int, request: wire.AddPartitionsToTxnRequest) -> object:
        code = ErrorCode.CONCURRENT_TRANSACTIONS
        result = wire.AddPartitionsToTxnPartitionResult(partition_error_code=code)
        topic = wire.AddPartitionsToTxnTopicResult(name="t", results_by_partition=[result])
        return wire.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world) as p:
            cluster.next(ApiKey.ADD_PARTITIONS_TO_TXN, *[busy] * 100)
            await p.begin_transaction()
            await p.enqueue("t", b"no")
            await asyncio.sleep(0.1)
            await p.abort_transaction()
            cluster.hooks.clear()
            await asyncio.sleep(5)
            assert not cluster.ids["orders"].partitions
            async with p.transaction():
                await p.send("t", b"yes")

    cluster.run(main)
    assert cluster.committed == [b"yes"]


def test_where_nobody_answers_starting_times_out() -> None:
    cluster = FakeTransactions()
    cluster.stop(1)

    async def main(world: ProcessWorld) -> None:
        p = producer(cluster, world, max_block_ms=5000)
        with pytest.raises(TimedOut):
            await p.__aenter__()
        with pytest.raises(Exception, match="closed"):
            await p.begin_transaction()

    cluster.run(main)


@GENERATIONS
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_record_that_another_thread_is_about_to_put_is_not_taken_into_an_ending_transaction(
    generation: int, end: str
) -> None:
    """It was looked at while the transaction was open, and is put when that is about to end."""
    cluster = FakeTransactions(generation=generation)
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        name, where = "orders", cluster.bootstrap
        lasting = Producer(
            bootstrap_servers=where, transactional_id=name, _ports=world, linger_ms=9
        )
        async with lasting as p:
            await p.begin_transaction()
            await p.send("t", b"first")
            record = ("t", b"second", None, None, None, ())
            p._prepare("t", b"second", None, ())
            open_batch = p.send_nowait("t", b"joined by nothing")
            ending = asyncio.ensure_future(getattr(p, f"{end}_transaction")())
            await asyncio.sleep(0)
            assert p._quick_put(*record) is None
            with pytest.raises(TransactionStateError):
                p._put_from_thread(*record)
            await ending
            assert open_batch.done()
            assert not p._accumulator.pending
            await p.begin_transaction()
            assert (await p.send("t", b"third")).partition == 0
            await p.commit_transaction()

    cluster.run(main)
    assert b"second" not in b"".join(bytes(data) for _, data in log.batches)


@GENERATIONS
def test_a_commit_that_an_abort_overtook_says_so_and_commits_nothing(generation: int) -> None:
    cluster = FakeTransactions(generation=generation)
    cluster.topic("t")
    [headless] = cluster.topic("headless")
    headless.leader = -1

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world) as p:
            await p.begin_transaction()
            await p.send("t", b"1")
            waiting = await p.enqueue("headless", b"2")
            committing = [asyncio.ensure_future(p.commit_transaction()) for _ in range(2)]
            await asyncio.sleep(1)
            await p.abort_transaction()
            for commit in committing:
                with pytest.raises(AbortableTransactionError, match="aborted while"):
                    await commit
            assert isinstance(waiting.exception(), AbortableTransactionError)
            async with p.transaction():
                await p.send("t", b"3")

    cluster.run(main)
    assert cluster.committed == [b"3"]


@GENERATIONS
def test_a_commit_that_a_close_overtook_says_so_and_commits_nothing(generation: int) -> None:
    cluster = FakeTransactions(generation=generation)
    cluster.topic("t")
    [headless] = cluster.topic("headless")
    headless.leader = -1

    async def main(world: ProcessWorld) -> None:
        p = producer(cluster, world)
        await p.begin_transaction()
        await p.send("t", b"1")
        await p.enqueue("headless", b"2")
        committing = asyncio.ensure_future(p.commit_transaction())
        await asyncio.sleep(1)
        await p.close()
        with pytest.raises(AbortableTransactionError, match="aborted while"):
            await committing

    cluster.run(main)
    assert cluster.committed == []


@GENERATIONS
def test_an_abort_overtakes_a_commit_that_looks_for_its_coordinator(generation: int) -> None:
    cluster = FakeTransactions(brokers=2, generation=generation)
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world) as p:
            await p.begin_transaction()
            await p.send("t", b"1")
            assert p._runner is not None
            home = p._runner._calls._home
            connect = home.connect
            looking, found = asyncio.Event(), asyncio.Event()

            async def slowly() -> Any:
                looking.set()
                await found.wait()
                return await connect()

            home.connect = slowly  # type: ignore[method-assign]
            committing = asyncio.ensure_future(p.commit_transaction())
            await looking.wait()
            aborting = asyncio.ensure_future(p.abort_transaction())
            await asyncio.sleep(0)
            found.set()
            with pytest.raises(AbortableTransactionError, match="aborted while"):
                await committing
            await aborting

    cluster.run(main)
    assert cluster.committed == []


@GENERATIONS
@pytest.mark.parametrize("cancelled", [False, True])
def test_what_a_block_raised_goes_on_though_the_abort_fails(
    generation: int, cancelled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = FakeTransactions(generation=generation)
    cluster.topic("t")
    busy = say(wire.EndTxnResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))

    async def fill(p: Producer) -> None:
        async with asyncio.timeout(1), p.transaction():
            await p.send("t", b"1")
            if cancelled:
                await asyncio.get_running_loop().create_future()
            raise KeyError("mine")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, max_block_ms=500) as p:
            cluster.next(ApiKey.END_TXN, *[busy] * 50)
            with pytest.raises(TimeoutError if cancelled else KeyError) as caught:
                await fill(p)
            assert not isinstance(caught.value, TimedOut)
            cluster.hooks.clear()
            await p.abort_transaction()
            async with p.transaction():
                await p.send("t", b"2")

    cluster.run(main)
    assert cluster.committed == [b"2"]
    assert "orders: not aborted: aborting the transaction did not come" in caplog.text


def test_what_a_block_raised_after_its_own_commit_goes_on() -> None:
    cluster = FakeTransactions()
    cluster.topic("t")

    async def fill(p: Producer) -> None:
        async with p.transaction():
            await p.send("t", b"1")
            await p.commit_transaction()
            raise KeyError("mine")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world) as p:
            with pytest.raises(KeyError, match="mine"):
                await fill(p)

    cluster.run(main)
    assert cluster.committed == [b"1"]
