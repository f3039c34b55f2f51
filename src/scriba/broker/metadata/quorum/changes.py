"""Changes of the voters, as the leader of the quorum carries them out (KIP-853).

Whether a change may be made is for `raft.changes` to say; this waits until it may, within the time
of the request, and then writes the voters down without an await in between. Kafka's controllers
refuse at once where this waits: for the change before, for the first commit of an epoch, for a
replica that still fetches the log. Whoever asks gets the same answers, only fewer of them.

With kraft.version 0 the voters stand in the settings, without their directories. They tell these
to the leader (UpdateRaftVoter), which keeps them until somebody raises the level: then they are
written into the log, and from there on the voters can be changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from scriba.broker.metadata.quorum.quorum import MetadataQuorum
from scriba.broker.metadata.quorum.snapshots import QuorumFacts
from scriba.broker.metadata.quorum.voters import (
    KRAFT_LEVEL,
    Identity,
    and_voter,
    voters_record,
    with_voter,
    without_voter,
)
from scriba.broker.metadata.quorum.wire import WireError
from scriba.broker.observe.events import Note
from scriba.controller.image import KRAFT_VERSION
from scriba.errors import ErrorCode, KafkaError
from scriba.events import EventKind
from scriba.peers.errors import ClientError
from scriba.raft import changes
from scriba.raft.messages import Voter
from scriba.raft.roles import Role
from scriba.runtime.ports import Clock
from scriba.settings import NodeSettings
from scriba.wire.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)
from scriba.wire.messages.stored import VotersRecord

LOOK_MS: Final = 100
"""Between two looks at what a change waits for; a fetch brings the next one forward."""


class Told(NamedTuple):
    """What a voter of the settings said of itself."""

    identity: Identity
    levels: tuple[int, int]


class VoterChanges:
    """Of one node; only while it leads can it change anything."""

    def __init__(
        self,
        quorum: MetadataQuorum,
        cluster_id: str,
        settings: NodeSettings,
        clock: Clock,
        note: Note,
    ) -> None:
        self._quorum = quorum
        self._cluster_id = cluster_id
        self._settings = settings
        self._clock = clock
        self._note = note
        self._told: dict[int, Told] = {}
        self._told_in = -1
        """The epoch in which they said so: a leader that is new hears it anew."""

    # ---- requests ----

    async def add(self, request: AddRaftVoterRequest) -> AddRaftVoterResponse:
        """KafkaError where the voter cannot be added; NOT_CONTROLLER from who does not lead."""
        self._check_cluster(request.cluster_id)
        epoch = self._check_leads()
        voter = Voter(request.voter_id, request.voter_directory_id)
        endpoints = tuple((end.name, end.host, end.port) for end in request.listeners)
        new = Identity(voter, endpoints)
        deadline = self._deadline(request.timeout_ms)
        self._check_level("add a voter")
        changes.check_add(self._quorum.raft, voter)
        self._check_endpoints(new)
        await self._wait_until(lambda: self._why_not_add(voter), epoch, deadline, voter)
        levels = await self._levels(new, deadline)
        await self._wait_until(lambda: self._why_not_add(voter), epoch, deadline, voter)
        record = self._check_level("add a voter")
        changes.check_add(self._quorum.raft, voter)
        facts = QuorumFacts(KRAFT_LEVEL, and_voter(record, new, levels))
        await self._write(facts, epoch, deadline if request.ack_when_committed else None)
        return AddRaftVoterResponse(error_message=None)

    async def remove(self, request: RemoveRaftVoterRequest) -> RemoveRaftVoterResponse:
        """KafkaError as above. A leader that is removed answers before it leaves."""
        self._check_cluster(request.cluster_id)
        epoch = self._check_leads()
        voter = Voter(request.voter_id, request.voter_directory_id)
        deadline = self._deadline(self._settings.request_timeout_ms)
        self._check_level("remove a voter")
        changes.check_remove(self._quorum.raft, voter)
        await self._wait_until(lambda: changes.not_yet(self._quorum.raft), epoch, deadline)
        record = self._check_level("remove a voter")
        changes.check_remove(self._quorum.raft, voter)
        facts = QuorumFacts(KRAFT_LEVEL, without_voter(record, voter))
        await self._write(facts, epoch, deadline)
        return RemoveRaftVoterResponse(error_message=None)

    async def update(self, changed: Identity, levels: tuple[int, int]) -> None:
        """A voter says where it is, and which levels it supports. KafkaError for no voter."""
        if self._quorum.raft.role is not Role.LEADER:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        epoch = self._quorum.epoch
        if self._quorum.facts.voters is None:
            self._keep(changed, levels)
            return
        raft = self._quorum.raft
        if changed.voter not in raft.voters.values():
            raise KafkaError(ErrorCode.VOTER_NOT_FOUND)
        if self._known_addresses(changed):
            return
        deadline = self._deadline(self._settings.controller_quorum_request_timeout_ms)
        await self._wait_until(lambda: changes.not_yet(raft), epoch, deadline)
        record = self._check_level("update a voter")
        if changed.voter not in raft.voters.values():
            raise KafkaError(ErrorCode.VOTER_NOT_FOUND)
        facts = QuorumFacts(KRAFT_LEVEL, with_voter(record, changed))
        await self._write(facts, epoch, deadline)

    # ---- kraft.version ----

    def check_upgrade(self) -> None:
        """KafkaError unless every voter has said what would be written of it."""
        raft = self._quorum.raft
        self._keep(self._quorum.identity, (0, KRAFT_LEVEL))
        if changes.not_yet(raft) is not None:
            self._refuse_level(f"{changes.not_yet(raft)}; try again")
        unknown = sorted(set(raft.voters) - set(self._told))
        if unknown:
            names = ", ".join(str(each) for each in unknown)
            self._refuse_level(
                f"the leader has not heard the directory of controller {names}; start it, and see "
                "that it runs a release that has this level"
            )
        for voter_id in sorted(raft.voters):
            identity, (low, high) = self._told[voter_id]
            if not low <= KRAFT_LEVEL <= high:
                self._refuse_level(f"controller {voter_id} supports {low} to {high}")
            if not identity.endpoints:
                self._refuse_level(
                    f"controller {voter_id} has no listener that others could reach; add one that "
                    "controller.listener.names names"
                )

    async def upgrade(self) -> None:
        """Writes the voters of the settings into the log; from then on they count from there."""
        epoch = self._check_leads()
        if self._quorum.facts.voters is not None:
            return
        self.check_upgrade()
        voters = [self._told[voter_id].identity for voter_id in sorted(self._quorum.raft.voters)]
        facts = QuorumFacts(KRAFT_LEVEL, voters_record(voters))
        await self._write(facts, epoch, self._deadline(self._settings.request_timeout_ms))

    def _keep(self, told: Identity, levels: tuple[int, int]) -> None:
        raft = self._quorum.raft
        voter = raft.voters.get(told.voter.id)
        if voter is None or not voter.is_replica(told.voter):
            raise KafkaError(ErrorCode.VOTER_NOT_FOUND)
        if self._told_in != raft.epoch:
            self._told, self._told_in = {}, raft.epoch
        self._told[told.voter.id] = Told(told, levels)

    def _refuse_level(self, why: str) -> None:
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{KRAFT_VERSION} cannot go to level {KRAFT_LEVEL}: {why}",
        )

    # ---- what is checked ----

    def _check_cluster(self, cluster_id: str | None) -> None:
        if cluster_id is not None and cluster_id != self._cluster_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_CLUSTER_ID, f"this is a controller of {self._cluster_id}"
            )

    def _check_leads(self) -> int:
        """The epoch that this node leads."""
        raft = self._quorum.raft
        if raft.role is not Role.LEADER:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        return raft.epoch

    def _check_level(self, to: str) -> VotersRecord:
        """The voters as the log has them."""
        record = self._quorum.facts.voters
        if record is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the cluster is at {KRAFT_VERSION} 0, where voters stand in "
                f"controller.quorum.voters; raise it to {KRAFT_LEVEL} to {to}",
            )
        return record

    def _check_endpoints(self, new: Identity) -> None:
        names = self._settings.controller_names
        known = [name for name, host, port in new.endpoints if host and port]
        wanted = names[0] if names else ""
        if wanted not in known or len(set(known)) < len(new.endpoints):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"controller {new.voter.id} needs an address on the listener {wanted}, and one for "
                "each of its listeners",
            )

    def _known_addresses(self, told: Identity) -> bool:
        record = self._quorum.facts.voters
        return record is not None and with_voter(record, told) == record

    def _why_not_add(self, voter: Voter) -> str | None:
        raft = self._quorum.raft
        return changes.not_yet(raft) or changes.lag(raft, voter, self._clock.now())

    async def _levels(self, new: Identity, deadline: int) -> tuple[int, int]:
        """Which levels of kraft.version a new voter supports: it is asked at its address."""
        address = next(
            (host, port)
            for name, host, port in new.endpoints
            if name == self._settings.controller_names[0]
        )
        transport = self._quorum.transport
        assert transport is not None
        where = f"controller {new.voter.id} at {address[0]}:{address[1]}"
        left = max(deadline - self._clock.mono_ms(), 1)
        patience = min(left, self._settings.controller_quorum_request_timeout_ms)
        try:
            levels = await transport.kraft_levels(new.voter.id, address, patience)
        except (ClientError, WireError) as error:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"{where} does not answer: {error}"
            ) from error
        if levels is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{where} takes no votes; name the address of its listener "
                f"{self._settings.controller_names[0]}, which a broker alone does not have",
            )
        low, high = levels
        if not low <= KRAFT_LEVEL <= high:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{where} supports {KRAFT_VERSION} {low} to {high}, the cluster is at "
                f"{KRAFT_LEVEL}",
            )
        return low, high

    # ---- waiting ----

    def _deadline(self, timeout_ms: int) -> int:
        """A little before whoever asked gives up, so that it hears the reason."""
        settings = self._settings
        limit = min(settings.request_timeout_ms, settings.controller_socket_timeout_ms)
        return self._clock.mono_ms() + min(max(timeout_ms, 0), limit) * 9 // 10

    async def _wait_until(
        self,
        why_not: Callable[[], str | None],
        epoch: int,
        deadline: int,
        voter: Voter | None = None,
    ) -> None:
        """Returns when nothing stands against a change any more; REQUEST_TIMED_OUT says what does.

        A replica that nobody knows is not waited for as long as one that is on its way.
        """
        quorum = self._quorum
        raft = quorum.raft
        soon = self._clock.mono_ms() + raft.patience_ms
        while True:
            if raft.role is not Role.LEADER or raft.epoch != epoch:
                raise KafkaError(ErrorCode.NOT_CONTROLLER)
            reason = why_not()
            if reason is None:
                return
            now = self._clock.mono_ms()
            hopeless = voter is not None and now >= soon and not changes.is_known(raft, voter)
            if now >= deadline or hopeless:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, reason)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK_MS, max(deadline - now, 1)) / 1000):
                    await quorum.fetched.wait()

    async def _write(self, facts: QuorumFacts, epoch: int, deadline: int | None) -> None:
        """Writes the voters, and waits for their commit until the deadline, if there is one."""
        quorum = self._quorum
        end = quorum.write_facts(facts)
        assert facts.voters is not None
        names = ", ".join(str(voter.voter_id) for voter in facts.voters.voters)
        self._note(EventKind.QUORUM_VOTERS, f"epoch {epoch}", f"the voters are now {names}")
        if deadline is None:
            return
        while quorum.high_watermark.value < end:
            now = self._clock.mono_ms()
            if quorum.raft.role is not Role.LEADER or quorum.raft.epoch != epoch:
                break
            if now >= deadline:
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"the change is written at offset {end - 1}, and no majority of the new voters "
                    "has it yet; it is carried out when they have",
                )
            reached = quorum.high_watermark.reach(end)
            await asyncio.wait([reached], timeout=min(LOOK_MS, max(deadline - now, 1)) / 1000)
        # A leader that was removed leads no longer, and knows all the same that it is so.
        if quorum.high_watermark.value < end or quorum.history.at(end) != facts:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
