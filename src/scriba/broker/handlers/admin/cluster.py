"""The state of directories, the metadata quorum and the cluster's features."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Final

from scriba.broker.access import CLUSTER_NAME, Operation, Resource
from scriba.broker.request import Context, Deferred, at_once_or_deferred
from scriba.errors import ErrorCode, KafkaError
from scriba.wire.messages.admin import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from scriba.wire.messages.brokers import UnregisterBrokerRequest, UnregisterBrokerResponse
from scriba.wire.messages.configs import UpdateFeaturesRequest, UpdateFeaturesResponse
from scriba.wire.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)
from scriba.wire.uuids import ZERO

if TYPE_CHECKING:
    from scriba.broker.handlers.ports import ControllerForwarding, LogDirDescription
    from scriba.storage.directory.logdir import LogDir

AT_ONCE: Final = 20
"""Replicas that are told of in one step: tens of microseconds."""


def _require(node: ControllerForwarding, ctx: Context, operation: Operation) -> None:
    if not node.access.allowed(ctx, operation, Resource.CLUSTER, CLUSTER_NAME):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def describe_log_dirs(
    node: LogDirDescription, ctx: Context, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse | Deferred[DescribeLogDirsResponse]:
    if not node.access.allowed(ctx, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME):
        # Before version 3 there is no place for the error: an empty answer is the refusal.
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED if ctx.version >= 3 else ErrorCode.NONE
        return DescribeLogDirsResponse(error_code=code)
    wanted: dict[str, set[int]] | None = None
    if request.topics is not None:
        wanted = {}
        for topic in request.topics:
            wanted.setdefault(topic.topic, set()).update(topic.partitions)
    return at_once_or_deferred(_log_dirs(node, wanted), node.world.clock)


def _log_dirs(
    node: LogDirDescription, wanted: dict[str, set[int]] | None
) -> Generator[None, None, DescribeLogDirsResponse]:
    response = DescribeLogDirsResponse()
    for hosted in node.replicas.dirs:
        response.results.append((yield from _log_dir(node, hosted, wanted)))
    return response


def _log_dir(
    node: LogDirDescription, hosted: LogDir, wanted: dict[str, set[int]] | None
) -> Generator[None, None, DescribeLogDirsResult]:
    result = DescribeLogDirsResult(log_dir=hosted.path)
    if hosted.failure is not None:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return result
    topics: dict[str, DescribeLogDirsTopic] = {}
    for count, (name, index, size, lag, future) in enumerate(_replicas(node, hosted), 1):
        if wanted is None or index in wanted.get(name, ()):
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = DescribeLogDirsTopic(name=name)
            topic.partitions.append(
                DescribeLogDirsPartition(
                    partition_index=index, partition_size=size, offset_lag=lag, is_future_key=future
                )
            )
        if count % AT_ONCE == 0:
            yield
    result.topics = list(topics.values())
    result.is_cordoned = node.log_dirs.is_cordoned(hosted)
    result.total_bytes, result.usable_bytes = node.world.disk.space(hosted.path)
    return result


def _replicas(node: LogDirDescription, hosted: LogDir) -> Iterator[tuple[str, int, int, int, bool]]:
    """Topic, index, size, lag of each replica that is in a directory now, and whether it is one
    that moves there."""
    opened = list(node.replicas.in_dir(hosted))
    unopened = list(node.replicas.unopened_in(hosted))
    moves = list(node.replicas.moves.into(hosted))
    for partition in opened:
        lag = partition.follower.lag if partition.follower is not None else 0
        yield partition.topic, partition.index, partition.log.size, lag, False
    for name, index in unopened:
        yield name, index, 0, 0, False
    for move in moves:
        yield move.partition.topic, move.partition.index, move.log.size, move.lag, True


def refuse_log_dirs(
    request: DescribeLogDirsRequest, code: ErrorCode, text: str
) -> DescribeLogDirsResponse:
    return DescribeLogDirsResponse(error_code=code)


LEADERLESS_MS: Final = 2_000
"""Whoever asks who leads wants to hear soon that nobody does."""


def describe_quorum(
    node: ControllerForwarding, ctx: Context, request: DescribeQuorumRequest
) -> Deferred[DescribeQuorumResponse]:
    _require(node, ctx, Operation.DESCRIBE)
    return Deferred(_describe_quorum(node, ctx, request))


async def _describe_quorum(
    node: ControllerForwarding, ctx: Context, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    response: DescribeQuorumResponse = await node.controller.call(
        request, ctx.version, ctx, leaderless_ms=LEADERLESS_MS
    )
    return in_version(response, ctx.version)


def in_version(response: DescribeQuorumResponse, version: int) -> DescribeQuorumResponse:
    """Without what older versions have no room for."""
    if version < 2:
        response.nodes = []
        for topic in response.topics:
            for partition in topic.partitions:
                for replica in partition.current_voters + partition.observers:
                    replica.replica_directory_id = ZERO
    return response


def add_raft_voter(
    node: ControllerForwarding, ctx: Context, request: AddRaftVoterRequest
) -> Deferred[AddRaftVoterResponse]:
    _require(node, ctx, Operation.ALTER)
    return Deferred(node.controller.call(request, ctx.version, ctx), pipelined=True)


def remove_raft_voter(
    node: ControllerForwarding, ctx: Context, request: RemoveRaftVoterRequest
) -> Deferred[RemoveRaftVoterResponse]:
    _require(node, ctx, Operation.ALTER)
    return Deferred(node.controller.call(request, ctx.version, ctx), pipelined=True)


def update_features(
    node: ControllerForwarding, ctx: Context, request: UpdateFeaturesRequest
) -> Deferred[UpdateFeaturesResponse]:
    _require(node, ctx, Operation.ALTER)
    return Deferred(node.controller.call(request, ctx.version, ctx))


def unregister_broker(
    node: ControllerForwarding, ctx: Context, request: UnregisterBrokerRequest
) -> Deferred[UnregisterBrokerResponse]:
    _require(node, ctx, Operation.ALTER)
    return Deferred(node.controller.call(request, ctx.version, ctx))
