"""DescribeQuorum: what the leader of the metadata quorum knows of its voters and observers."""

from __future__ import annotations

from scriba.broker.metadata.quorum.quorum import MetadataQuorum
from scriba.broker.metadata.quorum.wire import TOPIC
from scriba.errors import ErrorCode
from scriba.instant import Instant
from scriba.raft.progress import Replica
from scriba.wire.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponseListener,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Node,
    ReplicaState,
)


def describe_quorum(
    quorum: MetadataQuorum, request: DescribeQuorumRequest, now: Instant
) -> DescribeQuorumResponse:
    response = DescribeQuorumResponse()
    for topic in request.topics:
        answer = DescribeQuorumResponseTopicData(topic_name=topic.topic_name)
        response.topics.append(answer)
        for partition in topic.partitions:
            index = partition.partition_index
            if topic.topic_name == TOPIC and index == 0:
                answer.partitions.append(_describe_partition(quorum, now))
            else:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                answer.partitions.append(
                    DescribeQuorumResponsePartitionData(
                        partition_index=index, error_code=code, error_message=code.text
                    )
                )
    if any(not p.error_code for topic in response.topics for p in topic.partitions):
        response.nodes = [
            Node(
                node_id=node_id,
                listeners=[
                    DescribeQuorumResponseListener(name=name, host=host, port=port)
                    for name, host, port in endpoints
                ],
            )
            for node_id, endpoints in quorum.voter_endpoints().items()
        ]
    return response


def _describe_partition(
    quorum: MetadataQuorum, now: Instant
) -> DescribeQuorumResponsePartitionData:
    raft = quorum.raft
    if raft.progress is None:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return DescribeQuorumResponsePartitionData(
            partition_index=0,
            error_code=code,
            error_message=code.text,
            leader_id=-1 if raft.leader is None else raft.leader,
            leader_epoch=raft.epoch,
        )

    def state(replica: Replica) -> ReplicaState:
        own = replica.voter == raft.own
        return ReplicaState(
            replica_id=replica.voter.id,
            replica_directory_id=replica.voter.directory,
            log_end_offset=raft.log.end_offset if own else replica.end_offset,
            last_fetch_timestamp=now.wall_ms if own else replica.last_fetch_ms,
            last_caught_up_timestamp=now.wall_ms if own else replica.last_caught_up_ms,
        )

    return DescribeQuorumResponsePartitionData(
        partition_index=0,
        error_message=None,
        leader_id=raft.own.id,
        leader_epoch=raft.epoch,
        high_watermark=raft.high_watermark,
        current_voters=[state(replica) for replica in raft.progress.voters.values()],
        observers=[state(replica) for replica in raft.progress.heard_observers(now)],
    )
