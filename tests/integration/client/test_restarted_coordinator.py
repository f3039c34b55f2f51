"""A group whose coordinator is killed and comes back."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from scriba.client import BrokerError
from tests.integration.client.members import GROUPS, Member, create, fill, member, numbers
from tools.kafka.broker_fixtures import BACK_SOON
from tools.kafka.brokers import TESTED, Broker, running


@pytest.fixture(params=["scriba", "kafka"])
def own_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    with running(TESTED[request.param](tmp_path / request.param, GROUPS | BACK_SOON)) as node:
        yield node


async def commits_at_last(reader: Member) -> None:
    """A member that the group lost while Kafka took its time to start has to join again first."""
    async with asyncio.timeout(300):
        while True:
            try:
                return await reader.consumer.commit()
            except BrokerError:
                await asyncio.sleep(0.1)


async def test_members_go_on_where_they_were(own_broker: Broker, topic: str) -> None:
    await create(own_broker, topic, 2)
    await fill(own_broker, topic, 2, 20)
    async with (
        member(
            own_broker,
            f"{topic}-c",
            topic,
            auto_commit_interval_ms=100,
            session_timeout_ms=120_000,  # a start of Kafka takes its time on a busy machine
        ) as classic,
        member(own_broker, f"{topic}-m", topic, group_protocol="consumer") as modern,
    ):
        for reader in (classic, modern):
            await reader.has_seen(20)
        await asyncio.to_thread(own_broker.kill)
        await asyncio.to_thread(own_broker.start)
        await fill(own_broker, topic, 2, 20, first=20)
        for reader in (classic, modern):
            await reader.has_seen(40)
            assert sorted(set(numbers(reader))) == list(range(40))
            await commits_at_last(reader)
    async with member(own_broker, f"{topic}-c", topic) as again:
        await again.has(0, 1)
        assert [await again.consumer.position((topic, n)) for n in (0, 1)] == [20, 20]
