"""What those who read committed records are told of the end of a log."""

from scriba.errors import ErrorCode
from scriba.records.batch import Record, encode_batch, read_header
from scriba.wire.messages.fetch import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tests.unit.broker.brokers import Brokers, play

LATEST, UNCOMMITTED, COMMITTED = -1, 0, 1


async def latest(brokers: Brokers, broker_id: int, isolation: int) -> tuple[ErrorCode, int]:
    asked = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=LATEST)
    topic = ListOffsetsTopic(name="t", partitions=[asked])
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=[topic])
    peer = await brokers.dial(broker_id)
    answer = await peer.call(request, 7, ListOffsetsResponse)
    peer.close()
    told = answer.topics[0].partitions[0]
    return ErrorCode(told.error_code), told.offset


def begin_transaction(brokers: Brokers) -> None:
    now = brokers.nodes[1].world.clock.now()
    batch = encode_batch(
        [Record(timestamp=now.wall_ms, value=b"of a transaction")],
        producer_id=77,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    brokers.partition(1, "t").append(memoryview(batch), read_header(batch), now)


def test_a_transaction_that_a_new_leader_finds_open_hides_no_latest_offset() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (1, 2))
        assert await brokers.produce(1, "t", b"before") is ErrorCode.NONE
        begin_transaction(brokers)
        assert await brokers.produce(1, "t", b"behind") is ErrorCode.NONE
        assert await latest(brokers, 1, COMMITTED) == (ErrorCode.NONE, 1)
        await brokers.until(lambda: brokers.partition(2, "t").log.end_offset == 3)
        await brokers.elect("t", 2)
        await brokers.until(lambda: brokers.leads(2, "t"))
        await brokers.until(lambda: brokers.partition(2, "t").high_watermark.value == 3)
        assert await latest(brokers, 2, UNCOMMITTED) == (ErrorCode.NONE, 3)
        assert await latest(brokers, 2, COMMITTED) == (ErrorCode.NONE, 1)

    play(script, count=2)


def test_a_new_leader_that_does_not_know_what_is_committed_says_so() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (1,))
        for value in (b"one", b"two"):
            assert await brokers.produce(1, "t", value) is ErrorCode.NONE
        partition = brokers.partition(1, "t")
        assert partition.leader is not None
        partition.leader.epoch_start_offset = 5  # as if more had been written before it led
        for isolation in (UNCOMMITTED, COMMITTED):
            told, _ = await latest(brokers, 1, isolation)
            assert told is ErrorCode.OFFSET_NOT_AVAILABLE

    play(script, count=1)
