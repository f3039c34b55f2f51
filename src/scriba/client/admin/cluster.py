"""The part of `Admin` that is about the cluster itself: brokers, leaders, quorum, features."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from scriba.client.admin.calls import Calls, outcome
from scriba.client.admin.model import (
    ClusterDescription,
    ElectionType,
    Endpoint,
    Feature,
    LogDir,
    QuorumDescription,
    Reassignment,
    ReplicaOffsets,
    UpgradeType,
)
from scriba.client.admin.requests import (
    LAST_FETCH_BY_NAME,
    alter_log_dirs,
    alter_reassignments,
    describe_log_dirs,
    elect_leaders,
    ends_of_replicas,
    fetch_of_replicas,
    list_reassignments,
)
from scriba.client.admin.responses import (
    read_cluster,
    read_ends,
    read_features,
    read_log_dir,
    read_quorum,
    read_replicas,
)
from scriba.client.model import TopicPartition
from scriba.errors import ErrorCode
from scriba.peers.errors import BrokerError, raise_for
from scriba.wire import uuids
from scriba.wire.messages import admin as wire
from scriba.wire.messages import configs as config_wire
from scriba.wire.messages import quorum as quorum_wire
from scriba.wire.messages.brokers import UnregisterBrokerRequest, UnregisterBrokerResponse
from scriba.wire.messages.fetch import FetchRequest, FetchResponse, ListOffsetsResponse
from scriba.wire.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from scriba.wire.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from scriba.wire.schema import Message

ReplicaT = TypeVar("ReplicaT", bound=tuple[str, int])


class ClusterAdmin:
    _calls: Calls

    async def describe_cluster(
        self, *, include_fenced: bool = False, timeout_ms: int | None = None
    ) -> ClusterDescription:
        request = DescribeClusterRequest(include_fenced_brokers=include_fenced)
        return read_cluster(
            await self._calls.once(request, DescribeClusterResponse, timeout_ms, "the cluster")
        )

    async def describe_log_dirs(
        self,
        brokers: Iterable[int] | None = None,
        *,
        partitions: Iterable[tuple[str, int]] | None = None,
        timeout_ms: int | None = None,
    ) -> dict[int, list[LogDir]]:
        """The log directories of these brokers, or of all, each with the replicas in it: every one,
        or those of these partitions. What is wrong with a directory is its `error`."""
        wanted = None if partitions is None else [TopicPartition(*where) for where in partitions]
        await self._calls.cluster.ready(self._calls.limit(timeout_ms))
        found: dict[int, list[LogDir]] = {}
        for node in list(self._calls.cluster.nodes) if brokers is None else brokers:
            request = describe_log_dirs(wanted)
            answer = await self._calls.once(
                request,
                wire.DescribeLogDirsResponse,
                timeout_ms,
                f"log directories of {node}",
                node,
            )
            found[node] = [read_log_dir(directory) for directory in answer.results]
        return found

    async def alter_replica_log_dirs(
        self, broker: int, moves: Mapping[ReplicaT, str], *, timeout_ms: int | None = None
    ) -> None:
        """Begins to move replicas of a broker to others of its log directories (KIP-113).

        The directory in which a replica is ends a move of it. `describe_log_dirs` tells what is
        under way: there is a future replica, and how much it lacks. A replica that is not there yet
        is refused with REPLICA_NOT_AVAILABLE; when it comes, it goes to the directory named.
        """
        wanted = {TopicPartition(*where): path for where, path in moves.items()}
        await self._calls.cluster.ready(self._calls.limit(timeout_ms))

        async def attempt(rest: list[TopicPartition]) -> dict[TopicPartition, BrokerError | None]:
            request = alter_log_dirs({where: wanted[where] for where in rest})
            answer = await self._calls.ask(request, wire.AlterReplicaLogDirsResponse, broker)
            return {
                (where := TopicPartition(topic.topic_name, p.partition_index)): outcome(
                    p.error_code, None, None, f"{where} on broker {broker}, {wanted[where]}"
                )
                for topic in answer.results
                for p in topic.partitions
            }

        await self._calls.each(wanted, attempt, timeout_ms, f"directories of broker {broker}")

    async def describe_replicas(
        self,
        broker: int,
        partitions: Iterable[tuple[str, int]],
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, ReplicaOffsets]:
        """What one broker has of partitions, be it their leader or not.

        It is asked as tools for debugging do, so that also a partition without a leader is told.
        """
        wanted = list(dict.fromkeys(TopicPartition(*where) for where in partitions))
        calls = self._calls

        async def attempt() -> dict[TopicPartition, ReplicaOffsets]:
            await calls.cluster.ready(calls.limit(timeout_ms))
            connection = await calls.cluster.connect(broker)
            answer = await connection.request(ends_of_replicas(wanted), ListOffsetsResponse)
            ends = read_ends(answer)
            there = {at: end[0] for at, end in ends.items() if not isinstance(end, ErrorCode)}
            version = connection.version(FetchRequest, LAST_FETCH_BY_NAME)
            marks = FetchResponse()
            if there:
                request = fetch_of_replicas(there)
                marks = await connection.request(request, FetchResponse, version=version)
            return read_replicas(wanted, ends, marks)

        what = f"replicas of broker {broker}"
        return await calls.cluster.retry(attempt, calls.limit(timeout_ms), what)

    async def describe_features(self, *, timeout_ms: int | None = None) -> dict[str, Feature]:
        answer = await self._calls.once(
            ApiVersionsRequest(client_software_name="scriba-admin", client_software_version="1"),
            ApiVersionsResponse,
            timeout_ms,
            "the features",
        )
        return read_features(answer)

    async def update_features(
        self,
        levels: Mapping[str, int],
        *,
        upgrade_type: UpgradeType = UpgradeType.UPGRADE,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Finalizes features at these levels; 0 turns one off."""
        request = config_wire.UpdateFeaturesRequest(
            timeout_ms=self._calls.server_limit(timeout_ms),
            feature_updates=[
                config_wire.FeatureUpdateKey(
                    feature=name, max_version_level=level, upgrade_type=upgrade_type
                )
                for name, level in levels.items()
            ],
            validate_only=validate_only,
        )
        answer = await self._calls.once(
            request, config_wire.UpdateFeaturesResponse, timeout_ms, "updating features"
        )
        for said in answer.results:
            raise_for(said.error_code, said.error_message, about=f"feature {said.feature}")

    async def describe_quorum(
        self, *, broker: int | None = None, timeout_ms: int | None = None
    ) -> QuorumDescription:
        """The voters and observers of the metadata quorum, as any broker or the one named tells."""
        partition = DescribeQuorumRequestPartitionData(partition_index=0)
        topic = DescribeQuorumRequestTopicData(
            topic_name="__cluster_metadata", partitions=[partition]
        )

        async def attempt() -> QuorumDescription:
            # Between two leaders it is the partition that says so, not the whole answer.
            answer = await self._calls.once(
                DescribeQuorumRequest(topics=[topic]),
                DescribeQuorumResponse,
                timeout_ms,
                "the quorum",
                broker,
            )
            said = answer.topics[0].partitions[0]
            raise_for(said.error_code, said.error_message, about="the quorum")
            return read_quorum(said, answer.nodes)

        return await self._calls.cluster.retry(attempt, self._calls.limit(timeout_ms), "the quorum")

    async def add_raft_voter(
        self,
        voter: int,
        directory_id: str,
        endpoints: Iterable[Endpoint],
        *,
        cluster_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Makes a controller that follows the metadata log a voter of the quorum (KIP-853).

        One that is a voter already, with this directory and these endpoints, is what was asked for:
        a broker may have forwarded the request twice, and only the second answer came.
        """
        asked = tuple(endpoints)
        try:
            await self._change_voters(
                quorum_wire.AddRaftVoterRequest(
                    cluster_id=cluster_id,
                    timeout_ms=self._calls.server_limit(timeout_ms),
                    voter_id=voter,
                    voter_directory_id=uuids.from_text(directory_id),
                    listeners=[
                        quorum_wire.AddRaftVoterRequestListener(
                            name=e.name, host=e.host, port=e.port
                        )
                        for e in asked
                    ],
                ),
                quorum_wire.AddRaftVoterResponse,
                f"voter {voter}",
                timeout_ms,
            )
        except BrokerError as refused:
            if refused.code is not ErrorCode.DUPLICATE_VOTER:
                raise
            quorum = await self.describe_quorum(timeout_ms=timeout_ms)
            there = {(each.id, each.directory_id) for each in quorum.voters}
            known = set(quorum.endpoints.get(voter, ()))
            if (voter, directory_id) not in there or not set(asked) <= known:
                raise

    async def remove_raft_voter(
        self,
        voter: int,
        directory_id: str,
        *,
        cluster_id: str | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Takes a voter out of the quorum; its controller follows on if it runs."""
        await self._change_voters(
            quorum_wire.RemoveRaftVoterRequest(
                cluster_id=cluster_id,
                voter_id=voter,
                voter_directory_id=uuids.from_text(directory_id),
            ),
            quorum_wire.RemoveRaftVoterResponse,
            f"voter {voter}",
            timeout_ms,
        )

    async def _change_voters(
        self, request: Message, answer: type[Message], what: str, timeout_ms: int | None
    ) -> None:
        """Asked once: a second attempt would be told that it is a voter already, or no more."""
        await self._calls.cluster.ready(self._calls.limit(timeout_ms))
        said: Any = await self._calls.ask(request, answer)
        raise_for(said.error_code, said.error_message, about=what)

    # -- leaders and brokers ---------------------------------------------------------------------

    async def elect_leaders(
        self,
        partitions: Iterable[tuple[str, int]] | None = None,
        *,
        type: ElectionType = ElectionType.PREFERRED,
        timeout_ms: int | None = None,
        on_loss: Callable[[TopicPartition, str], object] | None = None,
    ) -> dict[TopicPartition, bool]:
        """Has leaders elected for these partitions, or for all that need one.

        True where there was an election, False where the leader was the right one already.
        `on_loss` is called with what the controller says of an election that may have lost records.
        """
        wanted = None if partitions is None else [TopicPartition(*where) for where in partitions]

        async def attempt(
            rest: list[TopicPartition] | None,
        ) -> dict[TopicPartition, bool | BrokerError]:
            request = elect_leaders(rest, type, self._calls.server_limit(timeout_ms))
            answer = await self._calls.ask(request, wire.ElectLeadersResponse)
            raise_for(answer.error_code, about="the election")
            for topic in answer.replica_election_results:
                for p in topic.partition_result:
                    if on_loss is not None and not p.error_code and p.error_message:
                        on_loss(TopicPartition(topic.topic, p.partition_id), p.error_message)
            return {
                (where := TopicPartition(topic.topic, p.partition_id)): False
                if p.error_code == ErrorCode.ELECTION_NOT_NEEDED
                else outcome(p.error_code, p.error_message, True, str(where))
                for topic in answer.replica_election_results
                for p in topic.partition_result
            }

        if wanted is not None:
            return await self._calls.each(wanted, attempt, timeout_ms, "electing leaders")
        return await self._calls.all_found(lambda: attempt(None), timeout_ms, "electing leaders")

    async def alter_partition_reassignments(
        self,
        moves: Mapping[ReplicaT, Sequence[int] | None],
        *,
        replication_factor_may_change: bool = True,
        timeout_ms: int | None = None,
    ) -> None:
        """Begins to move partitions to these replicas; None takes back a move under way (KIP-455).

        The first replica is the preferred leader. `list_partition_reassignments` tells what is
        still under way.
        """
        wanted = {TopicPartition(*where): replicas for where, replicas in moves.items()}

        async def attempt(rest: list[TopicPartition]) -> dict[TopicPartition, BrokerError | None]:
            request = alter_reassignments(
                {where: wanted[where] for where in rest},
                replication_factor_may_change,
                self._calls.server_limit(timeout_ms),
            )
            answer = await self._calls.ask(request, wire.AlterPartitionReassignmentsResponse)
            raise_for(answer.error_code, answer.error_message, about="the reassignment")
            return {
                (where := TopicPartition(topic.name, p.partition_index)): outcome(
                    p.error_code, p.error_message, None, str(where)
                )
                for topic in answer.responses
                for p in topic.partitions
            }

        await self._calls.each(wanted, attempt, timeout_ms, "reassigning partitions")

    async def list_partition_reassignments(
        self,
        partitions: Iterable[tuple[str, int]] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, Reassignment]:
        """Moves that are under way, of these partitions or of all."""
        wanted = None if partitions is None else [TopicPartition(*where) for where in partitions]
        answer = await self._calls.once(
            list_reassignments(wanted, self._calls.server_limit(timeout_ms)),
            wire.ListPartitionReassignmentsResponse,
            timeout_ms,
            "reassignments",
        )
        return {
            TopicPartition(topic.name, p.partition_index): Reassignment(
                tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
            )
            for topic in answer.topics
            for p in topic.partitions
        }

    async def unregister_broker(self, broker: int, *, timeout_ms: int | None = None) -> None:
        """Removes the registration of a broker that will not return."""
        await self._calls.once(
            UnregisterBrokerRequest(broker_id=broker),
            UnregisterBrokerResponse,
            timeout_ms,
            f"broker {broker}",
        )
