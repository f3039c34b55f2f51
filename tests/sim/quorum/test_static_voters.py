"""A quorum whose voters stand in the settings (kraft.version 0), as an older Kafka left it."""

import asyncio
from typing import Any

from scriba.broker.metadata.quorum.wire import TOPIC
from scriba.broker.node import Node
from scriba.errors import ErrorCode
from scriba.records.batch import ControlType, control_batch, control_type, decode_records, walk
from scriba.storage.directory.meta_properties import MetaProperties
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.messages.configs import FeatureUpdateKey, UpdateFeaturesRequest
from scriba.wire.messages.stored import LeaderChangeMessage, LeaderChangeMessageVoter
from tests.sim.quorum.nodes import SimQuorum, play, write, written
from tests.sim.quorum.voter_requests import add_request, ask, new_controller, remove_request, told

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


# ---- from the settings into the log ----


async def raise_level(
    node: Node, level: int = 1, kind: int = 1, **more: Any
) -> tuple[ErrorCode, str]:
    update = FeatureUpdateKey(
        feature="kraft.version", max_version_level=level, upgrade_type=kind, allow_downgrade=False
    )
    answer = await node.metadata.call(UpdateFeaturesRequest(feature_updates=[update], **more))
    return ErrorCode(answer.error_code), answer.error_message or ""


def test_level_is_raised_when_every_voter_has_told_its_directory_and_then_voters_change() -> None:
    async def story(quorum: SimQuorum) -> None:
        await as_kafka_left_it(quorum)
        await quorum.start()
        leader = await quorum.leader()
        node = quorum.node(leader)
        code, text = told(await ask(quorum, leader, remove_request(node, leader)))
        assert code is ErrorCode.UNSUPPORTED_VERSION
        assert "raise it to 1" in text

        async def ready() -> bool:
            return (await raise_level(node, validate_only=True))[0] is ErrorCode.NONE

        for _ in range(50):
            if await ready():
                break
            await asyncio.sleep(0.1)
        assert node.image.features.get("kraft.version", 0) == 0, "so far it was only asked"
        assert await raise_level(node) == (ErrorCode.NONE, "")
        await quorum.same_image()
        for each in quorum.alive.values():
            raft = each.metadata.quorum.raft
            assert each.image.features["kraft.version"] == 1
            assert {v.id: v.directory for v in raft.voters.values()} == {
                i: bytes([i]) * 16 for i in quorum.ids
            }
        assert (await raise_level(node))[0] is ErrorCode.NONE, "it is there: nothing to do"
        code, text = await raise_level(node, level=0, kind=2)
        assert (code, "would be lost" in text) == (ErrorCode.INVALID_UPDATE_VERSION, True)
        new_controller(quorum, 4)
        await quorum.start(4)
        await quorum.same_image()
        assert told(await ask(quorum, leader, add_request(quorum.node(4)), by=4))[0] == 0
        quorum.kill(leader)
        heir = await quorum.leader()
        await write(quorum.node(heir), 12)
        await quorum.start(leader)
        await quorum.same_image()
        assert quorum.node(leader).image.features["kraft.version"] == 1

    play(story)


def test_level_stays_while_a_voter_is_silent() -> None:
    async def story(quorum: SimQuorum) -> None:
        await as_kafka_left_it(quorum)
        await quorum.start(1, 2)
        node = quorum.node(await quorum.leader())
        await write(node, 3)
        code, text = await raise_level(node)
        assert code is ErrorCode.INVALID_UPDATE_VERSION
        assert "has not heard the directory of controller" in text
        assert "3" in text
        assert node.metadata.quorum.facts.voters is None

    play(story)
