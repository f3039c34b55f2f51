"""The producer against scripted brokers in virtual time."""

import asyncio
import traceback
from itertools import pairwise
from typing import Any

import pytest

from scriba.client.errors import BufferFull, RecordError
from scriba.errors import ErrorCode
from scriba.peers.errors import BrokerError, ClientError, Closed, TimedOut
from scriba.records.batch import Record
from scriba.testing.sim.world.net import NetFaults
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.apis import ApiKey
from scriba.wire.messages.metadata import MetadataRequest
from scriba.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from scriba.wire.messages.txn import InitProducerIdRequest, InitProducerIdResponse
from tests.unit.client.clients import producer, records, values
from tests.unit.client.fake_cluster import HANG_UP, PASS, SILENCE, FakeCluster


def refuse(code: ErrorCode, message: str | None = None, **more: Any) -> Any:
    """A hook that answers every partition of a Produce with an error."""

    def hook(broker: int, request: ProduceRequest) -> ProduceResponse:
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=t.name,
                    topic_id=t.topic_id,
                    partition_responses=[
                        PartitionProduceResponse(
                            index=p.index, error_code=code, error_message=message, **more
                        )
                        for p in t.partition_data
                    ],
                )
                for t in request.topic_data
            ]
        )

    return hook


def write_then_hang_up(cluster: FakeCluster) -> Any:
    """A hook that writes the records and closes the connection before it answers."""

    def hook(broker: int, request: ProduceRequest) -> object:
        cluster._produce(broker, request, 13)
        return HANG_UP

    return hook


def test_a_record_arrives_as_it_was_sent() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, key_serializer="str", value_serializer="json") as p:
            where = await p.send(
                "t", {"n": 1}, "k", timestamp=1_700_000_000_000, headers={"h": b"1", "none": None}
            )
            assert (where.topic, where.partition, where.offset) == ("t", 0, 0)
            assert where.timestamp == 1_700_000_000_000
            assert (await p.send("t", None, "k")).offset == 1

    cluster.run(main)
    first, second = records(log)
    assert first == Record(0, 1_700_000_000_000, b"k", b'{"n":1}', (("h", b"1"), ("none", None)))
    assert second.value is None


def test_records_of_one_moment_share_a_batch() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, linger_ms=5) as p:
            deliveries = [await p.enqueue("t", b"%d" % n) for n in range(50)]
            assert [(await d).offset for d in deliveries] == list(range(50))

    cluster.run(main)
    assert len(log.batches) == 1


def test_a_full_batch_does_not_linger() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, linger_ms=60_000, batch_size=520) as p:
            deliveries = [await p.enqueue("t", b"x" * 100) for _ in range(8)]
            await deliveries[3]
            assert not deliveries[-1].done()
            await p.flush()
            assert deliveries[-1].result().offset == 7

    cluster.run(main)
    assert [header.count for header, _ in log.batches] == [4, 4]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(codec: str) -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(
            cluster, world, compression_type=codec, batch_size=100_000, linger_ms=50
        ) as p:
            for n in range(900):
                await p.enqueue("t", b"value %d " % n * 30)

    cluster.run(main)
    assert values(log) == [b"value %d " % n * 30 for n in range(900)]
    assert {header.codec.name.lower() for header, _ in log.batches} == {codec}


def test_records_wait_for_a_topic_that_is_not_known_yet() -> None:
    cluster = FakeCluster()

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world) as p:
            early = [p.send_nowait("late", b"%d" % n) for n in range(3)]
            assert not early[0].done()
            waiting = asyncio.ensure_future(_wait(early[1]))
            await asyncio.sleep(1)
            cluster.topic("late", 1)
            assert (await p.send("late", b"3")).offset == 3
            assert [(await d).offset for d in early] == [0, 1, 2]
            assert (await waiting) == 1

    cluster.run(main)
    assert values(cluster.topics["late"].logs[0]) == [b"0", b"1", b"2", b"3"]


