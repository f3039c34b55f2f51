"""Who leads instead, told with a refusal (KIP-951): the client need not ask for metadata first.

Whoever finds a partition led elsewhere is told the leader, its epoch and, once for the whole
answer, where to reach it on the listener that the client uses. What is not known is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from scriba.errors import ErrorCode
from scriba.wire.messages import fetch, produce
from scriba.wire.schema import first_version

if TYPE_CHECKING:
    from scriba.broker.ports import MetadataView
    from scriba.controller.image import BrokerImage

PRODUCE_FROM: Final = first_version(produce.ProduceResponse, "node_endpoints")
FETCH_FROM: Final = first_version(fetch.FetchResponse, "node_endpoints")

MOVED: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


def hint_produce(
    node: MetadataView, listener: str, version: int, response: produce.ProduceResponse
) -> None:
    """Says of each partition that is led elsewhere by whom."""
    if version < PRODUCE_FROM:
        return
    leaders: set[int] = set()
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code in MOVED:
                found = _leader(node, topic.name, topic.topic_id, answer.index)
                if found is not None:
                    answer.current_leader = produce.LeaderIdAndEpoch(
                        leader_id=found[0], leader_epoch=found[1]
                    )
                    leaders.add(found[0])
    response.node_endpoints = [
        produce.NodeEndpoint(node_id=broker.id, host=host, port=port, rack=broker.rack)
        for broker, host, port in _places(node, listener, leaders)
    ]


def hint_fetch(
    node: MetadataView, listener: str, version: int, response: fetch.FetchResponse
) -> None:
    if version < FETCH_FROM:
        return
    leaders: set[int] = set()
    for topic in response.responses:
        for data in topic.partitions:
            if data.error_code in MOVED:
                found = _leader(node, topic.topic, topic.topic_id, data.partition_index)
                if found is not None:
                    data.current_leader = fetch.LeaderIdAndEpoch(
                        leader_id=found[0], leader_epoch=found[1]
                    )
                    leaders.add(found[0])
    response.node_endpoints = [
        fetch.NodeEndpoint(node_id=broker.id, host=host, port=port, rack=broker.rack)
        for broker, host, port in _places(node, listener, leaders)
    ]


def _leader(node: MetadataView, name: str, topic_id: bytes, index: int) -> tuple[int, int] | None:
    image = node.image
    topic = image.topics_by_id.get(topic_id) or image.topics_by_name.get(name)
    partition = topic.partitions.get(index) if topic is not None else None
    if partition is None or partition.leader < 0:
        return None
    return partition.leader, partition.leader_epoch


def _places(
    node: MetadataView, listener: str, leaders: set[int]
) -> Iterable[tuple[BrokerImage, str, int]]:
    if not leaders:
        return ()
    return (place for place in node.image.brokers_on(listener) if place[0].id in leaders)
