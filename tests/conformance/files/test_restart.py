"""Stop and start, and kill -9: what was acknowledged is there, where it was, and only once."""

import threading
from uuid import UUID

import pytest
from kafka.protocol.admin import (
    DeleteRecordsRequest,
    DeleteTopicsRequest,
)
from kafka.protocol.metadata import MetadataRequest

from tools.kafka.brokers import Broker
from tools.kafka.rawkafka import (
    EARLIEST,
    LATEST,
    Batch,
    Closed,
    Codec,
    Connection,
    batch,
    create_topic,
    fetch,
    fetched,
    init_producer_id,
    list_offset,
    produce,
    produced,
    walk,
)

OUT_OF_ORDER_SEQUENCE, INVALID_PRODUCER_EPOCH = 45, 47
WAYS = ["clean", "kill -9"]


def restart(broker: Broker, way: str) -> None:
    if way == "clean":
        assert broker.stop() in (0, 143), broker.tail()
    else:
        broker.kill()
    broker.start()


def append(connection: Connection, topic: str, data: Batch) -> tuple[int, int]:
    """(error, base offset)"""
    answer = produced(connection.call(produce(data.encode(), topic), 9))
    return answer.error_code, answer.base_offset


def contents(connection: Connection, topic: str) -> list[tuple[int, bytes]]:
    """(base offset, the bytes after the leader epoch) of every batch in partition 0."""
    found: list[tuple[int, bytes]] = []
    offset = list_offset(connection, topic, 0, EARLIEST).offset
    end = list_offset(connection, topic, 0, LATEST).offset
    while offset < end:
        part = fetched(connection.call(fetch(offset, topic), 12))
        assert part.error_code == 0
        for base, following, data in walk(part.records):
            found.append((base, data[16:]))
            offset = following
    return found


def describe(connection: Connection, topic: str) -> tuple[UUID, int]:
    wanted = MetadataRequest.MetadataRequestTopic(name=topic)
    (found,) = connection.call(MetadataRequest(topics=[wanted]), 12).topics
    assert found.error_code == 0
    return found.topic_id, len(found.partitions)


@pytest.mark.parametrize("way", WAYS)
def test_records_offsets_and_topics_survive(own_cluster: Broker, way: str) -> None:
    with Connection(own_cluster.port) as connection:
        made = create_topic(connection, "kept", partitions=3, retention_ms="987654321")
        create_topic(connection, "short")
        for number, codec in enumerate(Codec):
            data = batch([b"%d" % n * 50 for n in range(20)], codec=codec)
            assert append(connection, "kept", data) == (0, number * 20)
        before = contents(connection, "kept")
    for _ in range(2):
        restart(own_cluster, way)
        with Connection(own_cluster.port) as connection:
            assert describe(connection, "kept") == (made, 3)
            assert contents(connection, "kept") == before
            assert list_offset(connection, "short", 0, LATEST).offset == 0
    with Connection(own_cluster.port) as connection:
        assert append(connection, "kept", batch([b"next"])) == (0, 100)


@pytest.mark.parametrize("way", WAYS)
def test_a_resent_batch_gets_its_first_offset_and_is_not_stored_twice(
    own_cluster: Broker, way: str
) -> None:
    def sent(number: int) -> Batch:
        return batch(
            [b"a", b"b"], producer_id=producer, producer_epoch=epoch, base_sequence=number * 2
        )

    with Connection(own_cluster.port) as connection:
        create_topic(connection, "once")
        assert append(connection, "once", batch([b"other"])) == (0, 0)
        producer, epoch = init_producer_id(connection)
        for number in range(3):
            assert append(connection, "once", sent(number)) == (0, 1 + number * 2)
        assert append(connection, "once", sent(2)) == (0, 5)
        assert append(connection, "once", sent(4)) == (OUT_OF_ORDER_SEQUENCE, -1)

    restart(own_cluster, way)
    with Connection(own_cluster.port) as connection:
        assert append(connection, "once", sent(2)) == (0, 5)
        assert list_offset(connection, "once", 0, LATEST).offset == 7
        assert append(connection, "once", sent(4)) == (OUT_OF_ORDER_SEQUENCE, -1)
        old = sent(3).but(producer_epoch=epoch - 1)
        assert append(connection, "once", old)[0] == INVALID_PRODUCER_EPOCH
        assert append(connection, "once", sent(3)) == (0, 7)
        fresh, _ = init_producer_id(connection)
        assert fresh > producer


