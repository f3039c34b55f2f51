"""Between controllers, and from observers to them: Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch
and FetchSnapshot of the metadata log, UpdateRaftVoter (KIP-595, 630, 853, 996).

They are served on the controller's listener alone. Whom a request is meant for is checked here: the
cluster, the partition, the voter. The raft machine sees only what is meant for it and makes sense,
and what it answers leaves once the disk knows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from scriba.broker.access import CLUSTER_NAME, Operation, Resource
from scriba.broker.handlers.admin.cluster import in_version
from scriba.broker.metadata.quorum import snapshots
from scriba.broker.metadata.quorum.describe import describe_quorum as describe
from scriba.broker.metadata.quorum.voters import Identity
from scriba.broker.metadata.quorum.wire import TOPIC, TOPIC_ID
from scriba.broker.ports import Authorization, Configuration, WorldAccess
from scriba.broker.request import Context, Deferred
from scriba.errors import ErrorCode, KafkaError
from scriba.raft.messages import (
    NO_DIRECTORY,
    BeginEpoch,
    EndEpoch,
    EpochReply,
    FetchReply,
    Position,
    Voter,
    VoteReply,
)
from scriba.raft.messages import FetchRequest as FetchFacts
from scriba.raft.messages import VoteRequest as VoteFacts
from scriba.raft.roles import Role
from scriba.storage.log import Slice
from scriba.storage.segments.not_resident import NotResident
from scriba.wire.messages import fetch as fetch_messages
from scriba.wire.messages import quorum as messages

if TYPE_CHECKING:
    from scriba.broker.metadata.quorum.changes import VoterChanges
    from scriba.broker.metadata.quorum.quorum import MetadataQuorum


class QuorumMember(Protocol):
    """The node's part in the quorum."""

    @property
    def quorum(self) -> MetadataQuorum:
        """BROKER_NOT_AVAILABLE before it takes part."""

    @property
    def changes(self) -> VoterChanges:
        """Of the voters, while this node leads."""

    def meet(self, identity: Identity) -> bool:
        """A controller that has no cluster yet names itself; whether this node has none, too."""


class QuorumService(Authorization, Configuration, WorldAccess, Protocol):
    @property
    def metadata(self) -> QuorumMember: ...

    @property
    def cluster_id(self) -> str: ...


# ---- elections ----


def vote(
    node: QuorumService, ctx: Context, request: messages.VoteRequest
) -> messages.VoteResponse | Deferred[messages.VoteResponse]:
    asked: messages.VoteRequestPartitionData = _admit(node, ctx, request)
    quorum = node.metadata.quorum
    code = _check_voter_key(quorum, request.voter_id, asked.voter_directory_id)
    last = asked.last_offset_epoch
    if code is ErrorCode.NONE and asked.replica_epoch < quorum.raft.epoch:
        code = ErrorCode.FENCED_LEADER_EPOCH
    elif code is ErrorCode.NONE and (
        asked.replica_id < 0
        or asked.last_offset < 0
        or last < 0
        or last > asked.replica_epoch - (not asked.pre_vote)
        or not quorum.may_follow(asked.replica_epoch, asked.replica_id, ctx.host)
    ):
        code = ErrorCode.INVALID_REQUEST
    if code is not ErrorCode.NONE:
        refused = VoteReply(quorum.raft.epoch, quorum.raft.leader, False, False)
        return _vote_response(quorum, refused, ctx.version, code)
    facts = VoteFacts(
        asked.replica_epoch,
        Voter(asked.replica_id, asked.replica_directory_id),
        Position(last, asked.last_offset),
        asked.pre_vote,
        keyed=asked.voter_directory_id == quorum.raft.own.directory,
    )

    async def answer() -> messages.VoteResponse:
        reply = await quorum.ask(asked.replica_id, facts)
        assert isinstance(reply, VoteReply)
        return _vote_response(quorum, reply, ctx.version)

    return Deferred(answer())