async def _wait(delivery: Any) -> int:
    offset: int = (await delivery).offset
    return offset


def test_a_topic_that_never_comes_fails_after_max_block_ms() -> None:
    cluster = FakeCluster()

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, max_block_ms=2000) as p:
            parked = p.send_nowait("never", b"x")
            with pytest.raises(TimedOut, match=r"never.*2000 ms.*UNKNOWN_TOPIC") as caught:
                await p.send("never", b"y")
            assert caught.value.retriable
            assert isinstance(caught.value.cause, BrokerError)
            with pytest.raises(TimedOut):
                await parked

    cluster.run(main)


def test_nobody_there_is_told_with_the_cause() -> None:
    cluster = FakeCluster()
    cluster.stop(1)

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, max_block_ms=3000) as p:
            with pytest.raises(TimedOut, match="cannot connect to b1:9092"):
                await p.send("t", b"x")

    cluster.run(main)


def test_a_new_leader_is_followed_at_once_by_its_own_word() -> None:
    cluster = FakeCluster(brokers=2)
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, retry_backoff_ms=10_000, linger_ms=0) as p:
            await p.send("t", b"0")
            log.elect(2)
            before = world.clock.mono_ms()
            assert (await p.send("t", b"1")).offset == 1
            assert world.clock.mono_ms() - before < 1000

    cluster.run(main)
    assert values(log) == [b"0", b"1"]


def test_a_new_leader_that_has_yet_to_hear_of_it_is_asked_again_soon() -> None:
    """The one before it knew first, and said so."""
    cluster = FakeCluster(brokers=2)
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, retry_backoff_ms=10_000, linger_ms=0) as p:
            await p.send("t", b"0")
            older = LeaderIdAndEpoch(leader_id=1, leader_epoch=log.epoch)
            log.elect(2)
            late = refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=older)
            cluster.next(ApiKey.PRODUCE, PASS_ON, late, late)
            before = world.clock.mono_ms()
            assert (await p.send("t", b"1")).offset == 1
            assert world.clock.mono_ms() - before < 1000

    cluster.run(main)
    assert values(log) == [b"0", b"1"]


def test_a_lost_answer_is_asked_for_again_and_nothing_is_written_twice() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, linger_ms=0) as p:
            await p.send("t", b"0")
            cluster.next(ApiKey.PRODUCE, write_then_hang_up(cluster))
            assert (await p.send("t", b"1")).offset == 1
            assert (await p.send("t", b"2")).offset == 2

    cluster.run(main)
    assert values(log) == [b"0", b"1", b"2"]


def test_an_answer_that_never_comes_ends_the_connection_and_is_tried_again() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, linger_ms=0, request_timeout_ms=2000) as p:
            await p.send("t", b"0")
            cluster.next(ApiKey.PRODUCE, lambda b, r: SILENCE)
            before = world.clock.mono_ms()
            await p.send("t", b"1")
            assert 2000 <= world.clock.mono_ms() - before < 4000

    cluster.run(main)
    assert values(log) == [b"0", b"1"]


def test_order_is_kept_with_five_in_flight_when_the_first_is_refused() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, linger_ms=0, batch_size=1) as p:
            await p.send("t", b"first")
            cluster.next(ApiKey.PRODUCE, refuse(ErrorCode.NOT_ENOUGH_REPLICAS))
            deliveries = [await p.enqueue("t", b"%d" % n) for n in range(20)]
            assert [(await d).offset for d in deliveries] == list(range(1, 21))

    cluster.run(main)
    assert values(log) == [b"first", *(b"%d" % n for n in range(20))]
    assert len(log.batches) == 21


def test_what_holds_records_up_is_told_and_not_the_gap_that_it_leaves() -> None:
    """The batches behind one that was refused are refused too, for their numbers alone."""
    cluster = FakeCluster()
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, linger_ms=0, batch_size=1) as p:
            await p.send("t", b"first")
            cluster.next(ApiKey.PRODUCE, refuse(ErrorCode.KAFKA_STORAGE_ERROR, "no space left"))
            deliveries = [await p.enqueue("t", b"%d" % n) for n in range(5)]
            told = set()
            while not deliveries[0].done():
                told.add(str(p.trouble))
                await asyncio.sleep(0.001)
            assert told == {"None", "t-0: KAFKA_STORAGE_ERROR: no space left"}
            await asyncio.gather(*deliveries)

    cluster.run(main)


