"""Random requests about groups, offsets and transactions, to Apache Kafka and to Scriba: the same
answers, and the same state after them. SEEDS=n plays more; a seed that fails, fails again."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scriba.errors import ErrorCode
from scriba.wire.messages import admin, groups, metadata, produce, security, txn
from scriba.wire.schema import Message
from tests.conformance.side_by_side.random_requests import Requests
from tests.conformance.side_by_side.sides import Name, Side
from tools.kafka.brokers import QuickKafka, ScribaBroker, running

SEEDS = int(os.environ.get("SEEDS", "1"))
REQUESTS = 250
BETWEEN_LOOKS = 10
SETTINGS = {
    "auto.create.topics.enable": "false",
    "group.consumer.assignment.interval.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
}
PATIENCE_S = 300
ENDING = (txn.EndTxnRequest, txn.InitProducerIdRequest, produce.ProduceRequest)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Side]]:
    place: Path = tmp_path_factory.mktemp("side-by-side")
    with ExitStack() as stack:
        kinds = (QuickKafka, ScribaBroker)
        brokers = [stack.enter_context(running(k(place / k.name, SETTINGS))) for k in kinds]
        made = [Side(broker) for broker in brokers]
        yield made
        for side in made:
            side.close()


def until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def loaded(side: Side, find: metadata.FindCoordinatorRequest) -> bool:
    return not any(found.error_code for found in side.ask(find, 4).coordinators)


def begin(side: Side, requests: Requests) -> None:
    """Topics, and coordinators that have loaded; some producer ids, so that 0 is nobody's."""
    topics = [
        admin.CreatableTopic(name=name, num_partitions=count, replication_factor=1)
        for name, count in requests.topics.items()
    ]
    made = side.ask(admin.CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7)
    for topic in made.topics:
        side.know(Name("topic", topic.name), topic.topic_id)
    for kind, keys in enumerate((requests.groups, requests.transactional_ids)):
        find = metadata.FindCoordinatorRequest(key_type=kind, coordinator_keys=keys)
        until(partial(loaded, side, find))
    describe = groups.DescribeGroupsRequest(groups=requests.groups)
    absent = ErrorCode.GROUP_ID_NOT_FOUND
    until(lambda: all(g.error_code == absent for g in side.ask(describe, 6).groups))
    until(lambda: not open_ids(side, requests, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND))
    nobody = txn.InitProducerIdRequest(transactional_id=None)
    for _ in range(3):
        until(lambda: not side.ask(nobody, 5).error_code)


def open_ids(side: Side, requests: Requests, but: int) -> list[Any]:
    described = side.ask(
        txn.DescribeTransactionsRequest(transactional_ids=requests.transactional_ids), 0
    )
    return [each for each in described.transaction_states if each.error_code != but]