def _vote_response(
    quorum: MetadataQuorum, reply: VoteReply, version: int, code: ErrorCode = ErrorCode.NONE
) -> messages.VoteResponse:
    partition = messages.VoteResponsePartitionData(
        partition_index=0,
        error_code=code,
        leader_id=_id(reply.leader),
        leader_epoch=reply.epoch,
        vote_granted=reply.granted,
    )
    topic = messages.VoteResponseTopicData(topic_name=TOPIC, partitions=[partition])
    return messages.VoteResponse(
        topics=[topic],
        node_endpoints=_endpoints(quorum, reply.leader, messages.VoteResponseNodeEndpoint, version),
    )


def begin_quorum_epoch(
    node: QuorumService, ctx: Context, request: messages.BeginQuorumEpochRequest
) -> messages.BeginQuorumEpochResponse | Deferred[messages.BeginQuorumEpochResponse]:
    asked: messages.BeginQuorumEpochRequestPartitionData = _admit(node, ctx, request)
    quorum = node.metadata.quorum
    code = _check_voter_key(quorum, request.voter_id, asked.voter_directory_id)
    if code is ErrorCode.NONE:
        code = _check_leader(quorum, ctx, asked.leader_epoch, asked.leader_id)
    told = [(end.name, end.host, end.port) for end in request.leader_endpoints]
    if code is ErrorCode.NONE:
        quorum.learn_leader(asked.leader_id, tuple(told))
    message = BeginEpoch(asked.leader_epoch, asked.leader_id)

    async def answer() -> messages.BeginQuorumEpochResponse:
        reply = EpochReply(quorum.raft.epoch, quorum.raft.leader)
        if code is ErrorCode.NONE:
            reply = await quorum.ask(asked.leader_id, message)  # type: ignore[assignment]
        partition = messages.BeginQuorumEpochResponsePartitionData(
            partition_index=0,
            error_code=code,
            leader_id=_id(reply.leader),
            leader_epoch=reply.epoch,
        )
        return messages.BeginQuorumEpochResponse(
            topics=[
                messages.BeginQuorumEpochResponseTopicData(topic_name=TOPIC, partitions=[partition])
            ],
            node_endpoints=_endpoints(
                quorum, reply.leader, messages.BeginQuorumEpochResponseNodeEndpoint, ctx.version
            ),
        )

    return Deferred(answer())


def end_quorum_epoch(
    node: QuorumService, ctx: Context, request: messages.EndQuorumEpochRequest
) -> Deferred[messages.EndQuorumEpochResponse]:
    asked: messages.EndQuorumEpochRequestPartitionData = _admit(node, ctx, request)
    quorum = node.metadata.quorum
    code = _check_leader(quorum, ctx, asked.leader_epoch, asked.leader_id)
    successors = [
        candidate.candidate_id
        for candidate in asked.preferred_candidates
        if candidate.candidate_directory_id in (NO_DIRECTORY, quorum.raft.own.directory)
        or candidate.candidate_id != quorum.raft.own.id
    ] or asked.preferred_successors
    message = EndEpoch(asked.leader_epoch, asked.leader_id, tuple(successors))

    async def answer() -> messages.EndQuorumEpochResponse:
        reply = EpochReply(quorum.raft.epoch, quorum.raft.leader)
        if code is ErrorCode.NONE:
            reply = await quorum.ask(asked.leader_id, message)  # type: ignore[assignment]
        partition = messages.EndQuorumEpochResponsePartitionData(
            partition_index=0,
            error_code=code,
            leader_id=_id(reply.leader),
            leader_epoch=reply.epoch,
        )
        return messages.EndQuorumEpochResponse(
            topics=[
                messages.EndQuorumEpochResponseTopicData(topic_name=TOPIC, partitions=[partition])
            ],
            node_endpoints=_endpoints(
                quorum, reply.leader, messages.EndQuorumEpochResponseNodeEndpoint, ctx.version
            ),
        )

    return Deferred(answer())


# ---- the log ----