def test_a_batch_takes_no_more_records_once_it_has_its_numbers() -> None:
    """Numbered, it may still have to wait: here because it would make the request too large."""
    cluster = FakeCluster()
    _, log = cluster.topic("t", partitions=2)

    async def main(world: ProcessWorld) -> None:
        narrow = {"max_in_flight_requests_per_connection": 1, "max_request_size": 1000}
        async with producer(cluster, world, linger_ms=0, **narrow) as p:
            for partition in (0, 1):
                await p.send("t", b"first", partition=partition)

            def meanwhile(broker: int, request: ProduceRequest) -> object:
                deliveries.extend(p.send_nowait("t", b"%d" % n, partition=1) for n in range(3))
                return PASS

            cluster.next(ApiKey.PRODUCE, meanwhile)
            deliveries = [p.send_nowait("t", b"x" * 600, partition=log) for log in (0, 1)]
            assert [(await delivery).offset for delivery in deliveries] == [1, 1, 2, 3, 4]
            assert (await p.send("t", b"after", partition=1)).offset == 5

    cluster.run(main)
    assert values(log) == [b"first", b"x" * 600, b"0", b"1", b"2", b"after"]


def test_without_idempotence_one_in_flight_keeps_order_too() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(
            cluster,
            world,
            linger_ms=0,
            batch_size=1,
            enable_idempotence=False,
            max_in_flight_requests_per_connection=1,
        ) as p:
            cluster.next(ApiKey.PRODUCE, PASS_ON, refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            for n in range(10):
                await p.enqueue("t", b"%d" % n)

    cluster.run(main)
    assert values(log) == [b"%d" % n for n in range(10)]
    assert not cluster.requests(InitProducerIdRequest)
    assert log.batches[0][0].producer_id == -1


def PASS_ON(broker: int, request: object) -> object:
    return PASS


def test_a_batch_that_is_too_large_is_split_and_its_records_keep_their_order() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    log.limit = 1000

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, batch_size=16_000) as p:
            deliveries = [await p.enqueue("t", b"%03d" % n * 30) for n in range(60)]
            assert [(await d).offset for d in deliveries] == list(range(60))
            with pytest.raises(BrokerError, match=r"max\.message\.bytes") as caught:
                await p.send("t", b"x" * 2000)
            assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
            assert (await p.send("t", b"after")).offset == 60

    cluster.run(main)
    assert values(log) == [*(b"%03d" % n * 30 for n in range(60)), b"after"]


def test_a_batch_that_may_be_written_is_not_written_again_in_parts() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")

    too_large = refuse(ErrorCode.MESSAGE_TOO_LARGE)

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, batch_size=16_000) as p:
            await p.send("t", b"first")
            cluster.next(ApiKey.PRODUCE, write_then_hang_up(cluster), too_large)
            deliveries = [await p.enqueue("t", b"%03d" % n * 30) for n in range(60)]
            await p.flush()
            for delivery in deliveries:
                error = delivery.exception()
                assert isinstance(error, BrokerError)
                assert error.code == ErrorCode.MESSAGE_TOO_LARGE
            await p.send("t", b"after")

    cluster.run(main)
    assert values(log) == [b"first", *(b"%03d" % n * 30 for n in range(60)), b"after"]


def test_records_that_a_broker_finds_fault_with_are_named() -> None:
    cluster = FakeCluster()
    cluster.topic("t")
    faults = [BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="no key")]

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world) as p:
            cluster.next(ApiKey.PRODUCE, refuse(ErrorCode.INVALID_RECORD, record_errors=faults))
            deliveries = [p.send_nowait("t", b"%d" % n) for n in range(3)]
            await p.flush()
            errors = [str(d.exception()) for d in deliveries]
            assert "no key" in errors[1]
            assert "another record" in errors[0]
            assert "another record" in errors[2]

    cluster.run(main)


