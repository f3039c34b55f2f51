"""The consumer against scripted brokers in virtual time."""

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from scriba.client.consuming.record import ConsumerRecord
from scriba.client.errors import DecodeError, OffsetError
from scriba.client.model import TimestampType
from scriba.errors import ErrorCode
from scriba.peers.errors import BrokerError, ClientError, Closed, TimedOut
from scriba.records.batch import EndTxnMarker, Record, encode_batch, end_txn_batch
from scriba.records.compression import Codec
from scriba.testing.sim.world.world import EPOCH_MS, ProcessWorld
from scriba.wire.apis import ApiKey
from scriba.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    PartitionData,
)
from scriba.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from tests.unit.client.clients import T0, consumer, fill, offsets, read
from tests.unit.client.fake_cluster import HANG_UP, FakeCluster, Log


def test_records_come_as_they_were_written() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    record = Record(0, 5, b"key", None, (("h", b"1"),))
    log.write(bytes(encode_batch([record], codec=Codec.LZ4)))

    async def main(world: ProcessWorld) -> ConsumerRecord[Any, Any]:
        async with consumer(cluster, world) as c:
            c.assign(await c.partitions("t"))
            return (await read(c, 1))[0]

    assert cluster.run(main) == ConsumerRecord(
        "t", 0, 0, 5, TimestampType.CREATE_TIME, b"key", None, (("h", b"1"),), 0
    )


def test_poll_gives_no_more_than_asked_and_no_less_than_all() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    fill(log, 7, 5, 30)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world, max_poll_records=10) as c:
            c.assign([("t", 0)])
            sizes = [len(await c.poll(1000)) for _ in range(6)]
            assert sizes == [10, 10, 10, 10, 2, 0]
            c.seek_to_beginning()
            assert len(await c.poll(1000, max_records=3)) == 3
            assert await c.position(T0) == 3

    cluster.run(main)


def test_iterating_goes_on_where_it_stopped() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    fill(log, 10, 10)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world) as c:
            c.assign([("t", 0)])
            seen = []
            for _ in range(4):
                async for record in c:
                    seen.append(record.offset)
                    if record.offset % 5 == 4:
                        break
                assert await c.position(T0) == seen[-1] + 1
            assert seen == list(range(20))

    cluster.run(main)


def test_reading_from_the_middle_of_a_batch() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    fill(log, 10, 10)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world) as c:
            c.assign([("t", 0)])
            c.seek(T0, 7)
            assert offsets(await read(c, 13)) == list(range(7, 20))

    cluster.run(main)


def test_seeks_to_every_kind_of_place() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    fill(log, *[1] * 20)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world) as c:
            c.assign([("t", 0)])
            c.seek_to_time(13_000)
            assert (await c.poll(1000))[0].offset == 13
            c.seek_to_end(T0)
            assert await c.position(T0) == 20
            c.seek_to_beginning(T0)
            assert (await c.poll(1000))[0].offset == 0
            c.seek_to_time(99_000)
            assert await c.position(T0) == 20
            assert await c.beginning_offsets([T0]) == {T0: 0}
            assert await c.end_offsets([("t", 0)]) == {T0: 20}
            assert await c.offsets_for_times({T0: 5_000}) == {T0: (5, 5_000, 0)}
            with pytest.raises(ValueError, match="not assigned"):
                c.seek(("t", 5), 1)

    cluster.run(main)


@pytest.mark.parametrize(
    ("policy", "offset"),
    [("earliest", 0), ("latest", 10), ("by_duration:PT0.003S", 6)],
)
def test_where_a_partition_without_a_position_begins(policy: str, offset: int) -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    for n in range(10):
        log.write(bytes(encode_batch([Record(0, EPOCH_MS - 9 + n, None, b"x")])))

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world, auto_offset_reset=policy) as c:
            c.assign([("t", 0)])
            assert await c.position(T0) == offset

    cluster.run(main)


