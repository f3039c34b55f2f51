"""What every request to a coordinator asks of the authoriser, and what each refusal is told."""

from collections.abc import Callable

import pytest

from scriba.broker.access import CLUSTER_NAME, Operation, Resource
from scriba.broker.node import Node
from scriba.broker.request import Context
from scriba.errors import ErrorCode
from scriba.testing.sim.world.world import ProcessWorld
from scriba.wire.apis import API, ApiKey
from scriba.wire.messages import txn
from tests.unit.broker.every_request import (
    GROUP,
    OF_GROUPS,
    OF_TRANSACTIONS,
    TABLE,
    TOPIC,
    TXN,
    error_codes,
    prepare,
    request_for,
    with_a_topic,
)

InANode = Callable[..., None]
Question = tuple[Operation, Resource]

NAMES = {
    Resource.TOPIC: {TOPIC},
    Resource.GROUP: {GROUP, "new", "another"},
    Resource.TRANSACTIONAL_ID: {TXN},
    Resource.CLUSTER: {CLUSTER_NAME},
}
TELLING = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}

READS_GROUP = (Operation.READ, Resource.GROUP)
SEES_GROUP = (Operation.DESCRIBE, Resource.GROUP)
READS_TOPIC = (Operation.READ, Resource.TOPIC)
SEES_TOPIC = (Operation.DESCRIBE, Resource.TOPIC)
WRITES_TXN = (Operation.WRITE, Resource.TRANSACTIONAL_ID)
IS_A_BROKER = (Operation.CLUSTER_ACTION, Resource.CLUSTER)
ADMINISTERS = (Operation.ALTER, Resource.CLUSTER)

ASKED: dict[tuple[ApiKey, int], set[Question]] = {
    (ApiKey.FIND_COORDINATOR, 6): {SEES_GROUP},
    (ApiKey.JOIN_GROUP, 9): {READS_GROUP},
    (ApiKey.SYNC_GROUP, 5): {READS_GROUP},
    (ApiKey.HEARTBEAT, 4): {READS_GROUP},
    (ApiKey.LEAVE_GROUP, 5): {READS_GROUP},
    (ApiKey.OFFSET_COMMIT, 10): {READS_GROUP, READS_TOPIC},
    (ApiKey.OFFSET_FETCH, 7): {SEES_GROUP, SEES_TOPIC},
    (ApiKey.OFFSET_FETCH, 10): {SEES_GROUP, SEES_TOPIC},
    (ApiKey.OFFSET_DELETE, 0): {(Operation.DELETE, Resource.GROUP), READS_TOPIC},
    (ApiKey.DESCRIBE_GROUPS, 6): {SEES_GROUP},
    (ApiKey.DELETE_GROUPS, 2): {(Operation.DELETE, Resource.GROUP)},
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, 1): {READS_GROUP, SEES_TOPIC},
    (ApiKey.CONSUMER_GROUP_DESCRIBE, 1): {SEES_GROUP},
    (ApiKey.ADD_PARTITIONS_TO_TXN, 3): {WRITES_TXN, (Operation.WRITE, Resource.TOPIC)},
    (ApiKey.ADD_PARTITIONS_TO_TXN, 5): {IS_A_BROKER},
    (ApiKey.ADD_OFFSETS_TO_TXN, 4): {WRITES_TXN, READS_GROUP},
    (ApiKey.END_TXN, 5): {WRITES_TXN},
    (ApiKey.TXN_OFFSET_COMMIT, 5): {WRITES_TXN, READS_GROUP, READS_TOPIC},
    (ApiKey.DESCRIBE_TRANSACTIONS, 0): {(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID)},
    (ApiKey.WRITE_TXN_MARKERS, 1): {IS_A_BROKER, ADMINISTERS},
}
"""As Apache Kafka's broker asks."""

EITHER = {ApiKey.WRITE_TXN_MARKERS}
"""One yes is enough."""


class Asked:
    """Says yes to all but one question, and keeps what it was asked."""

    open = False

    def __init__(self, *denied: Question) -> None:
        self._denied = denied
        self.questions: set[Question] = set()
        self.names: set[tuple[Resource, str]] = set()

    def allowed(self, ctx: Context, operation: Operation, resource: Resource, name: str) -> bool:
        self.questions.add((operation, resource))
        self.names.add((resource, name))
        return (operation, resource) not in self._denied


def answered(
    in_a_node: InANode, key: ApiKey, version: int, access: Asked, request: object = None
) -> set[int]:
    """The error codes of the answer that a well-meaning client gets under this authoriser."""
    codes: set[int] = set()

    async def play(node: Node, world: ProcessWorld) -> None:
        client = await with_a_topic(node, world)
        await prepare(node, client, key)
        node.access = access
        wanted = request or request_for(key, version, node.image.topics_by_name[TOPIC].id)
        codes.update(error_codes(await client.send(wanted, version, API[key].response)))  # type: ignore[arg-type]

    in_a_node(play)
    return codes


def test_every_request_to_a_coordinator_is_in_the_table() -> None:
    assert {key for key, _ in ASKED} == OF_GROUPS | OF_TRANSACTIONS | {ApiKey.FIND_COORDINATOR}
    assert all(TABLE[key].oldest <= version <= TABLE[key].high for key, version in ASKED)


@pytest.mark.parametrize(("key", "version"), ASKED)
def test_the_authoriser_is_asked_what_kafka_asks(
    in_a_node: InANode, key: ApiKey, version: int
) -> None:
    either = key in EITHER
    access = Asked(*(ASKED[key, version] - {IS_A_BROKER} if either else ()))
    answered(in_a_node, key, version, access)
    assert access.questions == ASKED[key, version]
    assert all(name in NAMES[resource] for resource, name in access.names)


@pytest.mark.parametrize(
    ("key", "version", "denied"),
    [(*case, question) for case, asked in ASKED.items() for question in sorted(asked)],
)
def test_one_no_is_told_as_what_it_is(
    in_a_node: InANode, key: ApiKey, version: int, denied: Question
) -> None:
    codes = answered(in_a_node, key, version, Asked(denied))
    assert (TELLING[denied[1]] in codes) == (key not in EITHER)


def test_markers_need_one_of_two_rights(in_a_node: InANode) -> None:
    codes = answered(in_a_node, ApiKey.WRITE_TXN_MARKERS, 1, Asked(IS_A_BROKER, ADMINISTERS))
    assert codes == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}


def test_an_id_for_transactions_is_asked_for_by_its_name(in_a_node: InANode) -> None:
    request = txn.InitProducerIdRequest(transactional_id=TXN, transaction_timeout_ms=1000)
    codes = answered(in_a_node, ApiKey.INIT_PRODUCER_ID, 4, Asked(WRITES_TXN), request)
    assert codes == {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