def test_a_delivery_ends_in_time_whatever_the_broker_does() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(
            cluster, world, linger_ms=0, request_timeout_ms=5000, delivery_timeout_ms=8000
        ) as p:
            await p.send("t", b"0")
            cluster.next(ApiKey.PRODUCE, *[lambda b, r: SILENCE] * 20)
            before = world.clock.mono_ms()
            with pytest.raises(TimedOut, match="not delivered within 8000 ms"):
                await p.send("t", b"lost")
            assert 8000 <= world.clock.mono_ms() - before <= 8500
            cluster.hooks.clear()
            assert (await p.send("t", b"next")).offset == 1

    cluster.run(main)
    assert values(log) == [b"0", b"next"]
    assert log.batches[-1][0].producer_epoch == 1, "the gap takes a new epoch"


def test_a_broker_that_forgot_the_producer_gets_a_new_epoch() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, linger_ms=0) as p:
            await p.send("t", b"0")
            cluster.next(ApiKey.PRODUCE, refuse(ErrorCode.UNKNOWN_PRODUCER_ID))
            await p.send("t", b"1")

    cluster.run(main)
    assert values(log) == [b"0", b"1"]
    assert [(h.producer_epoch, h.base_sequence) for h, _ in log.batches] == [(0, 0), (1, 0)]


def test_idempotence_that_is_refused_fails_what_was_sent_with_the_reason() -> None:
    cluster = FakeCluster()
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        denied = InitProducerIdResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        cluster.next(ApiKey.INIT_PRODUCER_ID, lambda b, r: denied)
        async with producer(cluster, world) as p:
            for _ in range(2):
                with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
                    await p.send("t", b"x")

    cluster.run(main)


def test_a_full_buffer_holds_back_who_waits_and_refuses_who_does_not() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(
            cluster, world, buffer_memory=2000, batch_size=500, linger_ms=10_000, max_block_ms=5000
        ) as p:
            await p.send("t", b"first")
            refused = None
            while refused is None:
                try:
                    p.send_nowait("t", b"x" * 100)
                except BufferFull as full:
                    refused = full
            assert refused.retriable
            for _ in range(100):
                await p.enqueue("t", b"y" * 100)
            await p.flush()
            cluster.next(ApiKey.PRODUCE, *[lambda b, r: SILENCE] * 50)
            sending = asyncio.gather(*(p.enqueue("t", b"z" * 100) for _ in range(100)))
            with pytest.raises(BufferFull, match=r"max\.block\.ms=5000"):
                await sending
            cluster.hooks.clear()

    cluster.run(main)
    written = values(log)
    assert written.count(b"y" * 100) == 100


def test_a_record_larger_than_allowed_is_refused_before_it_is_sent() -> None:
    cluster = FakeCluster()
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, max_request_size=1000) as p:
            with pytest.raises(RecordError, match=r"max\.request\.size is 1000"):
                await p.send("t", b"x" * 1001)
            with pytest.raises(RecordError, match="value_serializer='str'"):
                await p.send("t", "text")
            with pytest.raises(RecordError, match="no partition 7"):
                await p.send("t", b"x", partition=7)
            with pytest.raises(RecordError, match="header"):
                await p.send("t", b"x", headers=[("h", "text")])  # type: ignore[list-item]
            with pytest.raises(RecordError, match="negative"):
                await p.send("t", b"x", timestamp=-5)

    cluster.run(main)


def test_a_serializer_that_fails_names_its_topic() -> None:
    cluster = FakeCluster()
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, value_serializer="json") as p:
            with pytest.raises(RecordError, match="record for t") as caught:
                await p.send("t", object())
            assert isinstance(caught.value.cause, TypeError)
            assert "the value of a record" in str(caught.value)
        async with producer(cluster, world, key_serializer="int") as p:
            with pytest.raises(RecordError, match="the key of a record for t"):
                await p.send("t", b"v", "seven")

    cluster.run(main)