def test_without_a_policy_the_application_is_asked() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    fill(log, 10)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world, auto_offset_reset="none") as c:
            c.assign([("t", 0)])
            for _ in range(2):
                with pytest.raises(OffsetError, match="no position"):
                    await c.poll(1000)
            c.seek(T0, 99)
            for _ in range(2):
                with pytest.raises(OffsetError, match="99 is not in the log"):
                    await c.poll(1000)
            c.seek(T0, 9)
            assert offsets(await c.poll(1000)) == [9]

    cluster.run(main)


def test_an_offset_out_of_range_is_reset_by_policy() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    fill(log, 5, 5)
    log.start = 5

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world) as c:
            c.assign([("t", 0)])
            c.seek(T0, 2)
            assert offsets(await c.poll(5000)) == [5, 6, 7, 8, 9]

    cluster.run(main)


def test_paused_partitions_give_nothing_and_lose_nothing() -> None:
    cluster = FakeCluster()
    one, other = cluster.topic("t", 2)
    fill(one, 5)
    fill(other, 5)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world, max_poll_records=1) as c:
            c.assign(await c.partitions("t"))
            first = (await read(c, 1))[0].partition
            c.pause(("t", first))
            assert c.paused() == [("t", first)]
            rest = await read(c, 5)
            assert {r.partition for r in rest} == {1 - first}
            assert await c.poll(1000) == []
            c.resume()
            assert offsets(await read(c, 4)) == [1, 2, 3, 4]

    cluster.run(main)


def test_lag_is_what_is_left_to_the_end() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    fill(log, 10)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world, max_poll_records=4) as c:
            c.assign([("t", 0)])
            assert c.lag(T0) is None
            await c.poll(1000)
            assert c.lag(T0) == 6

    cluster.run(main)


def test_records_are_fetched_ahead_but_not_without_end() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    fill(log, *[10] * 100)
    size = len(log.batches[0][1])

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world, max_partition_fetch_bytes=10 * size) as c:
            c.assign([("t", 0)])
            await asyncio.sleep(5)
            assert len(cluster.requests(FetchRequest)) == 2
            await c.poll(0, max_records=100)
            await asyncio.sleep(5)
            assert len(cluster.requests(FetchRequest)) == 3
            assert offsets(await read(c, 900)) == list(range(100, 1000))

    cluster.run(main)


def test_no_partition_is_starved_by_another() -> None:
    cluster = FakeCluster()
    logs = cluster.topic("t", 3)
    for log in logs:
        fill(log, *[10] * 50)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world, max_partition_fetch_bytes=500) as c:
            c.assign(await c.partitions("t"))
            counts = [0, 0, 0]
            while sum(counts) < 600:
                for record in await c.poll(1000, max_records=50):
                    counts[record.partition] += 1
            assert min(counts) >= 100

    cluster.run(main)


def test_only_what_changed_is_sent_in_a_fetch_session() -> None:
    cluster = FakeCluster()
    logs = cluster.topic("t", 3)
    fill(logs[0], 1)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world) as c:
            c.assign(await c.partitions("t"))
            await read(c, 1)
            await asyncio.sleep(3)
            first, *rest = cluster.requests(FetchRequest)
            assert (first.session_id, first.session_epoch) == (0, 0)
            assert len(first.topics[0].partitions) == 3
            assert [r.session_epoch for r in rest] == list(range(1, len(rest) + 1))
            moved = [[p.partition for t in r.topics for p in t.partitions] for r in rest]
            assert moved[0] == [0]
            assert all(m == [] for m in moved[1:])
            c.assign([("t", 1)])
            await asyncio.sleep(2)
            forgotten = cluster.requests(FetchRequest)[len(rest) + 1 :]
            gone = [p for r in forgotten for t in r.forgotten_topics_data for p in t.partitions]
            assert sorted(gone) == [0, 2]
        assert cluster.sessions, "known to the broker until the farewell arrives"
        await asyncio.sleep(1)
        assert not cluster.sessions

    cluster.run(main)


def test_a_session_the_broker_lost_is_begun_again() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    fill(log, 1)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world) as c:
            c.assign([("t", 0)])
            await read(c, 1)
            cluster.sessions.clear()
            fill(log, 1, start=1)
            assert offsets(await c.poll(5000)) == [1]
            for session, (epoch, known) in cluster.sessions.items():
                cluster.sessions[session] = (epoch + 7, known)
            fill(log, 1, start=2)
            assert offsets(await c.poll(5000)) == [2]

    cluster.run(main)


