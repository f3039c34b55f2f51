"""A producer whose records cannot be written is told why: the page of `scriba topic why`."""

import asyncio
from typing import Any

import pytest

from scriba.client import BrokerError, ClientError, Producer, TimedOut
from scriba.client.diagnosis.gather import explained
from scriba.client.diagnosis.page import page
from scriba.controller.image import NO_LEADER
from scriba.errors import ErrorCode
from scriba.testing.sim.world.world import ProcessWorld
from tests.sim.broker_stage import BROKERS, Stage, play

LISTENING = {"scriba.metrics.listener": "http://0.0.0.0:9404"}
TIMEOUT_MS = 10_000


async def refused(stage: Stage, **settings: Any) -> ClientError:
    """The error that a producer gets; how long it took is what its delivery may take."""
    errors: list[ClientError] = []
    took: list[int] = []

    async def client(world: ProcessWorld) -> None:
        given = {
            "delivery_timeout_ms": TIMEOUT_MS,
            "request_timeout_ms": 2_000,
            "linger_ms": 0,
            **settings,
        }
        producer = Producer(bootstrap_servers=stage.servers, _ports=world, **given)
        async with producer:
            began = world.clock.mono_ms()
            try:
                await producer.send("t", b"x")
            except ClientError as error:
                errors.append(error)
            took.append(world.clock.mono_ms() - began)

    await stage.sim.host("client").start(client).task
    assert took[0] <= TIMEOUT_MS + 500
    (error,) = errors
    return error


async def why(stage: Stage) -> str:
    async def ask(admin: Any) -> str:
        topic = (await admin.describe_topics(["t"]))["t"]
        now_ms = admin._ports.clock.wall_ms()
        (document,) = await explained(admin, topic, 0, 3_000, now_ms)
        return page(document, now_ms)

    text: str = await stage.admin(ask)
    return text


def told(text: str) -> list[str]:
    """Without times, which have gone on."""
    return [line.partition(" since ")[0].partition(" ago")[0][:40] for line in text.splitlines()]


@pytest.mark.parametrize("seed", range(2))
def test_an_offline_partition_is_explained_in_the_error_of_a_produce(seed: int) -> None:
    async def script(stage: Stage) -> None:
        before = stage.partition()
        follower = next(at for at in BROKERS if at != before.leader)
        # One stays alive to be asked; it was not in sync when the others went.
        stage.kill(follower)
        await stage.until(lambda: follower not in stage.partition().isr)
        for at in BROKERS:
            if at != follower:
                stage.kill(at)
        await stage.until(lambda: stage.partition().leader == NO_LEADER)
        await stage.cluster.nodes[follower].start()
        await asyncio.sleep(3)
        assert stage.partition().leader == NO_LEADER
        error = await refused(stage)
        assert isinstance(error, TimedOut)
        first, _, explanation = str(error).partition("\n")
        assert first.startswith(f"t-0: not delivered within {TIMEOUT_MS} ms")
        assert explanation.startswith("t-0 is offline since ")
        assert f"  start broker {before.leader} at " in explanation
        assert "    scriba cluster elect t:0 --unclean" in explanation
        assert told(explanation) == told(await why(stage)), "the same page"
        # Controllers that are no brokers told who was lost, and when.
        assert f"broker_lost: broker {before.leader}: " in explanation
        assert f"node {stage.active.id}  partitions_leaderless" in explanation

    play(script, seed, LISTENING)


def test_too_few_replicas_are_explained_at_once_where_nothing_is_tried_again() -> None:
    async def script(stage: Stage) -> None:
        leader = stage.partition().leader
        for at in BROKERS:
            if at != leader:
                stage.kill(at)
        await stage.until(lambda: stage.partition().isr == (leader,))
        error = await refused(stage, retries=0, enable_idempotence=False)
        assert isinstance(error, BrokerError)
        assert error.code is ErrorCode.NOT_ENOUGH_REPLICAS
        first, _, explanation = str(error).partition("\n")
        assert first.startswith("t-0: NOT_ENOUGH_REPLICAS")
        assert explanation.startswith("t-0 is under min.insync.replicas")
        assert told(explanation) == told(await why(stage))
        assert "scriba config set --topic t min.insync.replicas=1" in explanation

    play(script, 0, LISTENING)


def test_what_cannot_be_found_out_leaves_the_error_as_it_was() -> None:
    async def script(stage: Stage) -> None:
        await stage.send([b"known"])
        known = asyncio.Event()

        async def client(world: ProcessWorld) -> None:
            producer = Producer(
                bootstrap_servers=stage.servers,
                delivery_timeout_ms=TIMEOUT_MS,
                request_timeout_ms=2_000,
                linger_ms=0,
                _ports=world,
            )
            async with producer:
                await producer.send("t", b"x")
                for at in BROKERS:
                    stage.cluster.nodes[at].process.pause()
                began = world.clock.mono_ms()
                with pytest.raises(TimedOut) as failed:
                    await producer.send("t", b"y")
                assert world.clock.mono_ms() - began <= TIMEOUT_MS + 500
                first, _, explanation = str(failed.value).partition("\n")
                assert first.startswith(f"t-0: not delivered within {TIMEOUT_MS} ms")
                assert explanation == "why: scriba topic why t-0"
                known.set()
                for at in BROKERS:
                    stage.cluster.nodes[at].process.resume()

        await stage.sim.host("client").start(client).task
        assert known.is_set()

    play(script, 0)
