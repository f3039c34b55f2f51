"""The quorum's messages as Kafka sends them, and back.

The raft machine speaks of epochs, votes and positions; on the wire each of these is a request about
partition 0 of `__cluster_metadata`, with the cluster's id and the key of the voter that is meant.
An answer that cannot be understood is none: `WireError` says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from scriba.broker.metadata.quorum.snapshots import QuorumFacts, learn
from scriba.errors import ErrorCode, ParseError, error_code
from scriba.raft.messages import (
    BeginEpoch,
    EndEpoch,
    EpochReply,
    FetchReply,
    FetchRequest,
    Position,
    Reply,
    Request,
    Run,
    Voter,
    VoteReply,
    VoteRequest,
)
from scriba.records.batch import check_crc, decode_records, walk
from scriba.wire.messages import fetch as fetch_messages
from scriba.wire.messages import quorum as messages
from scriba.wire.schema import Message

TOPIC: Final = "__cluster_metadata"
TOPIC_ID: Final = bytes(15) + b"\x01"

_ANSWERED: Final = (
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)
"""Errors that are an answer: they tell which epoch it is, and who leads it."""

Endpoints = tuple[tuple[str, str, int], ...]
"""Listener, host and port."""


class WireError(Exception):
    """A peer refused a request as a whole, or answered what makes no sense."""

    def __init__(self, text: str, code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR) -> None:
        super().__init__(text)
        self.code = code


class Nonsense(WireError):
    """Records that no leader can have meant."""


class Sender(NamedTuple):
    """Who asks, in the words of the protocol."""

    cluster_id: str
    own: Voter
    endpoints: Endpoints


class Answer(NamedTuple):
    reply: Reply
    addresses: Mapping[int, tuple[str, int]]
    """Where nodes are that the answer speaks of."""
    leader: int | None
    """Who answered as the leader."""


# ---- requests ----


def encode_request(
    sender: Sender, peer: Voter, request: Request, max_bytes: int, voters: Mapping[int, Voter]
) -> Message:
    """The request for a peer."""
    match request:
        case VoteRequest():
            return _vote(sender, peer, request)
        case BeginEpoch():
            return _begin(sender, peer, request)
        case EndEpoch():
            return _end(sender, request, voters)
        case FetchRequest():
            return _fetch(sender, request, max_bytes)


def _vote(sender: Sender, peer: Voter, request: VoteRequest) -> Message:
    partition = messages.VoteRequestPartitionData(
        partition_index=0,
        replica_epoch=request.epoch,
        replica_id=request.candidate.id,
        replica_directory_id=request.candidate.directory,
        voter_directory_id=peer.directory,
        last_offset_epoch=request.end.epoch,
        last_offset=request.end.offset,
        pre_vote=request.pre_vote,
    )
    topic = messages.VoteRequestTopicData(topic_name=TOPIC, partitions=[partition])
    return messages.VoteRequest(cluster_id=sender.cluster_id, voter_id=peer.id, topics=[topic])


def _begin(sender: Sender, peer: Voter, request: BeginEpoch) -> Message:
    partition = messages.BeginQuorumEpochRequestPartitionData(
        partition_index=0,
        voter_directory_id=peer.directory,
        leader_id=request.leader,
        leader_epoch=request.epoch,
    )
    topic = messages.BeginQuorumEpochRequestTopicData(topic_name=TOPIC, partitions=[partition])
    return messages.BeginQuorumEpochRequest(
        cluster_id=sender.cluster_id,
        voter_id=peer.id,
        topics=[topic],
        leader_endpoints=[
            messages.BeginQuorumEpochRequestLeaderEndpoint(name=name, host=host, port=port)
            for name, host, port in sender.endpoints
        ],
    )


def _end(sender: Sender, request: EndEpoch, voters: Mapping[int, Voter]) -> Message:
    partition = messages.EndQuorumEpochRequestPartitionData(
        partition_index=0,
        leader_id=request.leader,
        leader_epoch=request.epoch,
        preferred_successors=list(request.successors),
        preferred_candidates=[
            messages.ReplicaInfo(
                candidate_id=successor, candidate_directory_id=voters[successor].directory
            )
            for successor in request.successors
            if successor in voters
        ],
    )
    topic = messages.EndQuorumEpochRequestTopicData(topic_name=TOPIC, partitions=[partition])
    return messages.EndQuorumEpochRequest(
        cluster_id=sender.cluster_id,
        topics=[topic],
        leader_endpoints=[
            messages.EndQuorumEpochRequestLeaderEndpoint(name=name, host=host, port=port)
            for name, host, port in sender.endpoints
        ],
    )


def _fetch(sender: Sender, request: FetchRequest, max_bytes: int) -> Message:
    partition = fetch_messages.FetchPartition(
        partition=0,
        current_leader_epoch=request.epoch,
        fetch_offset=request.offset,
        last_fetched_epoch=request.last_epoch,
        log_start_offset=0,
        partition_max_bytes=max_bytes,
        replica_directory_id=request.replica.directory,
        high_watermark=request.high_watermark,
    )
    topic = fetch_messages.FetchTopic(topic=TOPIC, topic_id=TOPIC_ID, partitions=[partition])
    return fetch_messages.FetchRequest(
        cluster_id=sender.cluster_id,
        replica_state=fetch_messages.ReplicaState(replica_id=request.replica.id),
        max_wait_ms=request.max_wait_ms,
        min_bytes=0,
        max_bytes=max_bytes,
        topics=[topic],
    )


def snapshot_request(
    sender: Sender, epoch: int, snapshot: Position, position: int, max_bytes: int
) -> messages.FetchSnapshotRequest:
    partition = messages.FetchSnapshotRequestPartitionSnapshot(
        partition=0,
        current_leader_epoch=epoch,
        snapshot_id=messages.FetchSnapshotRequestSnapshotId(
            end_offset=snapshot.offset, epoch=snapshot.epoch
        ),
        position=position,
        replica_directory_id=sender.own.directory,
    )
    topic = messages.FetchSnapshotRequestTopicSnapshot(name=TOPIC, partitions=[partition])
    return messages.FetchSnapshotRequest(
        cluster_id=sender.cluster_id,
        replica_id=sender.own.id,
        max_bytes=max_bytes,
        topics=[topic],
    )


def update_voter_request(sender: Sender, epoch: int) -> messages.UpdateRaftVoterRequest:
    return messages.UpdateRaftVoterRequest(
        cluster_id=sender.cluster_id,
        current_leader_epoch=epoch,
        voter_id=sender.own.id,
        voter_directory_id=sender.own.directory,
        listeners=[
            messages.UpdateRaftVoterRequestListener(name=name, host=host, port=port)
            for name, host, port in sender.endpoints
        ],
        kraft_version_feature=messages.KRaftVersionFeature(
            min_supported_version=0, max_supported_version=1
        ),
    )


def add_voter_request(sender: Sender, timeout_ms: int) -> messages.AddRaftVoterRequest:
    """The sender would be a voter; that it is one it sees in the log."""
    return messages.AddRaftVoterRequest(
        cluster_id=sender.cluster_id,
        timeout_ms=timeout_ms,
        voter_id=sender.own.id,
        voter_directory_id=sender.own.directory,
        listeners=[
            messages.AddRaftVoterRequestListener(name=name, host=host, port=port)
            for name, host, port in sender.endpoints
        ],
        ack_when_committed=False,
    )


def remove_voter_request(cluster_id: str, voter: Voter) -> messages.RemoveRaftVoterRequest:
    return messages.RemoveRaftVoterRequest(
        cluster_id=cluster_id, voter_id=voter.id, voter_directory_id=voter.directory
    )


def quorum_request() -> messages.DescribeQuorumRequest:
    partition = messages.DescribeQuorumRequestPartitionData(partition_index=0)
    topic = messages.DescribeQuorumRequestTopicData(topic_name=TOPIC, partitions=[partition])
    return messages.DescribeQuorumRequest(topics=[topic])


# ---- answers ----


def silence_of(response: messages.DescribeQuorumResponse, voter: Voter) -> int | None:
    """For how long the leader has not heard of a voter, in milliseconds; None where it never has.

    It tells its own time as that of its own last fetch. WireError when it tells nothing.
    """
    partition: messages.DescribeQuorumResponsePartitionData = _only(response, response.topics)
    code = error_code(partition.error_code)
    if code is not ErrorCode.NONE:
        raise WireError(code.text, code)
    fetched = {state.replica_id: state for state in partition.current_voters}
    if partition.leader_id not in fetched:
        raise WireError("a leader that does not know itself")
    known = fetched.get(voter.id)
    if known is None or known.last_fetch_timestamp < 0:
        return None
    now = fetched[partition.leader_id].last_fetch_timestamp
    return max(now - known.last_fetch_timestamp, 0)


def decode_answer(request: Request, response: Message) -> Answer:
    """What a peer answered; WireError where it answered nothing that the machine could use."""
    if isinstance(response, fetch_messages.FetchResponse):
        assert isinstance(request, FetchRequest)
        return _fetched(request, response)
    assert isinstance(
        response,
        messages.VoteResponse | messages.BeginQuorumEpochResponse | messages.EndQuorumEpochResponse,
    )
    partition = _only(response, response.topics)
    code = error_code(partition.error_code)
    if code is not ErrorCode.NONE and code not in _ANSWERED:
        raise WireError(code.text, code)
    epoch, leader = _leadership(partition.leader_epoch, partition.leader_id)
    reply: Reply = EpochReply(epoch, leader)
    if isinstance(request, VoteRequest):
        granted = bool(partition.vote_granted) and code is ErrorCode.NONE
        reply = VoteReply(epoch, leader, granted, request.pre_vote)
    return Answer(reply, _addresses(response.node_endpoints), None)


def _fetched(request: FetchRequest, response: fetch_messages.FetchResponse) -> Answer:
    partition: fetch_messages.PartitionData = _only(response, response.responses)
    code = error_code(partition.error_code)
    addresses = _addresses(response.node_endpoints)
    epoch, leader = _leadership(
        partition.current_leader.leader_epoch, partition.current_leader.leader_id
    )
    if code in _ANSWERED:
        return Answer(FetchReply(epoch, leader, refused=True), addresses, None)
    if code is not ErrorCode.NONE:
        raise WireError(code.text, code)
    if leader is None:
        raise WireError("an answer that names no leader")
    reply = FetchReply(
        epoch,
        leader,
        partition.high_watermark,
        Position(request.last_epoch, request.offset),
    )
    diverging, snapshot = partition.diverging_epoch, partition.snapshot_id
    if snapshot.end_offset >= 0 and snapshot.epoch >= 0:
        reply = reply._replace(snapshot=Position(snapshot.epoch, snapshot.end_offset))
    elif diverging.end_offset >= 0 and diverging.epoch >= 0:
        reply = reply._replace(diverging=Position(diverging.epoch, diverging.end_offset))
    elif len(data := _bytes(partition.records)):
        runs, size = read_runs(data, request.offset)
        reply = reply._replace(runs=runs, payload=data[:size])
    return Answer(reply, addresses, leader)


def read_runs(data: memoryview, offset: int) -> tuple[tuple[Run, ...], int]:
    """The epochs of whole batches that begin at `offset`, and how many bytes they take.

    Nonsense when they are damaged or begin elsewhere, or when what they say of the quorum itself
    cannot be read: whoever appends that does not know who votes.
    """
    runs: list[Run] = []
    size = 0
    try:
        for at, header in walk(data):
            if at + header.size > len(data):
                break
            if header.base_offset != offset or header.next_offset <= offset:
                raise Nonsense(f"a batch at offset {header.base_offset} instead of {offset}")
            if not check_crc(data, at, header):
                raise Nonsense(f"the batch at offset {offset} fails its checksum")
            offset, size = header.next_offset, at + header.size
            for record in decode_records(data[at:size]) if header.is_control else ():
                learn(QuorumFacts(0, None), record)
            if runs and runs[-1].epoch == header.leader_epoch:
                runs[-1] = Run(header.leader_epoch, offset)
            else:
                runs.append(Run(header.leader_epoch, offset))
    except ParseError as error:
        raise Nonsense(f"records that cannot be read: {error}") from error
    return tuple(runs), size


def snapshot_slice(
    response: messages.FetchSnapshotResponse, position: int
) -> tuple[int, memoryview]:
    """The size of the snapshot and what of it begins at `position`."""
    partition: messages.FetchSnapshotResponsePartitionSnapshot = _only(response, response.topics)
    code = error_code(partition.error_code)
    if code is not ErrorCode.NONE:
        raise WireError(code.text, code)
    data = _bytes(partition.unaligned_records)
    if partition.position != position or not 0 < len(data) <= partition.size - position:
        raise WireError(f"{len(data)} bytes at {partition.position} instead of {position}")
    return partition.size, data


def _bytes(records: object) -> memoryview:
    """Records of an answer, which a decoder leaves where they are."""
    return memoryview(records if isinstance(records, bytes | bytearray | memoryview) else b"")


def _only(response: Any, topics: Sequence[Any]) -> Any:
    """The one partition that an answer is about."""
    code = error_code(response.error_code)
    if code is not ErrorCode.NONE:
        raise WireError(code.text, code)
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        raise WireError("an answer about other partitions than was asked for")
    return topics[0].partitions[0]


def _leadership(epoch: int, leader: int) -> tuple[int, int | None]:
    if epoch < 0:
        raise WireError("an answer without an epoch")
    return epoch, leader if leader >= 0 else None


def _addresses(endpoints: Iterable[Any]) -> dict[int, tuple[str, int]]:
    return {
        end.node_id: (end.host, end.port)
        for end in endpoints
        if end.node_id >= 0 and end.host and 0 < end.port < 65536
    }
