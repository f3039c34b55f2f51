"""Observers in a cluster of whole nodes: behind a slow link, read from, promoted.

Brokers 4 and 5 are near and vote; 6 is far away, behind 200 ms each way, and observes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from scriba.broker.metrics.exposition import render
from scriba.cli.cluster import promote
from scriba.cli.topics.observers import observing, placements
from scriba.client import (
    Admin,
    ConfigOp,
    ConfigResource,
    Consumer,
    NewTopic,
    Producer,
    TopicPartition,
)
from scriba.client.diagnosis.explain import is_under_replicated
from scriba.client.diagnosis.gather import explained
from scriba.events import EventKind
from scriba.settings.keys.node import RACK_AWARE_SELECTOR
from scriba.settings.placement import PLACEMENT
from scriba.testing.sim.world.net import Path
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from tests.sim.broker_stage import Stage

NEAR, FAR = (4, 5), 6
RACKS = {4: "near", 5: "near", 6: "far"}
ASKED = "voters=2@near;observers=1@far"
SLOW = Path(delay_ms=(190, 210), loss=0.05)
SETTINGS = {
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "6000",
    "controller.quorum.election.timeout.ms": "2000",
    "controller.quorum.fetch.timeout.ms": "4000",
    "replica.selector.class": RACK_AWARE_SELECTOR,
    "scriba.observer.max.lag.ms": "3000",
}
WHERE = TopicPartition("t", 0)


class Far(Stage):
    def __init__(self, seed: int, racks: Mapping[int, str] = RACKS, **more: str) -> None:
        settings = SETTINGS | {name.replace("_", "."): value for name, value in more.items()}
        super().__init__(SimWorld(seed), len(racks), settings, racks)
        self.asked = tuple(racks)

    @property
    def servers(self) -> str:
        return ",".join(f"{self.cluster.name(at)}:9092" for at in self.asked)

    async def set_up(self) -> None:
        await self.cluster.start()
        await self.until(lambda: len(self.image.brokers) == 3)
        configs = {PLACEMENT: ASKED, "min.insync.replicas": "2"}
        await self.admin(lambda admin: admin.create_topics([NewTopic("t", 1, configs=configs)]))
        await self.until(lambda: {*self.partition().isr} == {*NEAR})
        self.go_far()

    def go_far(self) -> None:
        """All ways to and from the far broker are long."""
        for other in (*self.cluster.names, "near client"):
            if other != self.cluster.name(FAR):
                self.sim.network.worsen(other, self.cluster.name(FAR), SLOW)
                self.sim.network.worsen(self.cluster.name(FAR), other, SLOW)

    def end(self, broker: int) -> int:
        replica = self.node(broker).replicas.get("t", 0)
        assert replica is not None
        return replica.log.end_offset

    @property
    def serves(self) -> bool:
        replica = self.node(FAR).replicas.get("t", 0)
        return replica is not None and replica.serves

    async def as_client(
        self, script: Callable[[ProcessWorld], Awaitable[None]], host: str = "near client"
    ) -> None:
        done: list[bool] = []

        async def client(world: ProcessWorld) -> None:
            await script(world)
            done.append(True)

        await self.sim.host(host).start(client).task
        assert done

    async def write(self, count: int) -> float:
        """Sends with acks=all, one after the other; the longest that one took."""
        longest = 0.0

        async def script(world: ProcessWorld) -> None:
            nonlocal longest
            loop = self.sim.loop
            near = ",".join(f"{self.cluster.name(at)}:9092" for at in NEAR)
            async with Producer(bootstrap_servers=near, acks="all", _ports=world) as producer:
                await producer.send("t", b"first", partition=0)
                for number in range(count):
                    begun = loop.true_time()
                    await producer.send("t", b"%d" % number, partition=0)
                    longest = max(longest, loop.true_time() - begun)

        await self.as_client(script)
        return longest

    async def cut(self) -> None:
        for other in self.cluster.names:
            if other != self.cluster.name(FAR):
                self.sim.network.cut(other, self.cluster.name(FAR))


def play(script: Callable[[Far], Awaitable[None]], seed: int = 1, **more: str) -> None:
    stage = Far(seed, RACKS, **more)

    async def main() -> None:
        await stage.set_up()
        await script(stage)

    stage.sim.run(main())
    assert not stage.complaints


def test_an_observer_behind_a_slow_lossy_link_delays_no_acknowledgement() -> None:
    async def script(stage: Far) -> None:
        longest = await stage.write(200)
        assert longest < 0.1, "no way to the observer is shorter than 190 ms"
        assert {*stage.partition().isr} == {*NEAR}
        await stage.until(lambda: stage.end(FAR) == 201)
        assert {*stage.partition().isr} == {*NEAR}, "it has everything, and is in no ISR"
        leader = stage.node(stage.partition().leader).replicas.get("t", 0)
        assert leader is not None
        assert leader.leader is not None
        assert not leader.leader.under_replicated

    play(script)


def test_commands_do_not_miss_an_observer() -> None:
    async def script(stage: Far) -> None:
        async def look(admin: Admin) -> None:
            topic = (await admin.describe_topics(["t"]))["t"]
            observers = await observing(admin, ["t"])
            assert observers == {"t": {FAR}}
            assert not is_under_replicated(topic.partitions[0], observers["t"])
            assert is_under_replicated(topic.partitions[0]), "as Kafka's tools count"

        await stage.admin(look)

    play(script)


async def fetched(stage: Far, broker: int, count: int) -> None:
    """A consumer of the far rack reads all there is, at this broker."""

    async def script(world: ProcessWorld) -> None:
        consumer = Consumer(
            bootstrap_servers=stage.servers,
            client_rack="far",
            auto_offset_reset="earliest",
            _ports=world,
        )
        async with consumer:
            consumer.assign([WHERE])
            read = 0
            async with asyncio.timeout(60):
                while read < count:
                    read += len(await consumer.poll(1_000))

    before = {at: sent(stage, at) for at in RACKS}
    await stage.as_client(script, "far client")
    grew = {at for at in RACKS if sent(stage, at) > before[at]}
    assert grew == {broker}


def sent(stage: Far, broker: int) -> int:
    """Bytes of records that a broker sent to consumers."""
    return int(stage.node(broker).counters.topic_bytes_out)


def test_consumers_of_its_rack_read_from_an_observer_that_is_not_too_far_behind() -> None:
    async def script(stage: Far) -> None:
        await stage.write(20)
        await stage.until(lambda: stage.end(FAR) == 21)
        await stage.until(lambda: stage.serves)
        await fetched(stage, FAR, 21)
        await stage.cut()
        await stage.write(5)
        await stage.until(lambda: not stage.serves)
        await fetched(stage, stage.partition().leader, 26)
        stage.sim.network.heal()
        stage.go_far()
        await stage.until(lambda: stage.serves)
        await fetched(stage, FAR, 26)

    play(script)


def told(stage: Far, broker: int) -> dict[str, float]:
    """What a broker's metrics say of its observers."""
    lines = (line.rpartition(" ") for line in render(stage.node(broker)).splitlines())
    return {name: float(value) for name, _, value in lines if name.startswith("scriba_observer_")}