@pytest.mark.parametrize("version", range(4, 19))
def test_brokers_of_every_fetch_version(version: int) -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    fill(log, 3, 3)
    cluster.top_versions[ApiKey.FETCH] = version

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world) as c:
            c.assign([("t", 0)])
            assert offsets(await read(c, 6)) == list(range(6))

    cluster.run(main)


def test_a_new_leader_is_followed() -> None:
    cluster = FakeCluster(brokers=2)
    [log] = cluster.topic("t")
    fill(log, 3)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world) as c:
            c.assign([("t", 0)])
            await read(c, 3)
            log.elect(2)
            fill(log, 3, start=3)
            assert offsets(await read(c, 3)) == [3, 4, 5]
            assert cluster.requests(OffsetForLeaderEpochRequest), "it was asked what it has"
            cluster.stop(1)
            fill(log, 1, start=6)
            assert offsets(await read(c, 1)) == [6]

    cluster.run(main)


@pytest.mark.parametrize("policy", ["earliest", "none"])
def test_a_log_that_was_truncated_below_the_position_is_noticed(policy: str) -> None:
    cluster = FakeCluster(brokers=2)
    [log] = cluster.topic("t")
    fill(log, 3, 3, 3)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world, auto_offset_reset=policy) as c:
            c.assign([("t", 0)])
            c.seek_to_beginning()
            assert len(await read(c, 9)) == 9
            log.truncate(6)
            log.elect(2)
            fill(log, 5, start=100)
            if policy == "none":
                with pytest.raises(OffsetError, match="truncated") as caught:
                    await c.poll(10_000)
                assert (caught.value.offset, caught.value.diverged_at) == (9, 6)
                c.seek(T0, caught.value.diverged_at or 0)
            taken = await read(c, 5)
            assert [r.value for r in taken] == [b"100", b"101", b"102", b"103", b"104"]
            assert offsets(taken) == [6, 7, 8, 9, 10]

    cluster.run(main)


def test_what_was_only_fetched_ahead_of_a_truncation_is_never_given() -> None:
    cluster = FakeCluster(brokers=2)
    [log] = cluster.topic("t")
    fill(log, 3, 3, 3)
    size = len(log.batches[0][1])

    async def main(world: ProcessWorld) -> None:
        async with consumer(
            cluster, world, max_partition_fetch_bytes=2 * size, metadata_max_age_ms=1000
        ) as c:
            c.assign([("t", 0)])
            assert len(await c.poll(1000, max_records=4)) == 4
            await asyncio.sleep(1)
            log.truncate(6)
            log.elect(2)
            fill(log, 3, start=100)
            await asyncio.sleep(5)
            rest = [r.value for r in await read(c, 5)]
            assert rest == [b"4", b"5", b"100", b"101", b"102"]

    cluster.run(main)


def test_a_replica_close_by_is_read_when_the_leader_says_so() -> None:
    cluster = FakeCluster(brokers=2)
    [log] = cluster.topic("t")
    log.nearby = 2
    fill(log, 3)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world, client_rack="here") as c:
            c.assign([("t", 0)])
            await read(c, 3)
            fetched_from = [b for b, r, _ in cluster.seen if isinstance(r, FetchRequest)]
            assert fetched_from[:2] == [1, 2]
            assert cluster.requests(FetchRequest)[0].rack_id == "here"
            log.nearby = -1  # the replica is gone: back to the leader
            fill(log, 2, start=3)
            assert offsets(await read(c, 2)) == [3, 4]

    cluster.run(main)


def test_a_topic_that_was_asked_for_once_is_forgotten_and_one_that_is_read_is_not() -> None:
    cluster = FakeCluster()
    for name in ("t", "glance"):
        cluster.topic(name)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world, metadata_max_age_ms=10_000) as c:
            c.assign(await c.partitions("t"))
            await c.end_offsets(await c.partitions("glance"))
            for _ in range(2):
                asked = {topic.name for topic in cluster.requests(MetadataRequest)[-1].topics}
                assert asked == {"t", "glance"}
                await asyncio.sleep(200)
            assert {t.name for t in cluster.requests(MetadataRequest)[-1].topics} == {"t"}
            assert await c.partitions("glance") == [("glance", 0)]

    cluster.run(main)


