"""How a node without a cluster comes to one: it is told by others, or founds one with them.

Nobody formats a directory. A new node asks the controllers that it was told of for the id of their
cluster (DescribeCluster), and joins it. Where all of them are as new as it is, they found a cluster
together: each tells the others its id, directory and address (UpdateRaftVoter without a cluster's
id), and the one with the lowest id founds, once every other one has answered that it is empty, too.
The founder writes the voters into a first snapshot; all that the others have to learn is the id.

Two founders would need two lists of controllers that differ. Then neither can take a majority away
from the other: a vote is asked of voters of the same cluster, by their directories.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from scriba.broker.channels import Address, NodeChannels
from scriba.broker.metadata.quorum.voters import Identity
from scriba.broker.metadata.quorum.wire import Sender, update_voter_request
from scriba.broker.observe.events import Note
from scriba.config import StartError
from scriba.errors import ErrorCode, error_code
from scriba.events import EventKind
from scriba.peers.errors import ClientError
from scriba.settings.listeners import Voter as ConfiguredVoter
from scriba.wire.messages.metadata import DescribeClusterRequest, DescribeClusterResponse

ROUND_S: Final = 0.1
ANSWER_MS: Final = 1_000
QUIET_ROUNDS: Final = 20
"""Rounds before an operator is told whom this node waits for."""
CONTROLLERS: Final = 2
"""Endpoint type of DescribeCluster: the controllers, not the brokers (KIP-919)."""
MOST_MET: Final = 64
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
        known: str | None,
        may_found: bool,
    ) -> None:
        """`known` is the id that this node's directories already have, None if they are new."""
        self._channels = channels
        self._identity = identity
        self._others = tuple(others)
        self._configured = {(v.host, v.port): v.node_id for v in configured}
        self._new_id = new_id
        self._note = note
        self._known = known
        self._may_found = may_found
        self._met: dict[int, Identity] = {}

    def meet(self, identity: Identity) -> None:
        """Another controller without a cluster names itself."""
        if len(self._met) < MOST_MET or identity.voter.id in self._met:
            self._met[identity.voter.id] = identity

    async def run(self) -> Found:
        """Asks until there is a cluster. StartError where there can be none."""
        rounds = 0
        while True:
            answers = await asyncio.gather(*(self._ask(each) for each in self._others))
            told = [a for a in answers if a is not None]
            for answer in told:
                if answer.cluster_id:
                    return Found(answer.cluster_id, None)
            found = self._found(told)
            if found is not None:
                return found
            rounds += 1
            if rounds >= QUIET_ROUNDS:
                self._tell(answers)
            await asyncio.sleep(ROUND_S)

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
        """What a controller says of its cluster; None for no answer."""
        number = -2 - self._others.index(address)
        request = DescribeClusterRequest(endpoint_type=CONTROLLERS)
        try:
            answer = await self._channels.call_at(
                number, address, request, purpose=PURPOSE, timeout_ms=ANSWER_MS
            )
            if answer.error_code:
                return None
            self._check(address, answer)
            if not answer.cluster_id and self._may_found:
                sender = Sender("", self._identity.voter, self._identity.endpoints)
                told = update_voter_request(sender, 0)
                told.cluster_id = None
                met = await self._channels.call_at(
                    number, address, told, purpose=PURPOSE, timeout_ms=ANSWER_MS
                )
                if error_code(met.error_code) is not ErrorCode.NONE:
                    return None
        except ClientError:
            return None
        assert isinstance(answer, DescribeClusterResponse)
        return answer

    def _check(self, address: Address, answer: DescribeClusterResponse) -> None:
        where = f"{address[0]}:{address[1]}"
        if answer.cluster_id and self._known not in (None, answer.cluster_id):
            raise StartError(
                f"the log directories belong to cluster {self._known}, the controller at {where} "
                f"to {answer.cluster_id}: choose other log.dirs, or name the right controllers"
            )
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

    def _tell(self, answers: Sequence[DescribeClusterResponse | None]) -> None:
        silent = [
            f"{host}:{port}"
            for (host, port), answer in zip(self._others, answers, strict=True)
            if answer is None
        ]
        text = "for the controller with the lowest id, which founds it"
        if silent:
            text = f"for an answer of {', '.join(silent)}"
        self._note(EventKind.QUORUM_WAITS, "cluster", f"waits {text}")