def test_a_partitioner_that_fails_is_named() -> None:
    cluster = FakeCluster()
    cluster.topic("t")

    def lost(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        return {b"a": 0, b"b": 7}[key or b""]

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, partitioner_class=lost) as p:
            assert (await p.send("t", b"v", b"a")).partition == 0
            with pytest.raises(RecordError, match="the partitioner failed on a record for t: KeyE"):
                await p.send("t", b"v", b"c")
            with pytest.raises(RecordError, match="t has no partition 7"):
                await p.send("t", b"v", b"b")

    cluster.run(main)


def test_partitioners() -> None:
    cluster = FakeCluster()
    logs = cluster.topic("t", 3)

    def vip(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        return partitions - 1 if key == b"vip" else 0

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world) as p:
            assert (await p.send("t", b"x", b"abc")).partition == 479470107 % 3
            assert (await p.send("t", b"x", partition=2)).partition == 2
        async with producer(cluster, world, partitioner_class="round-robin") as p:
            assert [(await p.send("t", b"x")).partition for _ in range(4)] == [0, 1, 2, 0]
        async with producer(cluster, world, partitioner_class=vip) as p:
            assert (await p.send("t", b"x", b"vip")).partition == 2
            assert (await p.send("t", b"x", b"else")).partition == 0
        async with producer(cluster, world, batch_size=1000, partitioner_ignore_keys=True) as p:
            chosen = [(await p.send("t", b"x" * 200, b"k")).partition for _ in range(40)]
            runs = 1 + sum(a != b for a, b in pairwise(chosen))
            assert len(set(chosen)) > 1
            assert runs <= 10, "it stays until a batch's worth has gone there"

    cluster.run(main)
    assert sum(len(log.batches) for log in logs) == 48


def test_acks_0_waits_for_no_answer() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, acks=0) as p:
            assert (await p.send("t", b"x")).offset == -1
            await asyncio.sleep(1)

    cluster.run(main)
    assert values(log) == [b"x"]


def test_acks_0_a_record_is_done_when_it_has_left_and_none_is_lost_by_a_close() -> None:
    cluster = FakeCluster(faults=NetFaults(window=5000))
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, acks=0, linger_ms=0) as p:
            await p.send("t", b"first")
            sent = [await p.enqueue("t", b"%04d" % n * 250) for n in range(100)]
            assert not sent[-1].done()
            assert p._accumulator.used > 50_000
            await p.flush()
            assert all(delivery.exception() is None for delivery in sent)
        await asyncio.sleep(1)  # for what is on the network

    cluster.run(main)
    assert values(log) == [b"first", *(b"%04d" % n * 250 for n in range(100))]


def test_acks_0_what_had_not_left_when_its_connection_broke_is_sent_again() -> None:
    cluster = FakeCluster(faults=NetFaults(window=5000))
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, acks=0, linger_ms=50, batch_size=20_000) as p:
            await p.send("t", b"first")
            cluster.cut_request_at[ApiKey.PRODUCE] = 6000
            sent = [await p.enqueue("t", b"%04d" % n * 250) for n in range(15)]  # one batch
            await p.flush()
            assert all(delivery.exception() is None for delivery in sent)
        await asyncio.sleep(1)  # for what is on the network

    cluster.run(main)
    assert values(log) == [b"first", *(b"%04d" % n * 250 for n in range(15))]


def test_closing_sends_what_is_left_and_then_refuses() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        p = producer(cluster, world, linger_ms=60_000)
        left = await p.enqueue("t", b"x")
        await p.close()
        assert left.result().offset == 0
        with pytest.raises(Closed):
            await p.send("t", b"y")
        await p.close()

    cluster.run(main)
    assert values(log) == [b"x"]