def test_the_leader_is_asked_again_now_and_then_which_replica_is_close() -> None:
    cluster = FakeCluster(brokers=2)
    [log] = cluster.topic("t")
    log.nearby = 2
    fill(log, 1)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world, client_rack="here", metadata_max_age_ms=10_000) as c:
            c.assign([("t", 0)])
            await read(c, 1)
            await asyncio.sleep(25)
            asked_leader = [r for b, r, _ in cluster.seen if isinstance(r, FetchRequest) and b == 1]
            assert len(asked_leader) == 3
            fill(log, 1, start=1)
            assert offsets(await read(c, 1)) == [1]

    cluster.run(main)


@pytest.mark.parametrize("named", [2, 9], ids=["dead", "unknown"])
def test_the_leader_is_read_while_the_replica_that_it_names_is_of_no_use(named: int) -> None:
    """A leader names a replica until the cluster has noticed that it is gone."""
    cluster = FakeCluster(brokers=2)
    [log] = cluster.topic("t")
    log.nearby = named
    fill(log, 2)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world, client_rack="here") as c:
            c.assign([("t", 0)])
            cluster.stop(2)
            assert offsets(await read(c, 2)) == [0, 1]
            await asyncio.sleep(15)
            racks = [r.rack_id for r in cluster.requests(FetchRequest)]
            assert racks[:2] == ["here", ""]
            assert "here" in racks[2:], "after a while a replica may be named again"
            fill(log, 1, start=2)
            assert offsets(await read(c, 1)) == [2]

    cluster.run(main)


def test_a_connection_that_breaks_is_made_again() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    fill(log, 3)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world) as c:
            c.assign([("t", 0)])
            cluster.next(ApiKey.FETCH, lambda b, r: HANG_UP)
            cluster.next(ApiKey.LIST_OFFSETS, lambda b, r: HANG_UP)
            assert offsets(await read(c, 3)) == [0, 1, 2]

    cluster.run(main)


# -- records that cannot be read ------------------------------------------------------------------


def test_a_record_that_cannot_be_decoded_is_named_and_can_be_skipped() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    good_bad_good = [Record(0, 0, None, b"1"), Record(0, 0, None, b"?"), Record(0, 0, None, b"3")]
    log.write(bytes(encode_batch(good_bad_good)))

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world, value_deserializer="json") as c:
            c.assign([("t", 0)])
            assert [r.value for r in await c.poll(1000)] == [1]
            for _ in range(2):
                with pytest.raises(DecodeError, match="t-0 at offset 1") as caught:
                    await c.poll(1000)
            error = caught.value
            assert (error.topic, error.partition, error.offset) == ("t", 0, 1)
            assert error.cause is not None
            assert await c.position(T0) == 1
            c.skip(error)
            assert [r.value for r in await c.poll(1000)] == [3]
        async with consumer(
            cluster, world, value_deserializer="json", scriba_decode_errors="skip"
        ) as c:
            c.assign([("t", 0)])
            assert [r.value for r in await c.poll(1000)] == [1, 3]

    cluster.run(main)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: data[:16] + b"\x07" + data[17:],
    ],
    ids=["checksum", "no batch"],
)
def test_a_damaged_batch_is_named_and_can_be_skipped(damage: Callable[[bytes], bytes]) -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    fill(log, 2, 1, 2)
    header, data = log.batches[1]
    log.batches[1] = (header, damage(data))

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world) as c:
            c.assign([("t", 0)])
            assert offsets(await c.poll(1000)) == [0, 1]
            with pytest.raises(DecodeError, match="offset 2") as caught:
                await c.poll(1000)
            c.skip(caught.value)
            assert offsets(await c.poll(1000)) == [3, 4]

    cluster.run(main)


# -- transactions ---------------------------------------------------------------------------------


