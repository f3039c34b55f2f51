"""Questions for coordinators that are unusual, answered as Kafka 4.3 answers them."""

import asyncio
from collections.abc import Callable

import pytest

from scriba.broker.node import Node
from scriba.errors import ErrorCode
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.apis import ApiKey
from scriba.wire.messages import admin, groups, metadata

InANode = Callable[..., None]
SHARE, NONSENSE = 2, 7


async def connect(world: ProcessWorld) -> Peer:
    return await Peer.connect(world.net, "127.0.0.1", 9092)


async def find(client: Peer, version: int, key_type: int = 0) -> list[tuple[int, int]]:
    """Error and node of each coordinator."""
    asked = metadata.FindCoordinatorRequest(key_type=key_type if version else 0)
    if version < 4:
        asked.key = "g"
    else:
        asked.coordinator_keys = ["g", "h"]
    answer = await client.send(asked, version, metadata.FindCoordinatorResponse)
    if version < 4:
        return [(answer.error_code, answer.node_id)]
    return [(each.error_code, each.node_id) for each in answer.coordinators]


@pytest.mark.parametrize("version", range(7))
def test_a_coordinator_is_found_at_the_first_question(in_a_node: InANode, version: int) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await connect(world)
        assert set(await find(client, version)) == {(0, node.id)}
        assert "__transaction_state" not in node.image.topics_by_name
        if version:
            assert set(await find(client, version, key_type=1)) == {(0, node.id)}
            for unknown in (SHARE, NONSENSE):
                refused = await find(client, version, unknown)
                assert set(refused) == {(ErrorCode.INVALID_REQUEST, -1)}

    in_a_node(script, num_partitions=2)


def test_internal_topics_are_made_as_settings_say_whoever_asks_first(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await connect(world)
        asked = [metadata.MetadataRequestTopic(name="__consumer_offsets")]
        await client.send(metadata.MetadataRequest(topics=asked), 9, metadata.MetadataResponse)
        await find(client, 4, key_type=1)
        topics = node.image.topics_by_name
        assert len(topics["__consumer_offsets"].partitions) == 3
        assert len(topics["__transaction_state"].partitions) == 4
        assert node.image.config(2, "__consumer_offsets") == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": "2000000",
        }
        assert node.image.config(2, "__transaction_state") == {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": "1",
            "segment.bytes": "3000000",
            "unclean.leader.election.enable": "false",
        }

    in_a_node(
        script,
        offsets_topic_num_partitions=3,
        offsets_topic_segment_bytes=2_000_000,
        transaction_state_log_num_partitions=4,
        transaction_state_log_segment_bytes=3_000_000,
    )


def test_without_its_topic_nobody_coordinates(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await connect(world)
        beat = groups.HeartbeatRequest(group_id="g", member_id="m")
        answer = await client.send(beat, 4, groups.HeartbeatResponse)
        assert answer.error_code == ErrorCode.NOT_COORDINATOR
        asked = groups.DescribeGroupsRequest(groups=["a", "b"])
        described = await client.send(asked, 5, groups.DescribeGroupsResponse)
        assert [(each.group_id, each.error_code) for each in described.groups] == [
            ("a", ErrorCode.NOT_COORDINATOR),
            ("b", ErrorCode.NOT_COORDINATOR),
        ]
        listed = await client.send(groups.ListGroupsRequest(), 5, groups.ListGroupsResponse)
        assert (listed.error_code, listed.groups) == (0, [])

    in_a_node(script)


def test_groups_are_described_as_often_as_they_are_named(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await connect(world)
        await find(client, 4)
        codes = {int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)}
        while ErrorCode.COORDINATOR_LOAD_IN_PROGRESS in codes:
            await asyncio.sleep(0.01)
            asked = groups.ConsumerGroupDescribeRequest(group_ids=["a", "", "a"])
            answer = await client.send(asked, 1, groups.ConsumerGroupDescribeResponse)
            codes = {each.error_code for each in answer.groups}
        assert [(each.group_id, each.error_code) for each in answer.groups] == [
            ("a", ErrorCode.GROUP_ID_NOT_FOUND),
            ("", ErrorCode.INVALID_GROUP_ID),
            ("a", ErrorCode.GROUP_ID_NOT_FOUND),
        ]

    in_a_node(script)


@pytest.mark.parametrize(
    ("setting", "feature"), [("classic", 1), ("classic,consumer", 0), ("classic,streams", 1)]
)
def test_the_consumer_protocol_needs_its_setting_and_its_feature(
    in_a_node: InANode, setting: str, feature: int
) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await connect(world)
        await find(client, 4)
        if not feature:
            node.image.features.pop("group.version")
        beat = groups.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m")
        answer = await client.send(beat, 1, groups.ConsumerGroupHeartbeatResponse)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        asked = groups.ConsumerGroupDescribeRequest(group_ids=["g"])
        described = await client.send(asked, 1, groups.ConsumerGroupDescribeResponse)
        assert described.groups[0].error_code == ErrorCode.UNSUPPORTED_VERSION

    in_a_node(script, group_coordinator_rebalance_protocols=setting)


def test_an_answer_that_cannot_be_told_closes_the_connection(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await connect(world)
        served = node.dispatch.table[ApiKey.LIST_GROUPS]
        served.handler = lambda node, ctx, request: groups.ListGroupsResponse(error_code=1 << 40)
        with pytest.raises(ConnectionResetError):
            await client.send(groups.ListGroupsRequest(), 5, groups.ListGroupsResponse)
        other = await connect(world)
        create = admin.CreateTopicsRequest(topics=[admin.CreatableTopic(name="t")])
        await other.send(create, 7, admin.CreateTopicsResponse)

    in_a_node(script)
