"""A damaged batch in a coordinator's log: said once, felt by nobody else, repaired by a command."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from scriba.broker.coordinators.shard import partition_for
from scriba.broker.node import Node
from scriba.cli.main import main
from scriba.client import Admin, ClientError, NewTopic, Producer, TopicPartition
from scriba.events import EventKind
from scriba.records.header import HEADER_SIZE, walk
from scriba.runtime.loop.loop import run
from scriba.runtime.world import RealWorld
from scriba.settings import NodeSettings

SHARDS = 3
TRANSACTION_SHARDS = 2
GROUPS = [f"group-{number}" for number in range(12)]
PLACE = TopicPartition("orders", 0)
Script = Callable[[Node, Admin], Awaitable[None]]


def shard_of(group: str) -> int:
    return partition_for(group, SHARDS)


HURT = shard_of(GROUPS[0])


def play(script: Script, data: Path) -> None:
    settings = NodeSettings.parse(
        {
            "log.dirs": str(data),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "offsets.topic.num.partitions": str(SHARDS),
            "transaction.state.log.num.partitions": str(TRANSACTION_SHARDS),
        }
    )

    async def live() -> None:
        async with RealWorld() as world:
            node = Node(settings, world)
            await node.start()
            try:
                servers = f"127.0.0.1:{node.listeners[0].port}"
                async with Admin(bootstrap_servers=servers) as admin:
                    await script(node, admin)
            finally:
                await node.stop()

    run(live())


async def commit_twice(node: Node, admin: Admin) -> None:
    await admin.create_topics([NewTopic("orders", partitions=1)])
    for offset in (1, 2):
        for group in GROUPS:
            await admin.alter_group_offsets(group, {PLACE: offset})


async def all_are_back(node: Node, admin: Admin) -> None:
    for group in GROUPS:
        found = await admin.list_group_offsets(group)
        assert found[PLACE].offset == 2, group


async def only_the_hurt_shard_is_down(node: Node, admin: Admin) -> None:
    for group in GROUPS:
        if shard_of(group) != HURT:
            assert (await admin.list_group_offsets(group))[PLACE].offset == 2
    with pytest.raises(ClientError):
        await admin.list_group_offsets(GROUPS[0], timeout_ms=500)
    while node.group_coordinators.counts.failures < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    events = [e for e in node.events.since() if e.kind is EventKind.COORDINATOR_FAILED]
    assert len(events) == 1
    assert "scriba log repair" in events[0].text


def damage_the_first_batch(data: Path, partition: str = f"__consumer_offsets-{HURT}") -> Path:
    """Which a later one has superseded."""
    directory = data / partition
    path = directory / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    position, header = next(iter(walk(content)))
    content[position + header.size - 1] ^= 0x01
    assert header.size > HEADER_SIZE
    path.write_bytes(content)
    return directory


def test_a_damaged_batch_is_told_once_and_all_groups_are_back_after_a_repair(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    play(commit_twice, tmp_path)
    directory = damage_the_first_batch(tmp_path)
    with caplog.at_level(logging.WARNING, "scriba"):
        play(only_the_hurt_shard_is_down, tmp_path)
    (line,) = [record for record in caplog.records if "cannot be loaded" in record.getMessage()]
    assert "the batch at offset 0" in line.getMessage()
    assert f"scriba log repair {directory}" in line.getMessage()
    assert line.exc_info is None
    assert main(["log", "repair", str(directory)]) == 1
    assert "would drop offset 0" in capsys.readouterr().out
    assert main(["log", "repair", str(directory), "--yes"]) == 0
    play(all_are_back, tmp_path)


def test_a_flipped_offset_sets_the_partition_aside_and_says_how_to_mend_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    play(commit_twice, tmp_path)
    directory = tmp_path / f"__consumer_offsets-{HURT}"
    path = directory / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[6] ^= 0x01
    path.write_bytes(content)

    async def is_offline(node: Node, admin: Admin) -> None:
        with pytest.raises(ClientError):
            await admin.list_group_offsets(GROUPS[0], timeout_ms=500)

    play(is_offline, tmp_path)
    lines = [record.getMessage() for record in caplog.records]
    assert [f"scriba log repair {directory}" in line for line in lines].count(True) == 1
    assert main(["log", "repair", str(directory), "--yes"]) == 0
    play(all_are_back, tmp_path)


async def two_transactions(node: Node, admin: Admin) -> None:
    await admin.create_topics([NewTopic("orders", partitions=1)])
    servers = f"127.0.0.1:{node.listeners[0].port}"
    async with Producer(bootstrap_servers=servers, transactional_id="till") as producer:
        for value in (b"first", b"second"):
            async with producer.transaction():
                await producer.send("orders", value)


async def its_coordinator_is_down(node: Node, admin: Admin) -> None:
    with pytest.raises(ClientError):
        await admin.describe_transactions(["till"], timeout_ms=500)
    (event,) = [e for e in node.events.since() if e.kind is EventKind.COORDINATOR_FAILED]
    assert "__transaction_state" in event.text
    assert "scriba log repair" in event.text


async def transactions_go_on(node: Node, admin: Admin) -> None:
    found = await admin.describe_transactions(["till"])
    assert found["till"].state == "CompleteCommit"
    servers = f"127.0.0.1:{node.listeners[0].port}"
    async with (
        Producer(bootstrap_servers=servers, transactional_id="till") as producer,
        producer.transaction(),
    ):
        written = await producer.send("orders", b"third")
    assert written.offset == 4  # behind two records and their two markers


def test_transactions_go_on_after_a_repair_of_their_coordinators_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(two_transactions, tmp_path)
    shard = partition_for("till", TRANSACTION_SHARDS)
    directory = damage_the_first_batch(tmp_path, f"__transaction_state-{shard}")
    play(its_coordinator_is_down, tmp_path)
    assert main(["log", "repair", str(directory), "--yes"]) == 0
    assert "dropped offset 0" in capsys.readouterr().out
    play(transactions_go_on, tmp_path)