def fetch(
    node: QuorumService, ctx: Context, request: fetch_messages.FetchRequest
) -> Deferred[fetch_messages.FetchResponse]:
    _check_access(node, ctx)
    _check_cluster(node, request.cluster_id)
    topic = request.topics[0] if len(request.topics) == 1 else None
    named = topic is not None and (
        topic.topic == TOPIC if ctx.version < 13 else topic.topic_id == TOPIC_ID
    )
    if topic is None or not named or [p.partition for p in topic.partitions] != [0]:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"this listener serves {TOPIC}-0 alone")
    return Deferred(_fetch(node, ctx, request, topic.partitions[0]))


async def _fetch(
    node: QuorumService,
    ctx: Context,
    request: fetch_messages.FetchRequest,
    asked: fetch_messages.FetchPartition,
) -> fetch_messages.FetchResponse:
    quorum = node.metadata.quorum
    replica_id = request.replica_state.replica_id if ctx.version >= 15 else request.replica_id
    code = _check_epoch(quorum, asked.current_leader_epoch)
    if (
        request.max_wait_ms < 0
        or asked.fetch_offset < 0
        or asked.last_fetched_epoch < 0
        or asked.last_fetched_epoch > max(asked.current_leader_epoch, 0)
        or asked.current_leader_epoch < 0
    ):
        code = ErrorCode.INVALID_REQUEST
    if ctx.version < 12:  # it can neither say where two logs part nor name a snapshot
        code = ErrorCode.UNSUPPORTED_VERSION
    data = fetch_messages.PartitionData(partition_index=0, error_code=code, high_watermark=-1)
    reply = FetchReply(quorum.raft.epoch, quorum.raft.leader, refused=True)
    if code is ErrorCode.NONE:
        facts = FetchFacts(
            asked.current_leader_epoch,
            Voter(replica_id, asked.replica_directory_id),
            asked.fetch_offset,
            asked.last_fetched_epoch,
            asked.high_watermark,
            request.max_wait_ms,
        )
        answered = await quorum.ask(replica_id, facts)
        assert isinstance(answered, FetchReply)
        reply = answered
        # Bytes that a peer does not take lie in memory, so this node says how many there may be.
        most = node.settings.controller_quorum_fetch_max_bytes
        limit = min(request.max_bytes, asked.partition_max_bytes, most)
        await _fill(quorum, data, reply, limit)
    if ctx.version >= 12:
        data.current_leader = fetch_messages.LeaderIdAndEpoch(
            leader_id=_id(reply.leader), leader_epoch=reply.epoch
        )
    topic = fetch_messages.FetchableTopicResponse(topic=TOPIC, topic_id=TOPIC_ID, partitions=[data])
    told: list[fetch_messages.NodeEndpoint] = []
    address = None if reply.leader is None else quorum.address(reply.leader)
    if data.error_code and address is not None and reply.leader is not None and ctx.version >= 16:
        host, port = address
        told = [fetch_messages.NodeEndpoint(node_id=reply.leader, host=host, port=port)]
    return fetch_messages.FetchResponse(responses=[topic], node_endpoints=told)


async def _fill(
    quorum: MetadataQuorum, data: fetch_messages.PartitionData, reply: FetchReply, limit: int
) -> None:
    """Puts into an answer what the machine wants in it."""
    if reply.refused:
        data.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return
    data.high_watermark = reply.high_watermark
    data.last_stable_offset = reply.high_watermark
    data.log_start_offset = quorum.log.start_offset
    if reply.snapshot is not None:
        data.snapshot_id = fetch_messages.SnapshotId(
            end_offset=reply.snapshot.offset, epoch=reply.snapshot.epoch
        )
    elif reply.diverging is not None:
        data.diverging_epoch = fetch_messages.FetchResponseEpochEndOffset(
            epoch=reply.diverging.epoch, end_offset=reply.diverging.offset
        )
    elif reply.end_offset > reply.position.offset:
        try:
            data.records = await _records(quorum, reply, limit)
        except KafkaError:
            # The log was cut meanwhile, at either end: whoever asks again learns why.
            data.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER


async def _records(quorum: MetadataQuorum, reply: FetchReply, limit: int) -> bytes:
    while True:
        if quorum.raft.role is not Role.LEADER or quorum.raft.epoch != reply.epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        part = quorum.log.read(reply.position.offset, limit, reply.end_offset)
        if isinstance(part, NotResident):
            await part.file.load(part.position, part.size)
            continue
        if not isinstance(part, Slice):
            return b""
        data = bytearray(part.size)
        part.file.pread_into(memoryview(data), part.position)
        return bytes(data)


