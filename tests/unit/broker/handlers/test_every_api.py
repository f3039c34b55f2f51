"""Every served API in every version: answered when allowed, refused with Kafka's code when not."""

from collections.abc import Callable
from typing import Any

import pytest

from scriba.broker.access import Operation, Resource
from scriba.broker.node import Node
from scriba.broker.request import Context
from scriba.errors import ErrorCode
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.apis import API, ApiKey
from scriba.wire.messages import (
    admin,
    configs,
    metadata,
)
from tests.unit.broker.every_request import (
    EVERY_VERSION,
    EXPECTED,
    OF_GROUPS,
    OF_TRANSACTIONS,
    TABLE,
    TOPIC,
    error_codes,
    prepare,
    request_for,
    with_a_topic,
)

InANode = Callable[..., None]


class DenyAll:
    open = False

    def allowed(self, ctx: Context, operation: Operation, resource: Resource, name: str) -> bool:
        return False


@pytest.mark.parametrize(("key", "version"), EVERY_VERSION)
def test_an_allowed_request_is_answered_without_an_error(
    in_a_node: InANode, key: int, version: int
) -> None:
    async def play(node: Node, world: ProcessWorld) -> None:
        client = await with_a_topic(node, world)
        topic_id = node.image.topics_by_name[TOPIC].id
        await prepare(node, client, key)
        request = request_for(key, version, topic_id)
        answer = await client.send(request, version, API[key].response)
        api = ApiKey(key)
        expected = EXPECTED.get((api, version), EXPECTED.get((api, None), 0))
        assert set(error_codes(answer)) - {0} == {expected} - {0}

    in_a_node(play)


