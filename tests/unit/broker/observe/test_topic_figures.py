"""What `scriba topic describe` shows of partitions, when some of them are not well."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from scriba.cli.topics.figures import ALONE_MS, PATIENCE_MS, offsets_of, sizes_of
from scriba.client import Admin, TopicPartition
from tests.unit.broker.brokers import PORT, Brokers, play

SICK = TopicPartition("sick", 0)
WELL, ELSEWHERE = TopicPartition("well", 0), TopicPartition("well", 1)


def left(brokers: Brokers, broker_id: int) -> bool:
    return broker_id not in brokers.image("sick").isr


def test_a_partition_without_an_end_and_a_dead_leader_leave_gaps_and_no_more() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("sick", (2, 3, 1), configs={"min.insync.replicas": "2"})
        await brokers.create("well", (1,), (3,))
        for broker, where in ((2, SICK), (1, WELL), (3, ELSEWHERE)):
            assert await brokers.produce(broker, where.topic, b"v", index=where.partition) == 0
        for lost in (3, 2):
            brokers.kill(lost)
            await brokers.until(partial(left, brokers, lost))
        assert brokers.image("sick").leader == 1
        leaders = {SICK: 1, WELL: 1, ELSEWHERE: 3}
        async with Admin(bootstrap_servers=f"b1:{PORT}", _ports=brokers.client) as admin:
            offsets = await offsets_of(admin, leaders)
            sizes = await sizes_of(admin, leaders)
        assert offsets == {SICK: (0, None), WELL: (0, 1), ELSEWHERE: (None, None)}
        assert sorted(sizes) == [SICK, WELL]

    play(script)


def test_a_leader_that_is_gone_is_waited_for_only_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int | None]] = []
    ask = Admin.list_offsets

    async def counted(self: Admin, wanted: Mapping[tuple[str, int], int], **more: Any) -> Any:
        asked.append((len(wanted), more.get("timeout_ms")))
        return await ask(self, wanted, **more)

    async def script(brokers: Brokers) -> None:
        await brokers.create("far", *[(3,)] * 4)
        brokers.kill(1)  # the controller: nobody is fenced
        brokers.kill(3)
        leaders = {TopicPartition("far", at): 3 for at in range(4)}
        async with Admin(bootstrap_servers=f"b2:{PORT}", _ports=brokers.client) as admin:
            offsets = await offsets_of(admin, leaders)
            assert await sizes_of(admin, leaders) == {}
        assert offsets == dict.fromkeys(leaders, (None, None))
        assert asked[:2] == [(4, PATIENCE_MS)] * 2, "first and next offsets, all at once"
        assert set(asked[2:]) == {(1, ALONE_MS)}

    monkeypatch.setattr(Admin, "list_offsets", counted)
    play(script)