def test_a_producers_id_is_never_given_twice_across_crashes(own_cluster: Broker) -> None:
    given: set[int] = set()
    for _ in range(3):
        with Connection(own_cluster.port) as connection:
            fresh = {init_producer_id(connection)[0] for _ in range(3)}
        assert len(fresh) == 3
        assert not given & fresh
        given |= fresh
        restart(own_cluster, "kill -9")


def test_everything_acknowledged_under_load_survives_kill_9(own_cluster: Broker) -> None:
    acknowledged: dict[int, bytes] = {}
    enough = threading.Event()

    def load(connection: Connection, worker: int) -> None:
        number = 0
        while True:
            number += 1
            data = batch([b"%d:%d" % (worker, number) * 20]).encode()
            try:
                answer = produced(connection.call(produce(data, "loaded"), 9))
            except Closed:
                return
            assert answer.error_code == 0
            acknowledged[answer.base_offset] = data[16:]
            if len(acknowledged) > 500:
                enough.set()

    with Connection(own_cluster.port) as connection:
        create_topic(connection, "loaded", segment_bytes="1048576")
    workers = [
        threading.Thread(target=load, args=(Connection(own_cluster.port), n)) for n in range(4)
    ]
    for worker in workers:
        worker.start()
    assert enough.wait(300)
    own_cluster.kill()
    for worker in workers:
        worker.join()
    own_cluster.start()
    with Connection(own_cluster.port) as connection:
        stored = dict(contents(connection, "loaded"))
    assert acknowledged.items() <= stored.items()
    assert sorted(stored) == list(range(len(stored)))


@pytest.mark.parametrize("damage", ["torn", "garbage", "indexes gone"])
def test_a_damaged_tail_costs_nothing_that_was_whole(own_cluster: Broker, damage: str) -> None:
    with Connection(own_cluster.port) as connection:
        create_topic(connection, "tail")
        for number in range(50):
            assert append(connection, "tail", batch([b"%d" % number * 100])) == (0, number)
        before = contents(connection, "tail")
    own_cluster.kill()
    home = own_cluster.log_dir / "tail-0"
    log = home / f"{0:020}.log"
    match damage:
        case "torn":
            with log.open("ab") as file:
                file.write(batch([b"never acknowledged" * 10], base_offset=50).encode()[:-7])
        case "garbage":
            with log.open("ab") as file:
                file.write(b"\x5a" * 5000)
        case "indexes gone":
            for index in home.glob("*index"):
                index.unlink()
    own_cluster.start()
    with Connection(own_cluster.port) as connection:
        assert contents(connection, "tail") == before
        assert append(connection, "tail", batch([b"next"])) == (0, 50)


def test_deleted_things_stay_deleted(own_cluster: Broker) -> None:
    with Connection(own_cluster.port) as connection:
        create_topic(connection, "gone")
        create_topic(connection, "cut")
        for number in range(10):
            assert append(connection, "cut", batch([b"x"])) == (0, number)
        record = DeleteRecordsRequest.DeleteRecordsTopic
        part = record.DeleteRecordsPartition(partition_index=0, offset=6)
        request = DeleteRecordsRequest(
            topics=[record(name="cut", partitions=[part])], timeout_ms=9000
        )
        assert connection.call(request, 1).topics[0].partitions[0].low_watermark == 6
        connection.call(DeleteTopicsRequest(topic_names=["gone"], timeout_ms=9000), 4)
    restart(own_cluster, "clean")
    with Connection(own_cluster.port) as connection:
        assert list_offset(connection, "cut", 0, EARLIEST).offset == 6
        assert len(contents(connection, "cut")) == 4
        assert list_offset(connection, "gone", 0, LATEST).error_code == 3