REFUSALS = {
    ApiKey.PRODUCE: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.FETCH: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.LIST_OFFSETS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.METADATA: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.CREATE_TOPICS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.DELETE_TOPICS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.DELETE_RECORDS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.INIT_PRODUCER_ID: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_CONFIGS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.ALTER_CONFIGS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    **dict.fromkeys(OF_GROUPS, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    ApiKey.FIND_COORDINATOR: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    **dict.fromkeys(OF_TRANSACTIONS, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ApiKey.ADD_PARTITIONS_TO_TXN: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.WRITE_TXN_MARKERS: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_LOG_DIRS: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.CREATE_PARTITIONS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_QUORUM: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.UPDATE_FEATURES: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_PRODUCERS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ApiKey.LIST_CONFIG_RESOURCES: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    **dict.fromkeys(
        (
            ApiKey.ELECT_LEADERS,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            ApiKey.ALTER_REPLICA_LOG_DIRS,
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            ApiKey.DESCRIBE_ACLS,
            ApiKey.CREATE_ACLS,
            ApiKey.DELETE_ACLS,
            ApiKey.UNREGISTER_BROKER,
            ApiKey.ADD_RAFT_VOTER,
            ApiKey.REMOVE_RAFT_VOTER,
        ),
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ),
}
"""What Kafka answers when an authoriser says no to everything."""

OPEN_TO_ALL = {ApiKey.API_VERSIONS, ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS}
"""What everybody may ask; listed is only what the caller may see."""


def test_every_served_api_has_a_refusal() -> None:
    assert {ApiKey(key) for key in TABLE} == REFUSALS.keys() | OPEN_TO_ALL


@pytest.mark.parametrize("key", sorted(REFUSALS))
def test_a_request_that_is_not_allowed_is_refused_and_changes_nothing(
    in_a_node: InANode, key: int
) -> None:
    async def play(node: Node, world: ProcessWorld) -> None:
        client = await with_a_topic(node, world)
        await prepare(node, client, key)
        node.access = DenyAll()
        topic = node.image.topics_by_name[TOPIC]
        before = node.image.end_offset
        version = TABLE[key].high
        request = request_for(key, version, topic.id)
        answer = await client.send(request, version, API[key].response)
        assert set(error_codes(answer)) - {0} == {REFUSALS[ApiKey(key)]}
        assert node.image.end_offset == before
        assert node.replicas.find(TOPIC, 0).log.end_offset == 0

    in_a_node(play)


@pytest.mark.parametrize("short", [1000, 0], ids=["at once", "in slices"])
def test_an_answer_is_repeated_only_while_the_cluster_keeps_its_shape(
    in_a_node: InANode, monkeypatch: pytest.MonkeyPatch, short: int
) -> None:
    monkeypatch.setattr("scriba.broker.handlers.metadata.SHORT", short)

    async def play(node: Node, world: ProcessWorld) -> None:
        client = await with_a_topic(node, world)
        question = metadata.MetadataRequest(topics=None)

        async def names() -> list[str | None]:
            answer = await client.send(question, 9, metadata.MetadataResponse)
            return [topic.name for topic in answer.topics]

        assert await names() == [TOPIC]
        assert await names() == [TOPIC]
        more = admin.CreatableTopic(name="more", num_partitions=1, replication_factor=1)
        await client.send(admin.CreateTopicsRequest(topics=[more]), 7, admin.CreateTopicsResponse)
        assert await names() == ["more", TOPIC]
        assert await names() == ["more", TOPIC]

    in_a_node(play)


def test_an_answer_that_is_kept_does_not_get_past_a_quota(in_a_node: InANode) -> None:
    class Strict(Node):
        def throttle(self, ctx: Context, response: Any) -> None:
            response.throttle_time_ms = 7

    async def play(node: Node, world: ProcessWorld) -> None:
        client = await with_a_topic(node, world)
        question = metadata.MetadataRequest(topics=None)
        told = []
        for limited in (False, True, True, False):
            node.ask_handlers(limited)
            node.__class__ = Strict if limited else Node
            told.append(
                (await client.send(question, 9, metadata.MetadataResponse)).throttle_time_ms
            )
        assert told == [0, 7, 7, 0]

    in_a_node(play)


@pytest.mark.parametrize("version", [1, 4])
def test_settings_asked_for_by_name_are_told_in_the_order_asked(
    in_a_node: InANode, version: int
) -> None:
    names = ["retention.ms", "cleanup.policy", "nothing.such", "max.message.bytes", "retention.ms"]

    async def play(node: Node, world: ProcessWorld) -> None:
        client = await with_a_topic(node, world)
        for kind, name in ((2, TOPIC), (4, str(node.id))):
            keys = names if kind == 2 else ["num.partitions", "log.dirs", "broker.id"]
            wanted = configs.DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=keys
            )
            request = configs.DescribeConfigsRequest(resources=[wanted])
            answer = await client.send(request, version, configs.DescribeConfigsResponse)
            told = [row.name for row in answer.results[0].configs]
            known = [key for key in dict.fromkeys(keys) if key != "nothing.such"]
            assert told == known

    in_a_node(play)


def test_replicas_stay_where_they_are(in_a_node: InANode) -> None:
    async def play(node: Node, world: ProcessWorld) -> None:
        client = await with_a_topic(node, world)
        wanted: list[tuple[str, int, list[int] | None, ErrorCode]] = [
            (TOPIC, 0, [1], ErrorCode.NONE),
            (TOPIC, 0, [2], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (TOPIC, 0, [1, 2], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (TOPIC, 0, [1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (TOPIC, 0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (TOPIC, 0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
            (TOPIC, 7, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("absent", 0, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        request = admin.AlterPartitionReassignmentsRequest(
            topics=[
                admin.ReassignableTopic(
                    name=name,
                    partitions=[
                        admin.ReassignablePartition(partition_index=index, replicas=replicas)
                    ],
                )
                for name, index, replicas, _ in wanted
            ]
        )
        before = node.image.end_offset
        answer = await client.send(request, 1, admin.AlterPartitionReassignmentsResponse)
        told = [topic.partitions[0].error_code for topic in answer.responses]
        assert told == [code for *_, code in wanted]
        assert node.image.end_offset == before
        for topics in (None, [admin.ListPartitionReassignmentsTopics(name=TOPIC)]):
            listed = await client.send(
                admin.ListPartitionReassignmentsRequest(topics=topics),
                0,
                admin.ListPartitionReassignmentsResponse,
            )
            assert (listed.error_code, listed.topics) == (0, [])

    in_a_node(play)
