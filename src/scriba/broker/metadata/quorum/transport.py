"""How the quorum's messages travel: by connections to the other controllers' listeners.

A fetch may wait at the leader, so it has a connection of its own; all else shares another. What
becomes of a request goes back to whoever sent it: an answer, or the news that there will be none,
and whether the address refused, which proves that nobody lives there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from scriba import __version__
from scriba.broker.channels import Address, NodeChannels
from scriba.broker.metadata.quorum.wire import (
    Nonsense,
    Sender,
    WireError,
    decode_answer,
    encode_request,
    quorum_request,
    silence_of,
    snapshot_request,
    snapshot_slice,
    update_voter_request,
)
from scriba.controller.image import KRAFT_VERSION
from scriba.errors import ErrorCode
from scriba.peers.errors import ClientError, NetworkError
from scriba.raft.messages import (
    NO_DIRECTORY,
    EndEpoch,
    FetchRequest,
    Position,
    Reply,
    Request,
    Voter,
)
from scriba.runtime.loop.tasks import Tasks
from scriba.runtime.watermark import Watermark
from scriba.wire.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from scriba.wire.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UpdateRaftVoterResponse,
    VoteRequest,
)
from scriba.wire.schema import Message

FETCHES: Final = "metadata fetch"
REQUESTS: Final = "metadata quorum"
CHANGES: Final = "change of voters"
CHANGE_MS: Final = 10_000
"""How long a controller that would be a voter waits for the leader to make it one."""
MISTAKEN: Final = (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_VOTER_KEY)
VOTERS_PAUSE_S: Final = 0.01
OBSERVERS_PAUSE_S: Final = 0.5
"""How long a fetch may be held back until what is committed is applied here: a voter's fetch also
says that it has what others wait for."""
MAX_UNDER_WAY: Final = 64
"""Requests of the machine that may wait for answers; it asks again what is dropped."""


class QuorumClient(Protocol):
    """The one who sends, as the transport sees it."""

    def receive(self, sender: int, reply: Reply) -> None: ...

    def send_failed(self, peer: int, request: Request, why: str, *, refused: bool) -> None: ...

    def mistaken(self, peer: int, why: str) -> None:
        """A peer is not who this node takes it for."""

    def not_believed(self, peer: int, why: str) -> None:
        """A peer sent what cannot be true."""


class QuorumTransport(Protocol):
    """What a quorum needs to reach the others; the simulator may bring another one."""

    def address(self, peer: int) -> Address | None: ...

    def learn(self, addresses: Mapping[int, Address]) -> None: ...

    async def told(self) -> None: ...

    async def update_voter(self, leader: int, epoch: int) -> UpdateRaftVoterResponse: ...

    async def ask_for_voter(
        self, leader: int, request: AddRaftVoterRequest | RemoveRaftVoterRequest
    ) -> AddRaftVoterResponse | RemoveRaftVoterResponse:
        """What the leader says to a change of voters."""

    async def silence(self, leader: int, voter: Voter) -> int | None:
        """For how many milliseconds a voter has not fetched from the leader, as that knows; None
        where it never has."""

    async def kraft_levels(
        self, peer: int, address: Address, patience_ms: int
    ) -> tuple[int, int] | None:
        """The levels of kraft.version that a node supports, None where it takes no votes: a broker
        that is nothing else, or its other listener. ClientError when it cannot be asked."""

    def send(self, peer: int, request: Request, voters: Mapping[int, Voter]) -> None: ...

    async def snapshot_slice(
        self, leader: int, epoch: int, snapshot: Position, position: int
    ) -> tuple[int, memoryview]:
        """The size of the leader's snapshot, and what follows `position` in it.

        ClientError or WireError when it cannot be had.
        """


class WireTransport:
    def __init__(
        self,
        channels: NodeChannels,
        sender: Sender,
        tasks: Tasks,
        addresses_of: Callable[[int], Sequence[Address]],
        timeout_ms: int,
        max_bytes: int,
        max_snapshot_bytes: int,
        applied: Watermark,
    ) -> None:
        """`addresses_of` knows where voters may be; bootstrap servers have negative ids. `applied`
        is how far this node has carried out what is committed."""
        self.client: QuorumClient
        self._channels = channels
        self._sender = sender
        self._tasks = tasks
        self._addresses_of = addresses_of
        self._timeout_ms = timeout_ms
        self._max_bytes = max_bytes
        self._max_snapshot_bytes = max_snapshot_bytes
        self._applied = applied
        self._learnt: dict[int, Address] = {}
        self._turn: dict[int, int] = {}
        self._under_way = 0
        self._farewells: list[asyncio.Task[None]] = []

    def address(self, peer: int) -> Address | None:
        """Where a node is: as the leader or the node itself said last, else as the log or the
        settings have it, which are tried in turn."""
        if peer in self._learnt:
            return self._learnt[peer]
        known = self._addresses_of(peer)
        return known[self._turn.get(peer, 0) % len(known)] if known else None

    def _known(self, peer: int) -> Address:
        address = self.address(peer)
        if address is None:
            raise NetworkError(f"nobody knows the address of controller {peer}")
        return address

    def learn(self, addresses: Mapping[int, Address]) -> None:
        if len(self._learnt) + len(addresses) > MAX_UNDER_WAY:
            self._learnt.clear()
        self._learnt.update(addresses)

    def send(self, peer: int, request: Request, voters: Mapping[int, Voter]) -> None:
        if self._under_way >= MAX_UNDER_WAY:
            return
        self._under_way += 1
        task = self._tasks.spawn(
            self._ask(peer, request, dict(voters)), name=f"quorum request to {peer}"
        )
        if isinstance(request, EndEpoch):
            self._farewells.append(task)

    async def told(self) -> None:
        """Returns when the others have heard that this node leads no longer, or cannot hear it."""
        if self._farewells:
            await asyncio.wait(self._farewells, timeout=self._timeout_ms / 1000)

    async def snapshot_slice(
        self, leader: int, epoch: int, snapshot: Position, position: int
    ) -> tuple[int, memoryview]:
        request = snapshot_request(
            self._sender, epoch, snapshot, position, self._max_snapshot_bytes
        )
        response = await self._channels.call_at(
            leader, self._known(leader), request, purpose=FETCHES, timeout_ms=self._timeout_ms
        )
        return snapshot_slice(response, position)

    async def update_voter(self, leader: int, epoch: int) -> UpdateRaftVoterResponse:
        """Tells the leader where this voter is now."""
        request = update_voter_request(self._sender, epoch)
        response = await self._channels.call_at(
            leader, self._known(leader), request, purpose=REQUESTS, timeout_ms=self._timeout_ms
        )
        assert isinstance(response, UpdateRaftVoterResponse)
        return response

    async def ask_for_voter(
        self, leader: int, request: AddRaftVoterRequest | RemoveRaftVoterRequest
    ) -> AddRaftVoterResponse | RemoveRaftVoterResponse:
        # It may wait for long, and votes must not wait behind it.
        response = await self._channels.call_at(
            leader, self._known(leader), request, purpose=CHANGES, timeout_ms=CHANGE_MS
        )
        assert isinstance(response, AddRaftVoterResponse | RemoveRaftVoterResponse)
        return response

    async def silence(self, leader: int, voter: Voter) -> int | None:
        response = await self._channels.call_at(
            leader, self._known(leader), quorum_request(), purpose=CHANGES, timeout_ms=CHANGE_MS
        )
        return silence_of(response, voter)

    async def kraft_levels(
        self, peer: int, address: Address, patience_ms: int
    ) -> tuple[int, int] | None:
        software = {"client_software_name": "scriba", "client_software_version": __version__}
        answer = await self._channels.call_at(
            peer, address, ApiVersionsRequest(**software), purpose=CHANGES, timeout_ms=patience_ms
        )
        assert isinstance(answer, ApiVersionsResponse)
        if all(api.api_key != VoteRequest.KEY for api in answer.api_keys):
            return None
        for feature in answer.supported_features:
            if feature.name == KRAFT_VERSION:
                return feature.min_version, feature.max_version
        return 0, 0

    async def _ask(self, peer: int, request: Request, voters: Mapping[int, Voter]) -> None:
        meant = voters.get(peer, Voter(peer, NO_DIRECTORY))
        try:
            told = request
            if isinstance(request, FetchRequest):
                told = await self._when_applied(request, self._sender.own.id in voters)
            message = encode_request(self._sender, meant, told, self._max_bytes, voters)
            reply, sender = await self._answer(peer, request, message)
        except (ClientError, WireError) as error:
            refused = isinstance(error.__cause__, ConnectionRefusedError)
            if isinstance(error, NetworkError):
                self._missed(peer)
            if isinstance(error, WireError) and error.code in MISTAKEN:
                self.client.mistaken(peer, str(error))
            elif isinstance(error, Nonsense):
                self.client.not_believed(peer, str(error))
            self.client.send_failed(peer, request, str(error), refused=refused)
        else:
            self.client.receive(sender, reply)
        finally:
            self._under_way -= 1

    async def _when_applied(self, request: FetchRequest, votes: bool) -> FetchRequest:
        """Has the leader learn from a fetch what is in effect here, not only what is known: then
        it may tell an administrator that a change is in force. Who cannot apply any more is not
        waited for."""
        reached = self._applied.reach(request.high_watermark)
        if not reached.done():
            await asyncio.wait([reached], timeout=VOTERS_PAUSE_S if votes else OBSERVERS_PAUSE_S)
        if reached.done() and reached.exception() is not None:
            return request
        applied = min(request.high_watermark, self._applied.value)
        return request._replace(high_watermark=applied)

    def _missed(self, peer: int) -> None:
        """It may have moved: the next address that is known for it may be the right one."""
        if self._learnt.pop(peer, None) is None and len(self._addresses_of(peer)) > 1:
            self._turn[peer] = self._turn.get(peer, 0) + 1

    async def _answer(self, peer: int, request: Request, message: Message) -> tuple[Reply, int]:
        address = self._known(peer)
        response = await self._channels.call_at(
            peer,
            address,
            message,
            purpose=FETCHES if isinstance(request, FetchRequest) else REQUESTS,
            timeout_ms=self._timeout_ms,
        )
        answer = decode_answer(request, response)
        self.learn(answer.addresses)
        sender = peer if answer.leader is None else answer.leader
        if peer < 0 and answer.leader is not None:
            self.learn({answer.leader: address})
        return answer.reply, sender
