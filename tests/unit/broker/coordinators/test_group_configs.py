"""Settings of a single group: given at run time, shown, and told to its members."""

import asyncio
from collections.abc import Callable

from scriba.broker.handlers.admin.configs import AT_ONCE, BROKER, TOPIC, list_config_resources
from scriba.broker.node import Node
from scriba.broker.request import ANONYMOUS, Context, Deferred
from scriba.errors import ErrorCode
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.apis import ApiKey
from scriba.wire.messages import configs, groups, metadata
from scriba.wire.messages.admin import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse

GROUP = 32
HEARTBEAT = "consumer.heartbeat.interval.ms"


async def set_config(client: Peer, value: str) -> int:
    change = configs.IncrementalAlterConfigsRequestAlterableConfig(name=HEARTBEAT, value=value)
    resource = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=GROUP, resource_name="g", configs=[change]
    )
    request = configs.IncrementalAlterConfigsRequest(resources=[resource])
    answer = await client.send(request, 1, configs.IncrementalAlterConfigsResponse)
    return answer.responses[0].error_code


async def interval_of(client: Peer, group: str, epoch: int) -> int:
    beat = groups.ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=f"member of {group}",
        member_epoch=epoch,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    while True:
        answer = await client.send(beat, 1, groups.ConsumerGroupHeartbeatResponse)
        if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            assert answer.error_code == 0, answer.error_message
            return answer.heartbeat_interval_ms
        await asyncio.sleep(0.01)


def test_a_group_gets_the_interval_that_was_set_for_it(in_a_node: Callable[..., None]) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await Peer.connect(world.net, "127.0.0.1", 9092)
        find = metadata.FindCoordinatorRequest(coordinator_keys=["g"])
        await client.send(find, 6, metadata.FindCoordinatorResponse)
        assert await interval_of(client, "g", 0) == 5000
        assert await set_config(client, "7000") == 0
        assert await interval_of(client, "g", 0) == 7000
        assert await interval_of(client, "another", 0) == 5000
        assert await set_config(client, "99000") == ErrorCode.INVALID_CONFIG
        asked = configs.DescribeConfigsResource(
            resource_type=GROUP, resource_name="g", configuration_keys=[HEARTBEAT]
        )
        request = configs.DescribeConfigsRequest(resources=[asked], include_synonyms=True)
        shown = await client.send(request, 4, configs.DescribeConfigsResponse)
        (row,) = shown.results[0].configs
        assert (row.value, row.config_source, row.read_only) == ("7000", 8, False)
        assert [(word.name, word.value, word.source) for word in row.synonyms] == [
            (HEARTBEAT, "7000", 8),
            ("group.consumer.heartbeat.interval.ms", "5000", 5),
        ]
        listing = configs.ListConfigResourcesRequest(resource_types=[GROUP])
        listed = await client.send(listing, 1, configs.ListConfigResourcesResponse)
        assert [each.resource_name for each in listed.config_resources] == ["g"]

    in_a_node(script)


def test_many_resources_are_listed_in_slices(in_a_node: Callable[..., None]) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        client = await Peer.connect(world.net, "127.0.0.1", 9092)
        names = [f"t{each:03}" for each in range(5 * AT_ONCE)]
        topics = [CreatableTopic(name=n, num_partitions=1, replication_factor=1) for n in names]
        await client.send(CreateTopicsRequest(topics=topics), 7, CreateTopicsResponse)
        ctx = Context(ANONYMOUS, "", None, "", ApiKey.LIST_CONFIG_RESOURCES, 1, 0)

        def ask(kind: int) -> object:
            listing = configs.ListConfigResourcesRequest(resource_types=[kind])
            return list_config_resources(node, ctx, listing)

        few = ask(BROKER)
        assert isinstance(few, configs.ListConfigResourcesResponse)
        assert [each.resource_name for each in few.config_resources] == [str(node.id)]
        many = ask(TOPIC)
        assert isinstance(many, Deferred), "all of them were listed in one go"
        told = await many.awaitable
        assert isinstance(told, configs.ListConfigResourcesResponse)
        assert [each.resource_name for each in told.config_resources] == names

    in_a_node(script)