def settled(side: Side, requests: Requests) -> bool:
    states = open_ids(side, requests, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return not any(each.transaction_state.startswith("Prepare") for each in states)


def ask(side: Side, requests: Requests, request: Message, version: int) -> Any:
    answer = side.ask(request, version)
    if isinstance(request, txn.InitProducerIdRequest):
        # Kafka fetches producer ids by the thousand, and says so.
        while answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            time.sleep(0.05)
            answer = side.ask(request, version)
    if isinstance(request, ENDING):
        until(lambda: settled(side, requests))
    if isinstance(answer, groups.ListGroupsResponse):
        answer.groups = [g for g in answer.groups if g.group_id.startswith(requests.tag)]
    return answer


def learn(sides: list[Side], requests: Requests, answers: list[Any]) -> None:
    """Names for what both have given out."""
    for kind, known, field in (
        (txn.InitProducerIdResponse, requests.producers, "producer_id"),
        (groups.JoinGroupResponse, requests.members, "member_id"),
        (groups.ConsumerGroupHeartbeatResponse, requests.members, "member_id"),
    ):
        if not all(isinstance(each, kind) and each.error_code in (0, 79) for each in answers):
            continue
        given = [getattr(each, field) for each in answers]
        fresh = not any(s.knows(value) for s, value in zip(sides, given, strict=True))
        if fresh and all(value not in ("", "x", -1, None) for value in given):
            known.append(Name(field, len(known)))
            for side, value in zip(sides, given, strict=True):
                side.know(known[-1], value)


def state(side: Side, requests: Requests) -> dict[str, str]:
    partitions = [
        groups.OffsetFetchRequestTopics(name=name, partition_indexes=list(range(count)))
        for name, count in requests.topics.items()
    ]
    every = [groups.OffsetFetchRequestGroup(group_id=g, topics=None) for g in requests.groups]
    stable = [
        groups.OffsetFetchRequestGroup(group_id=g, topics=partitions) for g in requests.groups
    ]
    places = [
        txn.TopicRequest(name=name, partition_indexes=list(range(count)))
        for name, count in requests.topics.items()
    ]
    looks: dict[str, tuple[Message, int]] = {
        "classic": (groups.DescribeGroupsRequest(groups=requests.groups), 5),
        "consumer": (groups.ConsumerGroupDescribeRequest(group_ids=requests.groups), 1),
        "offsets": (groups.OffsetFetchRequest(groups=every), 8),
        "stable": (groups.OffsetFetchRequest(groups=stable, require_stable=True), 9),
        "transactions": (
            txn.DescribeTransactionsRequest(transactional_ids=requests.transactional_ids),
            0,
        ),
        "producers": (txn.DescribeProducersRequest(topics=places), 0),
    }
    return {what: side.told(side.ask(*look)) for what, look in looks.items()}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_both_brokers_answer_alike(sides: list[Side], seed: int) -> None:
    requests = Requests(seed)
    for side in sides:
        begin(side, requests)
    said: list[str] = []
    for number in range(REQUESTS):
        request, version = requests.next()
        said.append(f"{number}: version {version} of {request}")
        answers = [ask(side, requests, request, version) for side in sides]
        learn(sides, requests, answers)
        kafka, scriba = (s.told(a) for s, a in zip(sides, answers, strict=True))
        assert scriba == kafka, said[-1]
        if number % BETWEEN_LOOKS == 0:
            kafka_state, scriba_state = (state(side, requests) for side in sides)
            assert scriba_state == kafka_state, "\n".join(said[-BETWEEN_LOOKS:])


def about_replicas(topic: str) -> Iterator[tuple[Message, int]]:
    """What tools ask of a cluster that may move replicas, here of one that cannot."""
    places = [
        admin.TopicPartitions(topic=topic, partitions=[0, 1, 9]),
        admin.TopicPartitions(topic="absent", partitions=[0]),
    ]
    for version in range(3):
        for kind in (0, 1) if version else (0,):
            yield admin.ElectLeadersRequest(election_type=kind, topic_partitions=places), version
    targets: list[list[int] | None] = [[1], [2], [1, 2], [1, 1], [], [-1], None]
    for name, index in ((topic, 0), (topic, 9), ("absent", 0)):
        for target in targets:
            partition = admin.ReassignablePartition(partition_index=index, replicas=target)
            moved = [admin.ReassignableTopic(name=name, partitions=[partition])]
            for version in (0, 1):
                yield admin.AlterPartitionReassignmentsRequest(topics=moved), version
    named = [
        admin.ListPartitionReassignmentsTopics(name=name, partition_indexes=[0, 9])
        for name in (topic, "absent")
    ]
    yield admin.ListPartitionReassignmentsRequest(topics=None), 0
    yield admin.ListPartitionReassignmentsRequest(topics=named), 0


def about_lists() -> Iterator[tuple[Message, int]]:
    """Of access control, without an authorizer."""
    some: dict[str, Any] = {"operation": 3, "permission_type": 3}
    for version in (1, 2, 3):
        yield security.DescribeAclsRequest(resource_type_filter=1, **some), version
        made = security.AclCreation(
            resource_type=2, resource_name="t", principal="User:ann", host="*", **some
        )
        yield security.CreateAclsRequest(creations=[made, made]), version
        gone = security.DeleteAclsFilter(resource_type_filter=2, **some)
        yield security.DeleteAclsRequest(filters=[gone, gone, gone]), version


def test_one_node_tells_the_same_of_replicas_and_of_lists(sides: list[Side]) -> None:
    topic = "of-replicas"
    new = admin.CreatableTopic(name=topic, num_partitions=2, replication_factor=1)
    for side in sides:
        side.ask(admin.CreateTopicsRequest(topics=[new], timeout_ms=10_000), 7)
    for request, version in (*about_replicas(topic), *about_lists()):
        kafka, scriba = (side.told(side.ask(request, version)) for side in sides)
        assert scriba == kafka, f"{request!r} in version {version}"