def test_the_lag_of_an_observer_is_in_the_metrics_of_its_broker() -> None:
    async def script(stage: Far) -> None:
        await stage.write(20)
        await stage.until(lambda: stage.end(FAR) == 21)
        await stage.until(lambda: stage.serves)
        seen = told(stage, FAR)
        assert seen["scriba_observer_replicas"] == seen["scriba_observer_serving_replicas"] == 1
        assert seen["scriba_observer_lag_records"] == 0
        assert seen["scriba_observer_lag_seconds"] < 3
        await stage.cut()
        await asyncio.sleep(10)
        seen = told(stage, FAR)
        assert seen["scriba_observer_serving_replicas"] == 0
        assert seen["scriba_observer_lag_seconds"] > 9
        assert told(stage, NEAR[0])["scriba_observer_replicas"] == 0
        stage.sim.network.heal()

    play(script)


def test_records_that_an_observer_was_told_of_are_in_its_metrics() -> None:
    async def script(stage: Far) -> None:
        await stage.write(40)
        await stage.until(lambda: stage.end(FAR) >= 5)
        assert told(stage, FAR)["scriba_observer_lag_records"] > 0

    play(script, replica_fetch_max_bytes="1")


def test_the_placement_of_a_living_topic_makes_a_voter_of_an_observer_and_back() -> None:
    async def script(stage: Far) -> None:
        stage.sim.network.heal()

        async def set_to(value: str) -> None:
            change = {ConfigResource.topic("t"): [(PLACEMENT, ConfigOp.SET, value)]}
            await stage.admin(lambda admin: admin.incremental_alter_configs(change))

        await set_to("voters=2@near,1@far")
        await stage.until(lambda: {*stage.partition().isr} == {*RACKS}, 5)
        await set_to(ASKED)
        await stage.until(lambda: {*stage.partition().isr} == {*NEAR}, 5)
        assert await stage.write(5) < 0.1

    play(script)


