"""The picture of the cluster: what is asked for, and what stands in its way."""

import asyncio
from typing import Any

import pytest

from scriba.client import BrokerError, ClientError
from scriba.errors import ErrorCode
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.apis import ApiKey
from scriba.wire.messages.metadata import MetadataResponse
from tests.unit.client.clients import consumer, fill, offsets, producer, read, values
from tests.unit.client.fake_cluster import FakeCluster

NO_NAMES = [b"orders", 5, None, "\ud800", "x" * 40_000]


@pytest.mark.parametrize("name", NO_NAMES, ids=["bytes", "int", "None", "surrogate", "long"])
def test_what_is_no_name_of_a_topic_is_told_and_harms_no_other(name: Any) -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world) as p:
            with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION") as caught:
                await p.send(name, b"x")
            assert len(str(caught.value).encode()) < 300
            refused = p.send_nowait(name, b"x")
            await p.send("t", b"1")
            assert isinstance(refused.exception(), BrokerError)
        async with consumer(cluster, world) as c:
            c.assign([(name, 0)])
            with pytest.raises(BrokerError, match="INVALID_TOPIC_EXCEPTION"):
                await c.poll(60_000)
        async with consumer(cluster, world, group_id="g") as c:
            with pytest.raises(ValueError, match="is no name of a topic"):
                c.subscribe([name, "t"])

    cluster.run(main)
    assert values(log) == [b"1"]


def test_a_mistake_of_ours_is_told_to_those_who_wait_and_the_picture_is_kept_on() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world) as p:
            update = p._cluster._update
            p._cluster._update = _fail  # type: ignore[method-assign]
            with pytest.raises(ClientError, match="KeyError"):
                await p.send("t", b"1")
            p._cluster._update = update  # type: ignore[method-assign]
            while p._cluster.hopeless is not None:
                await p._cluster.next_update()
            await p.send("t", b"2")

    cluster.run(main)
    assert values(log) == [b"2"]


async def _fail() -> None:
    raise KeyError("a mistake")


def test_a_broker_that_wants_the_bootstrap_servers_asked_fails_nobody() -> None:
    cluster = FakeCluster()
    [log] = cluster.topic("t")
    cluster.topic("u")
    fill(log, 3)
    anew = MetadataResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)

    async def main(world: ProcessWorld) -> None:
        async with producer(cluster, world) as p, consumer(cluster, world) as c:
            await p.send("t", b"x")
            cluster.next(ApiKey.METADATA, lambda broker, request: anew)
            assert (await p.send("u", b"x")).offset == 0
            cluster.next(ApiKey.METADATA, lambda broker, request: anew)
            c.assign([("t", 0)])
            assert offsets(await read(c, 4)) == [0, 1, 2, 3]

    cluster.run(main)


def test_a_topic_that_a_send_waits_for_is_not_forgotten_as_unused() -> None:
    cluster = FakeCluster()

    async def main(world: ProcessWorld) -> None:
        async with producer(
            cluster, world, metadata_max_idle_ms=5000, max_block_ms=30_000, retry_backoff_ms=100
        ) as p:
            sending = asyncio.ensure_future(p.send("late", b"x"))
            await asyncio.sleep(12)
            cluster.topic("late")
            assert (await sending).offset == 0

    cluster.run(main)