def test_closing_with_a_limit_fails_what_is_not_sent_by_then() -> None:
    cluster = FakeCluster()
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        p = producer(cluster, world)
        cluster.next(ApiKey.PRODUCE, lambda b, r: SILENCE)
        left = await p.enqueue("t", b"x")
        before = world.clock.mono_ms()
        await p.close(timeout_ms=500)
        assert world.clock.mono_ms() - before <= 600
        assert isinstance(left.exception(), Closed)

    cluster.run(main)


def test_who_closes_once_more_waits_for_the_same_end_within_a_time_of_its_own() -> None:
    cluster = FakeCluster()
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        p = producer(cluster, world)
        cluster.next(ApiKey.PRODUCE, lambda b, r: SILENCE)
        left = await p.enqueue("t", b"x")
        first = asyncio.create_task(p.close(timeout_ms=500))
        await asyncio.sleep(0)
        await p.close(timeout_ms=100)
        assert not left.done()
        await p.close()
        assert isinstance(left.exception(), Closed)
        await first

    cluster.run(main)


def test_a_callback_is_called_when_the_record_is_done() -> None:
    cluster = FakeCluster()
    cluster.topic("t")

    async def main(world: ProcessWorld) -> list[object]:
        told: list[object] = []
        async with producer(cluster, world) as p:
            delivery = p.send_nowait("t", b"x")
            delivery.add_done_callback(lambda d: told.append(d.result().offset))
            await p.flush()
            await asyncio.sleep(0)
        return told

    assert cluster.run(main) == [0]


def test_whoever_gives_up_waiting_does_not_disturb_the_others() -> None:
    cluster = FakeCluster()
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, linger_ms=100) as p:
            one, other = p.send_nowait("t", b"1"), p.send_nowait("t", b"2")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await one
            assert (await other).offset == 1
            assert one.result().offset == 0

    cluster.run(main)


@pytest.mark.parametrize("version", range(3, 14))
def test_brokers_of_every_produce_version(version: int) -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    cluster.top_versions[ApiKey.PRODUCE] = version
    cluster.top_versions[ApiKey.METADATA] = max(4, version - 1)

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world) as p:
            assert (await p.send("t", b"x")).offset == 0

    cluster.run(main)
    assert values(log) == [b"x"]


def test_a_topic_nobody_sends_to_is_forgotten() -> None:
    cluster = FakeCluster()
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(
            cluster, world, metadata_max_age_ms=10_000, metadata_max_idle_ms=20_000
        ) as p:
            await p.send("t", b"x")
            await asyncio.sleep(60)
            assert not cluster.requests(MetadataRequest)[-1].topics
            await p.send("t", b"x")

    cluster.run(main)


def test_a_broker_that_restarts_is_found_again() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, linger_ms=0) as p:
            await p.send("t", b"0")
            cluster.stop(1)
            delivery = await p.enqueue("t", b"1")
            await asyncio.sleep(10)
            assert not delivery.done()
            cluster.start(1)
            assert (await delivery).offset == 1

    cluster.run(main)
    assert values(log) == [b"0", b"1"]


@pytest.mark.parametrize("seed", range(12))
def test_under_cut_connections_all_that_is_acknowledged_is_there_once_and_in_order(
    seed: int,
) -> None:
    cluster = FakeCluster(brokers=2, seed=seed)
    logs = cluster.topic("t", 2)
    sent: dict[int, list[int]] = {0: [], 1: []}

    async def trouble(world: ProcessWorld) -> None:
        draw = cluster.sim.rng.fork("trouble")
        while True:
            await asyncio.sleep(draw.between(0.01, 0.3))
            cluster.sim.network.reset_some(f"b{1 + draw.below(2)}", 0.8)
            if draw.chance(0.3):
                log = logs[draw.below(2)]
                log.elect(3 - log.leader)

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, linger_ms=1, batch_size=200) as p:
            fate = asyncio.ensure_future(trouble(world))
            deliveries = []
            for n in range(400):
                deliveries.append((n, n % 2, await p.enqueue("t", b"%d" % n, partition=n % 2)))
                if n % 5 == 0:
                    await asyncio.sleep(0.005)
            await p.flush()
            fate.cancel()
            for n, partition, delivery in deliveries:
                assert delivery.exception() is None
                where = delivery.result()
                assert values(logs[partition])[where.offset] == b"%d" % n
                sent[partition].append(n)

    cluster.run(main)
    for partition, log in enumerate(logs):
        assert [int(value) for value in values(log)] == sent[partition]