def fetch_snapshot(
    node: QuorumService, ctx: Context, request: messages.FetchSnapshotRequest
) -> messages.FetchSnapshotResponse | Deferred[messages.FetchSnapshotResponse]:
    _check_access(node, ctx)
    _check_cluster(node, request.cluster_id)
    quorum = node.metadata.quorum
    response = messages.FetchSnapshotResponse()
    found: messages.FetchSnapshotRequestPartitionSnapshot | None = None
    data = messages.FetchSnapshotResponsePartitionSnapshot()
    for topic in request.topics:
        answer = messages.FetchSnapshotResponseTopicSnapshot(name=topic.name)
        response.topics.append(answer)
        for asked in topic.partitions:
            told = messages.FetchSnapshotResponsePartitionSnapshot(index=asked.partition)
            told.unaligned_records = b""
            answer.partitions.append(told)
            told.current_leader = messages.LeaderIdAndEpoch(
                leader_id=_id(quorum.raft.leader), leader_epoch=quorum.raft.epoch
            )
            told.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if topic.name == TOPIC and asked.partition == 0 and found is None:
                found, data = asked, told
    response.node_endpoints = _endpoints(
        quorum, quorum.raft.leader, messages.FetchSnapshotResponseNodeEndpoint, ctx.version
    )
    if found is None:
        return response
    data.error_code = _check_epoch(quorum, found.current_leader_epoch)
    if data.error_code:
        return response
    quorum.raft.heard_replica(
        Voter(request.replica_id, found.replica_directory_id), node.world.clock.now()
    )
    return Deferred(_fill_snapshot(node, quorum, found, data, response, request.max_bytes))


async def _fill_snapshot(
    node: QuorumService,
    quorum: MetadataQuorum,
    asked: messages.FetchSnapshotRequestPartitionSnapshot,
    data: messages.FetchSnapshotResponsePartitionSnapshot,
    response: messages.FetchSnapshotResponse,
    limit: int,
) -> messages.FetchSnapshotResponse:
    position = Position(asked.snapshot_id.epoch, asked.snapshot_id.end_offset)
    data.snapshot_id = messages.FetchSnapshotResponseSnapshotId(
        end_offset=position.offset, epoch=position.epoch
    )
    data.position = asked.position
    if position.offset < 0 or position.epoch < 0:
        data.error_code = ErrorCode.SNAPSHOT_NOT_FOUND
        return response
    try:
        file = node.world.disk.open(f"{quorum.directory}/{snapshots.file_name(position)}")
    except FileNotFoundError:
        data.error_code = ErrorCode.SNAPSHOT_NOT_FOUND
        return response
    try:
        data.size = file.size()
        if not 0 <= asked.position < data.size:
            data.error_code = ErrorCode.POSITION_OUT_OF_RANGE
            return response
        most = node.settings.controller_quorum_fetch_snapshot_max_bytes
        count = min(max(limit, 1), most, data.size - asked.position)
        if not file.resident(asked.position, count):
            await file.load(asked.position, count)
        slice_ = bytearray(count)
        read = file.pread_into(memoryview(slice_), asked.position)
        data.unaligned_records = bytes(slice_[:read])
        return response
    finally:
        file.close()


# ---- voters ----


def describe_quorum(
    node: QuorumService, ctx: Context, request: messages.DescribeQuorumRequest
) -> messages.DescribeQuorumResponse:
    """On this listener a controller answers for itself: whoever does not lead says who does."""
    if not node.access.allowed(ctx, Operation.DESCRIBE, Resource.CLUSTER, CLUSTER_NAME):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    now = node.world.clock.now()
    return in_version(describe(node.metadata.quorum, request, now), ctx.version)


