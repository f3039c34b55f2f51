"""The synchronous face of the clients, with its event loop in a thread of its own."""

import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from scriba.client import (
    Admin,
    Closed,
    Consumer,
    NewTopic,
    Producer,
    RecordError,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
)
from scriba.client.consuming.fetcher import Fetcher
from scriba.client.sync.clients import SyncDelivery
from scriba.wire.messages.fetch import PartitionData
from tools.kafka.brokers import Broker


def test_calls_wait_for_their_results(broker: Broker, topic: str) -> None:
    common: dict[str, Any] = {"bootstrap_servers": broker.bootstrap}
    with SyncAdmin(**common) as admin:
        admin.create_topics([NewTopic(topic, 1)])
    with SyncProducer(**common, linger_ms=0) as producer:
        assert producer.send(topic, b"0").offset == 0
        deliveries = [producer.send_nowait(topic, b"%d" % n) for n in range(1, 3000)]
        assert [delivery.result().offset for delivery in deliveries] == list(range(1, 3000))
        refused = producer.send_nowait(topic, "text")
        assert isinstance(refused.exception(), RecordError)
        with pytest.raises(RecordError):
            refused.result()
    with pytest.raises(Closed):
        producer.send(topic, b"late")
    with SyncConsumer(**common, auto_offset_reset="earliest") as consumer:
        consumer.assign(consumer.partitions(topic))
        seen = []
        for record in consumer:
            seen.append(record.offset)
            if len(seen) == 1234:
                break
        assert consumer.position((topic, 0)) == 1234, "what was read ahead is given back"
        while len(seen) < 3000:
            seen += [record.offset for record in consumer.poll(1000)]
        assert seen == list(range(3000))
        assert consumer.settings.max_poll_records == 500


BETWEEN: dict[str, Callable[[SyncConsumer[Any, Any], str], object]] = {
    "commit": lambda consumer, topic: consumer.commit(),
    "commit_nowait": lambda consumer, topic: consumer.commit_nowait(),
    "position": lambda consumer, topic: consumer.position((topic, 0)),
    "lag": lambda consumer, topic: consumer.lag((topic, 1)),
    "end_offsets": lambda consumer, topic: consumer.end_offsets([(topic, 0)]),
    "poll": lambda consumer, topic: consumer._ahead.extend(consumer.poll(0, max_records=3)),
    "pause": lambda consumer, topic: (consumer.pause((topic, 1)), consumer.resume((topic, 1))),
    "assign": lambda consumer, topic: consumer.assign([(topic, 1), (topic, 0)]),
    "seek": lambda consumer, topic: consumer.seek((topic, 0), consumer.position((topic, 0))),
}
"""Calls between two records."""