def _transactions(log: Log) -> None:
    def write(owner: int, *values: bytes) -> None:
        records = [Record(0, 0, None, value) for value in values]
        log.write(
            bytes(
                encode_batch(
                    records,
                    producer_id=owner,
                    producer_epoch=0,
                    base_sequence=0,
                    transactional=True,
                )
            )
        )

    def end(owner: int, commit: bool) -> None:
        log.write(bytes(end_txn_batch(owner, 0, EndTxnMarker(commit, 0), 0)))

    write(1, b"a0", b"a1")  # 0-1, aborted
    write(2, b"b0")  # 2, committed
    log.write(bytes(encode_batch([Record(0, 0, None, b"plain")])))  # 3
    end(1, commit=False)  # 4
    write(1, b"c0")  # 5: the same producer's next transaction, committed
    end(2, commit=True)  # 6
    end(1, commit=True)  # 7
    log.aborted = [(1, 0)]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("read_committed", [b"b0", b"plain", b"c0"]),
        ("read_uncommitted", [b"a0", b"a1", b"b0", b"plain", b"c0"]),
    ],
)
def test_isolation_levels(level: str, expected: list[bytes]) -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    _transactions(log)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world, isolation_level=level) as c:
            c.assign([("t", 0)])
            assert [r.value for r in await read(c, len(expected))] == expected
            assert await c.poll(1000) == []
            assert await c.position(T0) == 8, "markers are passed"
            assert c.lag(T0) == 0

    cluster.run(main)


# -- the application's mistakes and the broker's ---------------------------------------------------


def test_without_a_group_there_is_no_subscribing() -> None:
    cluster = FakeCluster()

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world) as c:
            with pytest.raises(ClientError, match=r"in no group .*group_id"):
                c.subscribe(["t"])
            with pytest.raises(ClientError, match="no partition is assigned"):
                await c.poll(1)

    cluster.run(main)


def test_a_topic_that_does_not_exist_is_waited_for_and_told() -> None:
    cluster = FakeCluster()

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world, default_api_timeout_ms=3000) as c:
            with pytest.raises(TimedOut, match="UNKNOWN_TOPIC_OR_PARTITION"):
                await c.partitions("t")
            c.assign([("t", 0)])
            assert await c.poll(5000) == []
            fill(cluster.topic("t")[0], 2)
            assert offsets(await read(c, 2)) == [0, 1]

    cluster.run(main)


def test_what_is_not_allowed_is_told_by_poll() -> None:
    cluster = FakeCluster()
    cluster.topic("t")

    def denied(broker: int, request: object) -> MetadataResponse:
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=1, host="b1", port=9092)],
            topics=[MetadataResponseTopic(name="t", error_code=code)],
        )

    async def main(world: ProcessWorld) -> None:
        cluster.next(ApiKey.METADATA, *[denied] * 50)
        async with consumer(cluster, world) as c:
            c.assign([("t", 0)])
            with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
                await c.poll(5000)

    cluster.run(main)


def test_an_error_about_a_partition_is_told_once_and_tried_again() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    fill(log, 2)

    def corrupt(broker: int, request: FetchRequest) -> FetchResponse:
        said = PartitionData(
            partition_index=0, error_code=ErrorCode.CORRUPT_MESSAGE, aborted_transactions=[]
        )
        topic = FetchableTopicResponse(
            topic="t", topic_id=cluster.topics["t"].id, partitions=[said]
        )
        return FetchResponse(responses=[topic])

    async def main(world: ProcessWorld) -> None:
        cluster.next(ApiKey.FETCH, corrupt)
        async with consumer(cluster, world) as c:
            c.assign([("t", 0)])
            with pytest.raises(BrokerError, match="CORRUPT_MESSAGE"):
                await c.poll(5000)
            assert offsets(await read(c, 2)) == [0, 1]

    cluster.run(main)


def test_assigning_again_keeps_the_positions_of_what_stays() -> None:
    cluster = FakeCluster()
    logs = cluster.topic("t", 3)
    for log in logs:
        fill(log, 4)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world) as c:
            c.assign([("t", 0), ("t", 1)])
            c.pause(("t", 1))
            assert len(await read(c, 4)) == 4
            c.assign([("t", 0), ("t", 2)])
            assert c.assignment() == [("t", 0), ("t", 2)]
            assert {(r.partition, r.offset) for r in await read(c, 4)} == {(2, n) for n in range(4)}
            assert len(cluster.requests(ListOffsetsRequest)) >= 2

    cluster.run(main)


