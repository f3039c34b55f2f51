"""Three nodes as processes, under the whole cast, while everything happens to them that can.

They are killed, stopped and started again, and stand still (SIGSTOP); what they say to each other
is cut: wholly, in one direction, again and again; their devices are full, or slow. Replicas go and
come back meanwhile, and voters. Idempotent producers, transactions, groups of both protocols and a
compacted table go on all the while. In the end nothing acknowledged is lost, nothing is doubled,
nothing aborted was read, and the replicas of every partition are the same byte by byte.

`make test` plays one of every kind (`KINDS`), in about two minutes. `make chaos` plays all of
`MISFORTUNES` and then draws from them for an hour (`SCRIBA_CHAOS_S`, and a seed of its own with
`SCRIBA_CHAOS_SEED`).
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from scriba.client import Admin, ClientError, ConfigOp, ConfigResource, Endpoint
from scriba.runtime.rng import SeededRng
from scriba.testing.sim.actors.cast import SINK, SOURCE, TABLE
from scriba.testing.sim.actors.mover import RATES, THROTTLED
from scriba.testing.sim.plays.cluster_stage import PACE
from tests.faults.cast_play import LONGEST_S, PARTITIONS, SETTINGS, Play
from tools.kafka.links import Links
from tools.kafka.scriba_nodes import ScribaNode, ScribaNodes, running_nodes

CHAOS_S = float(os.environ.get("SCRIBA_CHAOS_S", "3600" if "SCRIBA_CHAOS" in os.environ else "0"))
SEED = int(os.environ.get("SCRIBA_CHAOS_SEED", "11"))
SESSION_S = 3
OF_NODES = {
    **PACE,
    "broker.session.timeout.ms": str(SESSION_S * 1000),
    "replica.lag.time.max.ms": "3000",
    # As in production: on a busy machine a process may not run for a second.
    "controller.quorum.fetch.timeout.ms": "2000",
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.request.timeout.ms": "2000",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "default.replication.factor": "3",
    "initial.broker.registration.timeout.ms": "60000",
    "min.insync.replicas": "2",
}
REPLICATED = [
    *((topic, at) for topic in (SOURCE, SINK) for at in range(PARTITIONS)),
    ("__transaction_state", 0),
]
"""Partitions whose replicas are the same byte by byte; others are compacted by each for itself."""


def tell(line: str) -> None:
    """For whoever watches a long run (`pytest -s`)."""
    print(line, flush=True)  # noqa: T201


class ClusterPlay(Play):
    def __init__(self, nodes: ScribaNodes, seed: int) -> None:
        super().__init__(nodes.bootstrap, factor=3, seed=seed)
        self.nodes = nodes
        self.draw = SeededRng(seed).fork("misfortunes")
        self.happened: list[str] = []

    # ---- whom it hits ----

    def any_node(self) -> ScribaNode:
        return self.nodes.nodes[1 + self.draw.below(len(self.nodes.nodes))]

    async def controller(self) -> ScribaNode:
        async with Admin({"bootstrap.servers": self.bootstrap}) as admin:
            return self.nodes.nodes[(await admin.describe_quorum()).leader]

    async def leader(self, topic: str = SOURCE) -> ScribaNode:
        while True:
            async with Admin({"bootstrap.servers": self.bootstrap}) as admin:
                found = await admin.describe_topics([topic])
            leader = found[topic].partitions[0].leader
            if leader is not None:
                return self.nodes.nodes[leader]
            await asyncio.sleep(0.1)

    # ---- what happens ----

    async def kill(self, node: ScribaNode) -> None:
        node.kill()
        await self.go_on()
        await asyncio.to_thread(node.start)

    async def kill_leader(self) -> None:
        await self.kill(await self.leader())

    async def kill_coordinator(self) -> None:
        await self.kill(await self.leader("__transaction_state"))

    async def kill_controller(self) -> None:
        await self.kill(await self.controller())

    async def kill_at_start(self) -> None:
        """Again and again on the way up."""
        node = self.any_node()
        for _ in range(3):
            node.kill()
            node.launch()
            await asyncio.sleep(self.draw.between(0.2, 2))
        node.kill()
        await asyncio.to_thread(node.start)

    async def pause_leader(self) -> None:
        """For longer than it is waited for: another leads when it comes back."""
        node = await self.leader()
        node.pause()
        await self.go_on()
        await asyncio.sleep(self.draw.between(0, 2))
        node.resume()

    async def pause_controller(self) -> None:
        node = await self.controller()
        node.pause()
        await self.go_on()
        node.resume()

    async def pause_briefly(self) -> None:
        node = self.any_node()
        node.pause()
        await asyncio.sleep(self.draw.between(0.2, SESSION_S))
        node.resume()

    async def restart_all(self) -> None:
        """One by one, in good order."""
        for node in self.nodes.nodes.values():
            assert await asyncio.to_thread(node.stop) == 0, node.tail()
            await asyncio.to_thread(node.start)
            await self.in_sync()

    async def kill_all(self) -> None:
        """The processes end at once, their disks stay."""
        self.nodes.kill()
        await asyncio.to_thread(self.nodes.start)

    async def cut_leader_off(self) -> None:
        node = await self.leader()
        for other in self.others(node):
            self.links.cut(node.number, other.number)
        await self.go_on()
        self.links.heal()

    async def cut_controller_off(self) -> None:
        node = await self.controller()
        for other in self.others(node):
            self.links.cut(node.number, other.number)
        await self.go_on()
        self.links.heal()

    async def deafen(self) -> None:
        """It is heard and hears nothing."""
        node = await self.leader()
        for other in self.others(node):
            self.links.cut(other.number, node.number, one_way=True)
        await asyncio.sleep(self.draw.between(1, 2 * SESSION_S))
        self.links.heal()

    async def silence(self) -> None:
        """It hears and is not heard."""
        node = await self.leader()
        for other in self.others(node):
            self.links.cut(node.number, other.number, one_way=True)
        await asyncio.sleep(self.draw.between(1, 2 * SESSION_S))
        self.links.heal()

    async def cut_pair(self) -> None:
        """Two do not reach each other, and a third reaches both."""
        node = await self.leader()
        other = self.others(node)[self.draw.below(2)]
        self.links.cut(node.number, other.number)
        await asyncio.sleep(self.draw.between(1, 2 * SESSION_S))
        self.links.heal()

    async def flap(self) -> None:
        node = self.any_node()
        for _ in range(6):
            for other in self.others(node):
                self.links.cut(node.number, other.number, one_way=self.draw.chance(0.5))
            await asyncio.sleep(self.draw.between(0.1, 1.5))
            self.links.heal()
            await asyncio.sleep(self.draw.between(0.05, 0.5))

    async def fill_disk(self) -> None:
        """Nothing fits for a while: nobody may lose what was acknowledged, and all wait."""
        await self.worsen_disk(self.any_node(), "full")

    async def fill_disk_of_controller(self) -> None:
        await self.worsen_disk(await self.controller(), "full")

    async def slow_disk(self) -> None:
        await self.worsen_disk(self.any_node(), "slow")

    async def worsen_disk(self, node: ScribaNode, fault: Literal["full", "slow"]) -> None:
        node.worsen(fault)
        await asyncio.sleep(self.draw.between(1, 2 * SESSION_S))
        node.mend()

    async def kill_target_of_move(self) -> None:
        await self.kill_in_move("target")

    async def kill_source_of_move(self) -> None:
        await self.kill_in_move("source")

    async def kill_controller_in_move(self) -> None:
        await self.kill_in_move("controller")

    async def kill_in_move(self, part: Literal["target", "source", "controller"]) -> None:
        """A replica goes, and comes back so slowly that somebody dies before it is there."""
        leader = await self.leader()
        target = self.others(leader)[self.draw.below(2)]
        rest = [number for number in self.nodes.nodes if number != target.number]
        await self.move(rest)
        await self.moved(rest)
        await self.throttle("1")
        await self.move([target.number, *rest])
        dies = {"target": target, "source": leader}.get(part) or await self.controller()
        dies.kill()
        await asyncio.to_thread(dies.start)
        await self.throttle(None)
        await self.moved([target.number, *rest])

    async def move(self, replicas: list[int]) -> None:
        async with Admin({"bootstrap.servers": self.bootstrap}) as admin:
            await admin.alter_partition_reassignments({(SOURCE, 0): replicas})

    async def moved(self, replicas: list[int]) -> None:
        """Until exactly these are the replicas, and in sync."""
        async with asyncio.timeout(LONGEST_S):
            while True:
                async with Admin({"bootstrap.servers": self.bootstrap}) as admin:
                    found = (await admin.describe_topics([SOURCE]))[SOURCE].partitions[0]
                if list(found.replicas) == replicas and {*found.isr} == {*replicas}:
                    return
                await asyncio.sleep(0.1)

    async def throttle(self, rate: str | None) -> None:
        """What new replicas of the moving topic may get in a second, or no throttle at all."""
        op = ConfigOp.DELETE if rate is None else ConfigOp.SET
        named = None if rate is None else "*"
        brokers = [ConfigResource.broker(number) for number in self.nodes.nodes]
        async with Admin({"bootstrap.servers": self.bootstrap}) as admin:
            await admin.incremental_alter_configs(
                {
                    **{broker: [(name, op, rate) for name in RATES] for broker in brokers},
                    ConfigResource.topic(SOURCE): [(name, op, named) for name in THROTTLED],
                }
            )

    async def change_voters(self) -> None:
        """One of the three votes no more for a while; it may be the one that leads."""
        node = self.any_node()
        await self.vote(node, False)
        await self.go_on()
        await self.vote(node, True)

    async def vote(self, node: ScribaNode, votes: bool) -> None:
        """Asked until it is so: an answer may be lost, and a leader go."""
        host, _, port = self.nodes.controller_address(node.number).rpartition(":")
        async with asyncio.timeout(LONGEST_S):
            while True:
                with suppress(ClientError):
                    async with Admin({"bootstrap.servers": self.bootstrap}) as admin:
                        found = await admin.describe_quorum()
                        if votes is (node.number in {voter.id for voter in found.voters}):
                            return
                        known = {each.id: each for each in (*found.voters, *found.observers)}
                        directory = known[node.number].directory_id
                        if votes:
                            address = Endpoint("CONTROLLER", host, int(port))
                            await admin.add_raft_voter(node.number, directory, [address])
                        else:
                            await admin.remove_raft_voter(node.number, directory)
                await asyncio.sleep(0.1)

    async def member_leaves(self) -> None:
        member = self.any_member()
        await self.leave(member)
        self.enter(member)

    MISFORTUNES = (
        kill_leader,
        pause_leader,
        kill_controller,
        kill_target_of_move,
        restart_all,
        member_leaves,
        cut_leader_off,
        silence,
        fill_disk,
        kill_source_of_move,
        kill_coordinator,
        change_voters,
        deafen,
        slow_disk,
        pause_controller,
        cut_pair,
        kill_controller_in_move,
        fill_disk_of_controller,
        flap,
        kill_at_start,
        cut_controller_off,
        pause_briefly,
        kill_all,
    )

    KINDS = (
        kill_leader,
        pause_leader,
        kill_controller,
        kill_target_of_move,
        restart_all,
        member_leaves,
        cut_leader_off,
        silence,
        fill_disk,
        kill_coordinator,
        change_voters,
        deafen,
        slow_disk,
        pause_controller,
        flap,
        cut_controller_off,
        kill_all,
    )
    """Of those that differ only in what fails meanwhile, or for how long, the first."""

    async def happen(self, misfortune: "Callable[[ClusterPlay], Awaitable[None]]") -> None:
        self.happened.append(misfortune.__name__)
        began = time.monotonic()
        await misfortune(self)
        await self.go_on()
        tell(f"{misfortune.__name__}: whole again after {time.monotonic() - began:.1f} s")

    @property
    def links(self) -> Links:
        assert self.nodes.links is not None
        return self.nodes.links

    def others(self, node: ScribaNode) -> list[ScribaNode]:
        return [other for other in self.nodes.nodes.values() if other is not node]

    # ---- what must be so ----

    async def in_sync(self) -> None:
        """Until every replica of every partition is in sync."""

        async def behind() -> bool:
            async with Admin({"bootstrap.servers": self.bootstrap}) as admin:
                names = [SOURCE, SINK, TABLE, "__consumer_offsets", "__transaction_state"]
                found = await admin.describe_topics(names)
            return any(len(part.isr) < 3 for each in found.values() for part in each.partitions)

        async with asyncio.timeout(300):
            while await behind():  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    def compare_replicas(self) -> None:
        for topic, at in REPLICATED:
            logs = {n: node.log(topic, at) for n, node in self.nodes.nodes.items()}
            assert len(set(logs.values())) == 1, (
                f"the replicas of {topic}-{at} differ: { {n: len(log) for n, log in logs.items()} }"
            )


async def test_nothing_acknowledged_is_lost_whatever_happens_to_the_nodes(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with running_nodes(tmp_path, {**SETTINGS, **OF_NODES}, linked=True) as nodes:
        play = ClusterPlay(nodes, SEED)
        try:
            async with play.on_stage():
                await play.set_up()
                first = ClusterPlay.MISFORTUNES if CHAOS_S else ClusterPlay.KINDS
                for misfortune in first:
                    await play.happen(misfortune)
                end = time.monotonic() + CHAOS_S
                while time.monotonic() < end and not play.books.violations:
                    number = play.draw.below(len(ClusterPlay.MISFORTUNES))
                    await play.happen(ClusterPlay.MISFORTUNES[number])
                await play.come_to_rest()
                await play.in_sync()
        except (TimeoutError, AssertionError) as error:
            error.add_note(f"{play.happened}\n{play.books.violations}\n{nodes.tail()}")
            raise
        assert not play.books.violations, play.books.violations
        assert nodes.stop() == [0, 0, 0], nodes.tail()
        play.compare_replicas()
        pause_s = play.feeder.longest_s
        record_property("the longest pause of a producer", f"{pause_s:.1f} s")
        tell(
            f"{play.books.records.acked} records acknowledged, "
            f"{len(play.books.transactions.told)} transactions, "
            f"{play.books.groups.accepted} commits; the longest pause {pause_s:.1f} s"
        )
