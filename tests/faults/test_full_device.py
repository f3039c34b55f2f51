"""A broker's process on a device that is full, and then is not any more.

The device is a small tmpfs in a mount namespace of the broker's own: the test reaches it through
`/proc/PID/root`.
"""

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scriba.client import (
    Admin,
    BrokerError,
    ConfigResource,
    Consumer,
    NewTopic,
    Producer,
    TopicPartition,
)
from scriba.errors import ErrorCode
from tools.kafka.brokers import ScribaBroker, TraceableBroker

MOUNT = """
import os, subprocess, sys
place, size, *command = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], check=True)
os.execv(command[0], command)
"""
PATIENCE_S = 300


class CrampedBroker(ScribaBroker):
    """One whose data directory is a tmpfs of a few megabytes."""

    size = "6m"

    def command(self) -> list[str]:
        place = self.data / "data"
        place.mkdir(exist_ok=True)
        own = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
        return [*own, sys.executable, "-c", MOUNT, str(place), self.size, *super().command()]

    @property
    def device(self) -> Path:
        """The directory as the broker sees it."""
        return Path(f"/proc/{self.pid}/root{(self.data / 'data').resolve()}")

    def fill(self) -> None:
        """Leaves not a byte."""
        with open(self.device / "ballast", "ab") as ballast:
            for size in (1 << 16, 1):
                while True:
                    try:
                        os.write(ballast.fileno(), bytes(size))
                    except OSError:
                        break

    def make_room(self) -> None:
        (self.device / "ballast").unlink()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CrampedBroker]:
    settings = {
        "broker.heartbeat.interval.ms": "100",
        "metadata.max.idle.interval.ms": "100",
        "log.flush.offset.checkpoint.interval.ms": "100",
        "replica.high.watermark.checkpoint.interval.ms": "100",
        "log.retention.check.interval.ms": "100",
        "offsets.topic.num.partitions": "2",
        "scriba.metadata.reserve.bytes": "0",
    }
    broker = CrampedBroker(tmp_path, settings)
    broker.start()
    yield broker
    if not broker.ended():
        broker.kill()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def produce(broker: ScribaBroker, topic: str, value: bytes, wait_ms: int) -> str:
    """How one record fared."""
    async with Producer(
        bootstrap_servers=broker.bootstrap,
        delivery_timeout_ms=wait_ms,
        request_timeout_ms=wait_ms - 10,
    ) as producer:
        try:
            await producer.send(topic, value)
        except Exception as error:
            return str(error)
    return "stored"


async def read(broker: CrampedBroker, topic: str) -> list[bytes]:
    async with Consumer(bootstrap_servers=broker.bootstrap) as consumer:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = (await consumer.end_offsets([place]))[place]
        found: list[bytes] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < end:
                found += [r.value for r in await consumer.poll(1000) if r.value is not None]
        return found


async def test_topics_records_and_heartbeats_wait_for_room_and_reads_go_on(
    broker: CrampedBroker,
) -> None:
    async with Admin(bootstrap_servers=broker.bootstrap) as admin:
        await admin.create_topics([NewTopic("old", partitions=1)])
        assert await produce(broker, "old", b"before", 30_000) == "stored"
        broker.fill()
        with pytest.raises(BrokerError) as refused:
            await admin.create_topics([NewTopic("new", partitions=3)])
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        for _ in range(20):
            assert await produce(broker, "old", bytes(100_000), 200) != "stored"
        assert await read(broker, "old") == [b"before"]
        assert not broker.ended()
        said = broker.output.read_text()
        assert said.count("takes no writes") == 1, said
        assert "offline" not in said
        broker.make_room()
        await admin.create_topics([NewTopic("new", partitions=3)])
        for topic in ("old", "new"):
            assert await produce(broker, topic, b"after", 30_000) == "stored"
        assert (await read(broker, "old"))[0] == b"before"
    assert broker.stop() == 0
    assert "Traceback" not in broker.output.read_text()


async def test_a_stop_on_a_full_device_says_so_in_a_line_and_the_records_are_there(
    broker: CrampedBroker,
) -> None:
    async with Admin(bootstrap_servers=broker.bootstrap) as admin:
        await admin.create_topics([NewTopic("old", partitions=4)])
    assert await produce(broker, "old", b"before", 30_000) == "stored"
    broker.fill()
    assert await produce(broker, "old", bytes(100_000), 200) != "stored"
    assert broker.stop() == 0
    said = broker.output.read_text()
    assert "Traceback" not in said
    assert "not closed cleanly" in said, said
    assert len(said.splitlines()) < 30, said


class ReservedBroker(CrampedBroker):
    """One whose volume has room for the reserve of the metadata log."""

    size = "24m"


async def test_a_topic_can_be_deleted_on_a_device_without_a_byte_left(tmp_path: Path) -> None:
    broker = ReservedBroker(tmp_path, {"metadata.max.idle.interval.ms": "100"})
    broker.start()
    try:
        kept = broker.device / "__cluster_metadata-0" / "reserve"
        assert kept.stat().st_size == 1 << 20
        async with Admin(bootstrap_servers=broker.bootstrap) as admin:
            await admin.create_topics([NewTopic("old", partitions=1), NewTopic("gone")])
            broker.fill()
            for value in range(60):  # more than the block that the log has begun
                old = ConfigResource.topic("old")
                await admin.alter_configs({old: {"retention.ms": str(1_000_000 + value)}})
                assert await produce(broker, "old", bytes(100_000), 200) != "stored"
            assert kept.stat().st_size < 1 << 20
            await admin.delete_topics(["gone"])
            broker.make_room()
            await until(lambda: kept.exists() and kept.stat().st_size == 1 << 20)
            assert await produce(broker, "old", b"after", 30_000) == "stored"
        assert broker.stop() == 0
        assert "Traceback" not in broker.output.read_text()
    finally:
        if not broker.ended():
            broker.kill()


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
async def test_a_broker_whose_only_directory_fails_ends_with_one_clear_line(
    tmp_path: Path,
) -> None:
    broker = TraceableBroker(tmp_path, {"log.flush.interval.messages": "1"})
    await asyncio.to_thread(broker.start)
    assert await produce(broker, "old", b"before", 30_000) == "stored"
    command = ["strace", "-f", "-p", str(broker.pid), "-e", "inject=fdatasync:error=EIO"]
    tracer = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    assert tracer.stderr is not None
    while b"attached" not in await tracer.stderr.readline():
        pass
    drained = asyncio.ensure_future(tracer.stderr.read())
    assert await produce(broker, "old", b"lost", 2_000) != "stored"
    await until(broker.ended)
    await drained
    await tracer.wait()
    assert broker.process is not None
    assert broker.process.returncode == 1
    said = broker.output.read_text()
    assert "Traceback" not in said
    last = said.splitlines()[-1]
    assert last.startswith("scriba: "), said
    assert "start again" in last