@pytest.mark.parametrize("call", BETWEEN)
def test_a_call_between_two_records_has_nothing_fetched_again(
    broker: Broker, topic: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seek has: in its partition, and in no other."""
    fetched = {0: 0, 1: 0}
    receive = Fetcher._receive

    def counted(
        self: Fetcher, source: Any, assigned: Any, want: Any, said: PartitionData, nodes: Any
    ) -> None:
        assert isinstance(said.records, memoryview)
        fetched[said.partition_index] += len(said.records)
        receive(self, source, assigned, want, said, nodes)

    monkeypatch.setattr(Fetcher, "_receive", counted)
    with SyncAdmin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 2)])
    with SyncProducer(bootstrap_servers=broker.bootstrap) as producer:
        for n in range(60):
            producer.send_nowait(topic, b"%03d" % n + b"x" * 1000, partition=n % 2)
    with SyncConsumer(
        bootstrap_servers=broker.bootstrap,
        group_id=topic,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=10,
    ) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        seen: list[list[int]] = [[], []]
        for record in consumer:
            seen[record.partition].append(record.offset)
            if sum(map(len, seen)) == 60:
                break
            BETWEEN[call](consumer, topic)
            assert consumer.position((topic, record.partition)) == record.offset + 1
    assert seen == [list(range(30))] * 2
    assert 30_000 < fetched[1] < 40_000
    assert fetched[0] < 40_000 or call == "seek"


def test_what_was_handed_over_is_sent_at_the_end(broker: Broker, topic: str) -> None:
    with SyncProducer(bootstrap_servers=broker.bootstrap, linger_ms=60_000) as producer:
        left = producer.send_nowait(topic, b"x")
    assert left.done()
    assert left.result().offset == 0


def test_threads_share_a_producer_and_each_keeps_its_order(broker: Broker, topic: str) -> None:
    """With so little memory each of them waits for it again and again."""
    with SyncAdmin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1)])
    sent: list[list[SyncDelivery]] = [[], [], []]
    with SyncProducer(
        bootstrap_servers=broker.bootstrap,
        value_serializer="str",
        linger_ms=1,
        batch_size=500,
        buffer_memory=4000,
    ) as producer:

        def send(thread: int) -> None:
            for n in range(400):
                sent[thread].append(producer.send_nowait(topic, f"{thread} {n}", key=b"k" * 30))

        threads = [Thread(target=send, args=(thread,)) for thread in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
        offsets = [[delivery.result().offset for delivery in mine] for mine in sent]
    assert sorted(offset for mine in offsets for offset in mine) == list(range(1200))
    assert all(mine == sorted(mine) for mine in offsets)
    with SyncConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        found = {record.offset: record.value for record in islice(consumer, 1200)}
    for number, mine in enumerate(offsets):
        assert [found[offset] for offset in mine] == [b"%d %d" % (number, n) for n in range(400)]


def test_what_cannot_be_sent_is_told_by_its_handle_alone(broker: Broker, topic: str) -> None:
    with SyncProducer(bootstrap_servers=broker.bootstrap, value_serializer="json") as producer:
        good = producer.send_nowait(topic, {"id": 1})
        refused = producer.send_nowait(topic, {"id": object()})
        nowhere = producer.send_nowait(topic, {"id": 2}, partition=99)
        last = producer.send_nowait(topic, {"id": 3}, headers={"from": b"test"})
        assert refused.done()
        assert isinstance(refused.exception(), RecordError)
        assert "no partition 99" in str(nowhere.exception())
        assert (good.result().offset, last.result().offset) == (0, 1)


def test_a_wrong_setting_is_told_when_the_client_is_made() -> None:
    with pytest.raises(ValueError, match="did you mean linger_ms"):
        SyncProducer(bootstrap_servers="localhost:9092", lingerms=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("plain", "face"), [(Producer, SyncProducer), (Consumer, SyncConsumer), (Admin, SyncAdmin)]
)
def test_every_method_has_a_synchronous_face(plain: type, face: type) -> None:
    def public(cls: type) -> set[str]:
        return {name for name in dir(cls) if not name.startswith("_")}

    assert public(plain) <= public(face)


def test_the_faces_have_the_types_of_the_originals(tmp_path: Path) -> None:
    script = tmp_path / "typed.py"
    script.write_text(
        "from scriba.client import ConsumerRecord, SyncConsumer, SyncProducer\n"
        "from typing import Any, assert_type\n"
        "def use(consumer: SyncConsumer, producer: SyncProducer) -> None:\n"
        "    assert_type(consumer.poll(1), list[ConsumerRecord[Any, Any]])\n"
        "    assert_type(consumer.position(('t', 0)), int)\n"
        "    assert_type(producer.send('t', b'x').offset, int)\n"
        "    consumer.poll('soon')\n"
        "    producer.send()\n"
    )
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(script)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        check=False,
    )
    wrong = [line.split(":")[1] for line in checked.stdout.splitlines() if "error:" in line]
    assert wrong == ["7", "8"], checked.stdout


FORGETFUL = """
import sys
from scriba.client import SyncProducer

producer = SyncProducer(bootstrap_servers=sys.argv[1], linger_ms=60_000)
for number in range(5):
    producer.send_nowait(sys.argv[2], b"%d" % number)
if sys.argv[3] == "close":
    producer.close()
"""


@pytest.mark.parametrize("end", ["close", "forget"])
def test_a_program_that_ends_without_a_close_says_what_is_lost(
    broker: Broker, topic: str, end: str
) -> None:
    command = [sys.executable, "-c", FORGETFUL, broker.bootstrap, topic, end]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    lost = "a producer was not closed before the program ended: 5 records were not acknowledged"
    assert (lost in done.stderr) == (end == "forget")