@pytest.mark.parametrize("side", ["request", "answer"])
def test_a_connection_cut_at_every_byte_of_a_produce_exchange_loses_and_doubles_nothing(
    side: str,
) -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    cuts = range(6, 190) if side == "request" else range(100)

    async def main(world: ProcessWorld) -> None:
        async with producer(
            cluster, world, linger_ms=0, retry_backoff_ms=1, reconnect_backoff_ms=1
        ) as p:
            await p.send("t", b"first")
            for n in cuts:
                plan = cluster.cut_request_at if side == "request" else cluster.cut_answer_at
                plan[ApiKey.PRODUCE] = n
                await p.send("t", b"%d" % n)
                plan.clear()

    cluster.run(main)
    assert values(log) == [b"first", *(b"%d" % n for n in cuts)]


def test_errors_say_what_to_do() -> None:
    error = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, about="topic x")
    assert str(error).endswith("(fix: create the topic, or check its name)")
    assert isinstance(error, ClientError)


def test_a_producer_that_nobody_closed_says_what_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster()
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        p = producer(cluster, world, linger_ms=60_000)
        for number in range(3):
            await p.enqueue("t", b"%d" % number)
        for task in asyncio.all_tasks():
            if task.get_name().startswith("scriba-"):
                task.cancel()  # as asyncio.run does at its end
        await asyncio.sleep(1)

    cluster.run(main)
    [told] = [r.getMessage() for r in caplog.records if "not closed" in r.getMessage()]
    assert "3 records were not acknowledged" in told


def test_a_producer_that_was_closed_has_nothing_to_say(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster()
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, linger_ms=60_000) as p:
            await p.enqueue("t", b"1")

    cluster.run(main)
    assert not [r for r in caplog.records if "not closed" in r.getMessage()]


def test_the_error_of_a_delivery_that_is_asked_for_again_does_not_grow() -> None:
    cluster = FakeCluster()
    cluster.topic("t")
    cluster.next(ApiKey.PRODUCE, refuse(ErrorCode.INVALID_RECORD))

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world) as p:
            delivery = await p.enqueue("t", b"x")
            await p.flush()
            lengths = set()
            for _ in range(5):
                with pytest.raises(BrokerError) as caught:
                    delivery.result()
                lengths.add(len(traceback.extract_tb(caught.value.__traceback__)))
            assert len(lengths) == 1

    cluster.run(main)


def test_a_header_whose_name_is_no_text_is_refused_and_harms_no_other_record() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world) as p:
            for _ in range(2):  # before the topic is known, and after
                with pytest.raises(RecordError, match="holds what is no character"):
                    await p.send("t", b"x", headers={"\ud800": b"1"})
                await p.send("t", b"y", headers={"ü": b"1"})

    cluster.run(main)
    assert values(log) == [b"y", b"y"]


def test_a_delivery_that_nobody_awaits_does_not_fail_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster()
    [headless] = cluster.topic("t")
    headless.leader = -1

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world, max_block_ms=500) as p:
            for n in range(3):
                p.send_nowait("missing", b"%d" % n)
            await p.flush()
        assert caplog.text.count("missing: 3 records were not delivered") == 1
        p = producer(cluster, world)
        await p.enqueue("t", b"1")
        p.send_nowait("late", b"1")
        await p.close(timeout_ms=300)
        for what in ("late: 1 records", "t-0: 1 records"):
            assert caplog.text.count(f"{what} were not delivered: the producer was closed") == 1

    cluster.run(main)