def test_a_closed_consumer_says_so() -> None:
    cluster = FakeCluster()
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        c = consumer(cluster, world)
        c.assign([("t", 0)])
        waiting = asyncio.ensure_future(c.__anext__())
        await asyncio.sleep(1)
        await c.close()
        with pytest.raises(Closed):
            await waiting
        with pytest.raises(Closed):
            await c.poll(10)

    cluster.run(main)


@pytest.mark.parametrize("seed", range(8))
def test_under_cut_connections_every_record_comes_once_and_in_order(seed: int) -> None:
    cluster = FakeCluster(brokers=2, seed=seed)
    logs = cluster.topic("t", 2)
    for log in logs:
        fill(log, *[7] * 40)

    async def trouble() -> None:
        draw = cluster.sim.rng.fork("trouble")
        while True:
            await asyncio.sleep(draw.between(0.001, 0.1))
            cluster.sim.network.reset_some(f"b{1 + draw.below(2)}", 0.7)
            if draw.chance(0.3):
                log = logs[draw.below(2)]
                log.elect(3 - log.leader)

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world, max_partition_fetch_bytes=800) as c:
            fate = asyncio.ensure_future(trouble())
            c.assign(await c.partitions("t"))
            seen: dict[int, list[int]] = {0: [], 1: []}
            while sum(map(len, seen.values())) < 560:
                for record in await c.poll(60_000, max_records=9):
                    seen[record.partition].append(record.offset)
                await asyncio.sleep(0.002)
            fate.cancel()
            assert seen == {0: list(range(280)), 1: list(range(280))}

    cluster.run(main)


def test_a_topic_that_does_not_exist_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster()

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world, allow_auto_create_topics=False) as c:
            c.assign([("missing", 0)])
            assert await c.poll(20_000) == []

    cluster.run(main)
    told = [r.getMessage() for r in caplog.records if "missing" in r.getMessage()]
    assert told == [
        "topic missing: no such topic or partition here (fix: create the topic, or check its name)"
    ]


@pytest.mark.parametrize(("count", "has"), [(1, "one partition, 0"), (2, "2 partitions, 0 to 1")])
def test_a_partition_that_its_topic_does_not_have_is_told_once(
    count: int, has: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = FakeCluster()

    async def main(world: ProcessWorld) -> None:
        cluster.topic("t", count)
        async with consumer(cluster, world) as c:
            c.assign([("t", 7)])
            assert await c.poll(20_000) == []

    cluster.run(main)
    told = [r.getMessage() for r in caplog.records if "t-7" in r.getMessage()]
    assert told == [f"t-7 is not there: t has {has}"]


def test_a_topic_that_is_made_while_a_consumer_waits_for_it_is_found() -> None:
    cluster = FakeCluster()

    async def main(world: ProcessWorld) -> list[int]:
        async with consumer(cluster, world, allow_auto_create_topics=False) as c:
            c.assign([("late", 0)])
            assert await c.poll(5_000) == []
            fill(cluster.topic("late")[0], 3)
            return offsets(await read(c, 3))

    assert cluster.run(main) == [0, 1, 2]


def test_an_error_that_is_raised_again_by_each_poll_does_not_grow() -> None:
    cluster = FakeCluster()
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world, auto_offset_reset="none") as c:
            c.assign([T0])
            lengths = set()
            for _ in range(5):
                with pytest.raises(OffsetError) as caught:
                    await c.poll(1000)
                lengths.add(len(traceback.extract_tb(caught.value.__traceback__)))
            assert len(lengths) == 1

    cluster.run(main)


@pytest.mark.parametrize("most", [0, -1])
def test_a_poll_for_no_records_is_refused(most: int) -> None:
    cluster = FakeCluster()
    cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with consumer(cluster, world) as c:
            c.assign([T0])
            with pytest.raises(ValueError, match="1 at least"):
                await c.poll(1000, max_records=most)

    cluster.run(main)
