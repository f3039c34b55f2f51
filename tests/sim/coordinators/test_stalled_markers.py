"""Markers do not wait behind a partition whose follower has stalled."""

import asyncio

from scriba.client import Admin, NewTopic, Producer
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from tests.sim.broker_stage import BROKERS, Stage

LEADER, FOLLOWER, COORDINATOR = BROKERS
ONE_REPLICA = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


def test_a_stalled_follower_holds_up_no_marker_of_another_partition() -> None:
    sim = SimWorld(0)
    stage = Stage(sim, settings=ONE_REPLICA)

    async def client(world: ProcessWorld) -> None:
        async with Admin({"bootstrap.servers": stage.servers}, _ports=world) as admin:
            await admin.create_topics(
                [
                    NewTopic(
                        "stalls",
                        assignments={0: [LEADER, FOLLOWER]},
                        configs={"min.insync.replicas": "2"},
                    ),
                    NewTopic("flows", assignments={0: [LEADER]}),
                ]
            )
            held = await begun(admin, world, "held", "stalls")
            free = await begun(admin, world, "free", "flows")
            markers = stage.node(COORDINATOR).txn_markers
            stage.cluster.nodes[FOLLOWER].process.pause()
            for producer in (held, free):
                await producer.commit_transaction()
            pending = {name[:4] for name in markers._ending}
            assert "held" in pending
            await stage.until(lambda: all(name[:4] != "free" for name in markers._ending), 3)
            # And for as long as it stalls, those that come later.
            for _ in range(3):
                await free.begin_transaction()
                await free.send("flows", b"more")
                async with asyncio.timeout(3):
                    await free.commit_transaction()
                await stage.until(lambda: all(name[:4] != "free" for name in markers._ending), 3)
            assert any(name[:4] == "held" for name in markers._ending), "it is still stalled"
            stage.cluster.nodes[FOLLOWER].process.resume()
            await stage.until(lambda: not markers._ending)
            for producer in (held, free):
                await producer.close()

    async def begun(admin: Admin, world: ProcessWorld, name: str, topic: str) -> Producer:
        """A producer with an open transaction, whose coordinator is the broker that leads neither
        topic."""
        for number in range(50):
            tid = f"{name}-{number}"
            producer = Producer(
                bootstrap_servers=stage.servers, transactional_id=tid, linger_ms=0, _ports=world
            )
            await producer.init_transactions()
            (found,) = (await admin.describe_transactions([tid])).values()
            if found.coordinator == COORDINATOR:
                await producer.begin_transaction()
                await producer.send(topic, b"first")
                return producer
            await producer.close()
        raise AssertionError("no transactional id has its coordinator there")

    async def main() -> None:
        await stage.cluster.start()
        await stage.until(lambda: len(stage.image.brokers) == 3)
        await sim.host("client").start(client).task

    sim.run(main())
    assert not stage.complaints
