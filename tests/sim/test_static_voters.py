"""A quorum whose voters stand in the settings (kraft.version 0), as an older Kafka left it."""

from typing import Any

from scriba.broker.metadata.wire import TOPIC
from scriba.records.batch import ControlType, control_batch, control_type, decode_records, walk
from scriba.storage.directory.meta_properties import MetaProperties
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages.stored import LeaderChangeMessage, LeaderChangeMessageVoter
from tests.sim.quorum_nodes import SimQuorum, play, write, written

CLUSTER_ID = "of-an-older-kafka-----"


async def as_kafka_left_it(quorum: SimQuorum) -> None:
    """Each voter has the first batch of epoch 1, in which nothing is said of voters."""
    named = [LeaderChangeMessageVoter(voter_id=i) for i in quorum.ids]
    change = LeaderChangeMessage(leader_id=1, voters=named, granting_voters=named)
    batch = control_batch([(ControlType.LEADER_CHANGE, change.encode(0))], 1, 1)
    for node_id, host in quorum.hosts.items():

        async def body(world: ProcessWorld, node_id: int = node_id) -> None:
            disk = world.disk
            for path in ("/data", f"/data/{TOPIC}-0"):
                disk.mkdir(path)
                await disk.sync_dir(path.rpartition("/")[0] or "/")
            meta = MetaProperties(CLUSTER_ID, node_id, bytes([node_id]) * 16)
            await disk.write_atomic("/data/meta.properties", meta.encode())
            log = f"/data/{TOPIC}-0/{0:020}.log"
            await disk.write_atomic(log, bytes(batch))

        process = host.start(body)
        await process.task
        process.kill()


def control_kinds(quorum: SimQuorum, node_id: int) -> set[str]:
    data = quorum.hosts[node_id].volume.files()[f"/data/{TOPIC}-0/{0:020}.log"]
    kinds: set[Any] = set()
    for at, header in walk(data):
        if header.is_control:
            records = decode_records(memoryview(data)[at : at + header.size])
            kinds |= {control_type(record.key) for record in records}
    return {kind.name for kind in kinds}


def test_voters_of_the_settings_elect_and_the_level_stays_as_it_is() -> None:
    async def story(quorum: SimQuorum) -> None:
        await as_kafka_left_it(quorum)
        await quorum.start()
        leader = await quorum.leader()
        await write(quorum.node(leader), 42)
        await quorum.same_image()
        assert {node.cluster_id for node in quorum.alive.values()} == {CLUSTER_ID}
        assert quorum.node(leader).image.features.get("kraft.version", 0) == 0
        for node_id in quorum.ids:
            assert control_kinds(quorum, node_id) == {"LEADER_CHANGE"}
        quorum.kill(leader)
        heir = await quorum.leader()
        await write(quorum.node(heir), 43)
        await quorum.start(leader)
        await quorum.same_image()
        assert written(quorum.node(leader)) == 43

    play(story)


def test_voter_that_lost_its_disk_votes_again_once_it_has_caught_up() -> None:
    async def story(quorum: SimQuorum) -> None:
        await as_kafka_left_it(quorum)
        await quorum.start()
        leader = await quorum.leader()
        await write(quorum.node(leader), 7)
        await quorum.same_image()
        lost, third = (i for i in quorum.ids if i != leader)
        quorum.kill(lost)
        quorum.replace_disk(lost)
        await quorum.start(lost)
        await quorum.same_image()
        assert quorum.node(lost).metadata.quorum.raft.is_voter
        quorum.kill(third)
        await write(quorum.node(leader), 8)
        await quorum.same_image()
        quorum.kill(leader)
        await quorum.start(third)
        heir = await quorum.leader()
        await quorum.same_image()
        assert written(quorum.node(heir)) == 8, "the majority that committed it meets the next one"

    play(story)