def test_an_observer_moves_to_another_broker_when_that_one_has_everything() -> None:
    """Four brokers: 6 and 7 are far."""
    stage = Far(1, {**RACKS, 7: "far"})

    async def main() -> None:
        await stage.cluster.start()
        await stage.until(lambda: len(stage.image.brokers) == 4)
        topic = NewTopic("t", assignments={0: [4, 5, 6]}, configs={PLACEMENT: ASKED})
        await stage.admin(lambda admin: admin.create_topics([topic]))
        await stage.write(50)
        stage.kill(7)
        move: dict[tuple[str, int], Any] = {("t", 0): [4, 5, 7]}
        await stage.admin(lambda admin: admin.alter_partition_reassignments(move))
        await asyncio.sleep(5)
        assert {*stage.partition().replicas} == {4, 5, 6, 7}, "the new one has nothing yet"
        stage.cluster.nodes[7].boot()
        await stage.until(lambda: stage.partition().replicas == (4, 5, 7))
        assert stage.end(7) == stage.end(4)
        assert {*stage.partition().isr} == {*NEAR}

    stage.sim.run(main())
    assert not stage.complaints


async def lose_the_region(stage: Far) -> None:
    for at in NEAR:
        stage.power_cut(at)
    stage.sim.network.heal()
    await stage.until(lambda: stage.partition().leader == -1)
    stage.asked = (FAR,)


async def promoted(stage: Far) -> promote.Promotion:
    """What was told of the partition before it was promoted."""
    wanted, found, held = await stage.admin(lambda admin: promote.look(admin, "far", []))
    assert {name: each.text() for name, each in wanted.items()} == {
        "t": "voters=1@far;observers=2@near"
    }
    assert stage.partition().leader == -1, "nothing is changed by looking"
    after = await stage.admin(lambda admin: promote.promote(admin, wanted, found, held))
    assert stage.partition().leader == FAR
    assert [(each.chosen, each.end_offset) for each in after] == [(FAR, found[0].end_offset)]
    assert await stage.admin(lambda admin: placements(admin, ["t"])) == wanted
    before: promote.Promotion = found[0]
    return before


@pytest.mark.parametrize("seed", range(2))
def test_promotion_after_the_loss_of_a_region_tells_what_is_missing(seed: int) -> None:
    async def script(stage: Far) -> None:
        await stage.write(30)
        await stage.until(lambda: stage.end(FAR) == 31)
        await stage.cut()
        await stage.write(9)
        await lose_the_region(stage)
        before = await promoted(stage)
        assert (before.leader, before.chosen, before.end_offset, before.missing) == (
            None,
            FAR,
            31,
            0,
        )
        assert before.loses() == "whatever was written from offset 31 on"
        await stage.cluster.start()
        await stage.until(lambda: all(stage.end(at) == stage.end(FAR) for at in NEAR))
        assert stage.partition().isr == (FAR,), "they observe now"
        assert len(await stage.read()) == 31

    play(script, seed)


def test_what_an_observer_was_told_of_and_lacks_is_named_by_offset() -> None:
    """It gets one record at a time, and hears each time what is committed."""

    async def script(stage: Far) -> None:
        await stage.write(40)
        await stage.until(lambda: stage.end(FAR) >= 5)
        has = stage.end(FAR)
        await stage.cut()
        await lose_the_region(stage)

        async def why(admin: Admin) -> dict[str, Any]:
            topic = (await admin.describe_topics(["t"]))["t"]
            [document] = await explained(admin, topic, 0, 3_000, 0)
            return document

        last = (await stage.admin(why))["choices"][-1]
        assert last["command"] == "scriba cluster promote far --topic t --unclean"
        assert f"offsets {has} to 40" in last["loses"]
        before = await promoted(stage)
        assert before.end_offset == has < 41
        assert before.committed == 41
        assert before.loses() == (
            f"offsets {has} to 40, and whatever was written from offset 41 on"
        )

    play(script, replica_fetch_max_bytes="1")


def test_a_leader_that_only_its_observers_do_not_reach_goes_on() -> None:
    """Two are silent while the controller answers: were they voters, it would step down."""
    stage = Far(1, {4: "near", 5: "far", 6: "far"}, scriba_replica_stall_ms="500")

    async def main() -> None:
        await stage.cluster.start()
        await stage.until(lambda: len(stage.image.brokers) == 3)
        configs = {PLACEMENT: "voters=1@near;observers=2@far"}
        await stage.admin(lambda admin: admin.create_topics([NewTopic("t", 1, configs=configs)]))
        await stage.until(lambda: stage.partition().leader == 4)
        await stage.until(lambda: len(stage.node(4).replicas.follower_sessions) == 2)
        for observer in (5, 6):
            stage.sim.network.cut(stage.cluster.name(4), stage.cluster.name(observer))
        await asyncio.sleep(10)
        assert not stage.told(stage.node(4), EventKind.LEADER_CUT_OFF)
        assert stage.partition().leader_epoch == 0
        stage.sim.network.heal()

    stage.sim.run(main())
    assert not stage.complaints
