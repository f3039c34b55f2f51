"""How a node without a cluster comes to one: it is told by others, or founds one with them.

Nobody formats a directory. A new node asks the controllers that it was told of for the id of their
cluster (DescribeCluster), and joins it. Where all of them are as new as it is, they found a cluster
together: each tells the others its id, directory and address (UpdateRaftVoter without a cluster's
id), and the one with the lowest id founds, once every other one has answered that it is empty, too.
The founder writes the voters into a first snapshot; all that the others have to learn is the id.

Two founders would need two lists of controllers that differ. Then neither can take a majority away
from the other: a vote is asked of voters of the same cluster, by their directories.

A node that has metadata asks the same question once before it takes part, so that a disk of another
cluster is found at the start. Nobody has to answer that: all of a cluster may start at once. And
nobody starts under the id of a controller that lives: that one is asked where it is registered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeGuard

from scriba.broker.channels import Address, NodeChannels
from scriba.broker.metadata.quorum.voters import Identity
from scriba.broker.metadata.quorum.wire import (
    Sender,
    WireError,
    decode_answer,
    encode_request,
    update_voter_request,
)
from scriba.broker.observe.events import Note
from scriba.config import StartError
from scriba.errors import ErrorCode, error_code
from scriba.events import EventKind
from scriba.peers.errors import ClientError, TimedOut
from scriba.raft.messages import NO_DIRECTORY, Position, Voter, VoteRequest
from scriba.runtime.ports import Clock
from scriba.settings.listeners import Voter as ConfiguredVoter
from scriba.wire.messages.metadata import DescribeClusterRequest, DescribeClusterResponse
from scriba.wire.schema import Message

ROUND_S: Final = 0.1
ANSWER_MS: Final = 1_000
CONFIRM_S: Final = 0.2
"""How long a node that has metadata waits for others at its start: those that live answer sooner,
and the address of those that do not refuses."""
QUIET_MS: Final = 4_000
"""Time before an operator is told whom this node waits for: with the round under way, whose silent
addresses take `ANSWER_MS`, the first word comes after about five seconds."""
CONTROLLERS: Final = 2
"""Endpoint type of DescribeCluster: the controllers, not the brokers (KIP-919)."""
MOST_MET: Final = 64
SILENT: Final = "no answer"
REFUSES: Final = "it refuses to tell"
PURPOSE: Final = "founding"


class Found(NamedTuple):
    cluster_id: str
    voters: tuple[Identity, ...] | None
    """Of a cluster that this node founds; None for one that it joins."""


class Founding:
    def __init__(
        self,
        channels: NodeChannels,
        identity: Identity,
        others: Sequence[Address],
        configured: Sequence[ConfiguredVoter],
        new_id: Callable[[], str],
        note: Note,
        *,
        clock: Clock,
        known: str | None,
        may_found: bool,
        patience_ms: int | None = None,
    ) -> None:
        """`known` is the id that this node's directories already have, None if they are new.

        `patience_ms` is how long a broker looks for a cluster (as it tries to register no longer
        either); None for a controller, without which the others may never found one.
        """
        self._channels = channels
        self._identity = identity
        self._others = tuple(others)
        self._configured = {(v.host, v.port): v.node_id for v in configured}
        self._new_id = new_id
        self._note = note
        self._clock = clock
        self._known = known
        self._may_found = may_found
        self._patience_ms = patience_ms
        self._met: dict[int, Identity] = {}
        self._for_clients: set[Address] = set()
        """Addresses of which somebody said that no controllers are asked there."""
        self._silence: dict[Address, str] = {}
        """Why no answer came, at the last attempt."""

    def meet(self, identity: Identity) -> None:
        """Another controller without a cluster names itself."""
        if len(self._met) < MOST_MET or identity.voter.id in self._met:
            self._met[identity.voter.id] = identity

    async def run(self) -> Found:
        """Asks until there is a cluster. StartError where there can be none."""
        began = self._clock.mono_ms()
        while True:
            answers = await asyncio.gather(*(self._ask(each) for each in self._others))
            self._refuse_foreign(answers)
            told = [a for a in answers if a is not None]
            for answer in told:
                if answer.cluster_id:
                    await self._refuse_living(answer)
                    return Found(answer.cluster_id, None)
            found = self._found(told)
            if found is not None:
                return found
            waited_ms = self._clock.mono_ms() - began
            if self._patience_ms is not None and waited_ms >= self._patience_ms:
                raise StartError(
                    f"no controller told of a cluster within {self._patience_ms} ms "
                    f"(initial.broker.registration.timeout.ms): {self._awaited(answers)}"
                )
            if waited_ms >= QUIET_MS:
                # Once a minute, in the log and among the events.
                self._note(EventKind.QUORUM_WAITS, "cluster", self._awaited(answers))
            await asyncio.sleep(ROUND_S)

    async def confirm(self) -> None:
        """Asks once whether the others are of the cluster whose metadata this node has; silence is
        no reason to wait. StartError where some are of another one, and none of this one."""
        asked = [asyncio.ensure_future(self._describe(each)) for each in self._others]
        try:
            done, late = await asyncio.wait(asked, timeout=CONFIRM_S)
            if late and any(self._is_foreign(each.result()) for each in done):
                await asyncio.wait(late)  # one wrong address among right ones ends nobody
            answers = [each.result() if each.done() else None for each in asked]
            own = [a for a in answers if a is not None and a.cluster_id == self._known]
            if not own:
                self._refuse_foreign(answers)
            for answer in own[:1]:
                await self._refuse_living(answer)
        finally:
            for each in asked:
                each.cancel()
            for number in range(len(self._others) + 1):
                self._channels.drop(-2 - number)

    def _found(self, told: Sequence[DescribeClusterResponse]) -> Found | None:
        own = self._identity.voter.id
        if not self._may_found or len(told) < len(self._others):
            return None
        ids = [answer.brokers[0].broker_id for answer in told if answer.brokers]
        if len(set(ids)) < len(self._others) or own > min(ids) or not set(ids) <= set(self._met):
            return None
        voters = sorted([self._identity, *(self._met[i] for i in ids)], key=lambda v: v.voter.id)
        return Found(self._known or self._new_id(), tuple(voters))

    async def _ask(self, address: Address) -> DescribeClusterResponse | None:
        """What a controller says of its cluster, and that it knows this one; None for no answer."""
        answer = await self._describe(address)
        if answer is None:
            return None
        self._check(address, answer)
        if not answer.cluster_id and self._may_found:
            sender = Sender("", self._identity.voter, self._identity.endpoints)
            told = update_voter_request(sender, 0)
            told.cluster_id = None
            try:
                met = await self._call(address, told)
            except ClientError as failure:
                self._silence[address] = _reason(failure)
                return None
            if error_code(met.error_code) is not ErrorCode.NONE:
                return None
        return answer

    async def _describe(self, address: Address) -> DescribeClusterResponse | None:
        try:
            answer = await self._call(address, DescribeClusterRequest(endpoint_type=CONTROLLERS))
        except ClientError as failure:
            self._silence[address] = _reason(failure)
            return None
        assert isinstance(answer, DescribeClusterResponse)
        if answer.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE:
            self._for_clients.add(address)
        else:
            self._for_clients.discard(address)
        return None if answer.error_code else answer

    async def _call(self, address: Address, request: Message) -> Any:
        """Bootstrap servers have negative numbers; so has the one that this node was told of."""
        known = self._others.index(address) if address in self._others else len(self._others)
        return await self._channels.call_at(
            -2 - known, address, request, purpose=PURPOSE, timeout_ms=ANSWER_MS
        )

    def _refuse_foreign(self, answers: Sequence[DescribeClusterResponse | None]) -> None:
        for (host, port), answer in zip(self._others, answers, strict=True):
            if self._is_foreign(answer):
                raise StartError(
                    f"the log directories belong to cluster {self._known}, the controller at "
                    f"{host}:{port} to {answer.cluster_id}: choose other log.dirs, or name the "
                    "right controllers"
                )

    def _is_foreign(
        self, answer: DescribeClusterResponse | None
    ) -> TypeGuard[DescribeClusterResponse]:
        """Whether it is of a cluster that is not the one of this node's directories."""
        return (
            answer is not None
            and bool(answer.cluster_id)
            and self._known not in (None, answer.cluster_id)
        )

    async def _refuse_living(self, answer: DescribeClusterResponse) -> None:
        """Two controllers with one id would take turns in telling the others who they are; a broker
        alone would follow nobody while the controller with its id is active."""
        own = self._identity
        here = {(host, port) for _, host, port in own.endpoints}
        for known in answer.brokers:
            address = (known.host, known.port)
            if known.broker_id != own.voter.id or address in here:
                continue
            if await self._lives(answer.cluster_id, address):
                raise StartError(
                    f"controller {own.voter.id} lives at {known.host}:{known.port} with another "
                    "directory: give this one another node.id, or stop that one first"
                )

    async def _lives(self, cluster_id: str, address: Address) -> bool:
        """Whether somebody answers there under this node's id.

        A pre-vote of epoch 0 is refused by every node that it is meant for, and changes nothing in
        it; whoever has another id says that it is not meant.
        """
        own = self._identity.voter
        sender = Sender(cluster_id, own, self._identity.endpoints)
        probe = VoteRequest(0, own, Position(0, 0), pre_vote=True)
        request = encode_request(sender, Voter(own.id, NO_DIRECTORY), probe, 0, {})
        try:
            decode_answer(probe, await self._call(address, request))
        except (ClientError, WireError):
            return False
        return True

    def _check(self, address: Address, answer: DescribeClusterResponse) -> None:
        """StartError where a controller that has no cluster yet is not the one it should be."""
        where = f"{address[0]}:{address[1]}"
        if answer.cluster_id or not answer.brokers:
            return
        peer = answer.brokers[0].broker_id
        if peer == self._identity.voter.id:
            raise StartError(
                f"the controller at {where} is node {peer}, too: give each its own node.id"
            )
        wanted = self._configured.get(address, peer)
        if peer != wanted:
            raise StartError(
                f"the controller at {where} is node {peer}, controller.quorum.voters has {wanted}: "
                "correct it there"
            )

    def _awaited(self, answers: Sequence[DescribeClusterResponse | None]) -> str:
        """For whom this node waits, why, and what to do."""
        silent = [a for a, answer in zip(self._others, answers, strict=True) if answer is None]
        wrong = [address for address in silent if address in self._for_clients]
        waiting = [address for address in silent if address not in self._for_clients]
        voters = bool(self._configured)
        key = "controller.quorum.voters" if voters else "controller.quorum.bootstrap.servers"
        if not silent:
            return (
                "waits for the controller with the lowest id, which founds it; look into its log "
                "for whom it waits"
            )
        if not wrong:
            each = ", ".join(f"{_listed([a])} ({self._silence.get(a, REFUSES)})" for a in waiting)
            return f"waits for an answer of {each}; check that the controllers run, and {key}"
        text = f"waits for an answer of {_listed(waiting) if waiting else 'a controller'}"
        return f"{text}; {_listed(wrong)} is no listener for controllers: correct {key}"


def _reason(failure: ClientError) -> str:
    """In a few words: the address is named beside them."""
    if isinstance(failure, TimedOut) or isinstance(failure.cause, TimeoutError):
        return SILENT
    if isinstance(failure.cause, OSError):
        return failure.cause.strerror or str(failure.cause)
    return str(failure)


def _listed(addresses: Sequence[Address]) -> str:
    return ", ".join(f"{host}:{port}" for host, port in addresses)