def update_raft_voter(
    node: QuorumService, ctx: Context, request: messages.UpdateRaftVoterRequest
) -> messages.UpdateRaftVoterResponse | Deferred[messages.UpdateRaftVoterResponse]:
    """A voter says where it is now. Before there is a cluster, so does one that wants to found it
    together with this node."""
    _check_access(node, ctx)
    identity = Identity(
        Voter(request.voter_id, request.voter_directory_id),
        tuple((end.name, end.host, end.port) for end in request.listeners),
    )
    if request.voter_id < 0 or not identity.endpoints:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a voter needs an id and an address")
    supported = request.kraft_version_feature
    levels = (supported.min_supported_version, supported.max_supported_version)
    if not request.cluster_id and node.metadata.meet(identity):
        return messages.UpdateRaftVoterResponse()
    _check_cluster(node, request.cluster_id)
    quorum = node.metadata.quorum
    response = messages.UpdateRaftVoterResponse()
    response.error_code = _check_epoch(quorum, request.current_leader_epoch)
    leader = quorum.raft.leader
    host, port = (None if leader is None else quorum.address(leader)) or ("", 0)
    response.current_leader = messages.CurrentLeader(
        leader_id=_id(leader), leader_epoch=quorum.raft.epoch, host=host, port=port
    )
    if response.error_code:
        return response

    async def committed() -> messages.UpdateRaftVoterResponse:
        try:
            await node.metadata.changes.update(identity, levels)
        except KafkaError as error:
            response.error_code = error.code
            if error.code is ErrorCode.NOT_CONTROLLER:
                response.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return response

    return Deferred(committed())


# ---- whom a request is meant for ----


def _admit(node: QuorumService, ctx: Context, request: Any) -> Any:
    """The one partition that a request between voters is about."""
    _check_access(node, ctx)
    _check_cluster(node, request.cluster_id)
    topics = request.topics
    if (
        len(topics) != 1
        or topics[0].topic_name != TOPIC
        or [p.partition_index for p in topics[0].partitions] != [0]
    ):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the quorum is about {TOPIC}-0 alone")
    return topics[0].partitions[0]


def _check_access(node: QuorumService, ctx: Context) -> None:
    if not node.access.allowed(ctx, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def _check_cluster(node: QuorumService, cluster_id: str | None) -> None:
    if not node.cluster_id:
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "this controller has no cluster yet")
    if cluster_id is not None and cluster_id != node.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is a controller of {node.cluster_id}"
        )


def _check_voter_key(quorum: MetadataQuorum, voter_id: int, directory: bytes) -> ErrorCode:
    own = quorum.raft.own
    if (voter_id >= 0 and voter_id != own.id) or directory not in (NO_DIRECTORY, own.directory):
        return ErrorCode.INVALID_VOTER_KEY
    return ErrorCode.NONE


def _check_epoch(quorum: MetadataQuorum, epoch: int) -> ErrorCode:
    """Whether this node leads the epoch that a request is meant for."""
    raft = quorum.raft
    if epoch < raft.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if epoch > raft.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE if raft.role is Role.LEADER else ErrorCode.NOT_LEADER_OR_FOLLOWER


def _check_leader(quorum: MetadataQuorum, ctx: Context, epoch: int, leader: int) -> ErrorCode:
    """Whether what a leader says of itself can be true."""
    raft = quorum.raft
    if epoch < raft.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if leader < 0 or leader == raft.own.id:
        return ErrorCode.INVALID_REQUEST
    if epoch == raft.epoch and raft.leader not in (None, leader):
        return ErrorCode.INVALID_REQUEST
    if not quorum.may_follow(epoch, leader, ctx.host):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _id(leader: int | None) -> int:
    return -1 if leader is None else leader


def _endpoints(quorum: MetadataQuorum, leader: int | None, kind: Any, version: int) -> list[Any]:
    """Where the leader is, in the versions that can say it (KIP-853)."""
    address = None if leader is None else quorum.address(leader)
    if address is None or version < 1:
        return []
    return [kind(node_id=leader, host=address[0], port=address[1])]


# ---- a whole request refused ----


def refuse_fetch(
    request: fetch_messages.FetchRequest, code: ErrorCode, text: str
) -> fetch_messages.FetchResponse:
    return fetch_messages.FetchResponse(error_code=code)
