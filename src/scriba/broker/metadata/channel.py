"""The way to the active controller, wherever it is.

In the process of the active controller a request is handed over as an object. Elsewhere it goes to
the leader that Raft knows, on the controllers' listener: what a broker asks in its own name
(registration, heartbeats, changes of in-sync replicas) as it is, what administrators ask in an
envelope that says who they are. Where there is no leader, or it has moved, or the connection
breaks, the request is tried again until its time is over. So it may be carried out twice, as in
Kafka: a topic that was made by an attempt whose answer was lost exists when the next one asks.

Requests that may wait for one another have connections of their own, named by their purpose: a
heartbeat never stands behind a change of configs. The controller also knows a broker by the
connection of its heartbeats (`metadata.deaths`).

A node that got its request on a controllers' listener passes nothing on: it says NOT_CONTROLLER,
and whoever asked finds the leader itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from scriba.broker.channels import Address, ChannelHost, NodeChannels
from scriba.broker.envelope import unwrap, wrap
from scriba.broker.request import ANONYMOUS
from scriba.errors import ErrorCode, KafkaError, error_code
from scriba.peers.errors import BrokerError, ClientError, Closed, NetworkError
from scriba.wire.messages import admin, configs
from scriba.wire.messages import brokers as own
from scriba.wire.messages.brokers import EnvelopeResponse
from scriba.wire.messages.quorum import RemoveRaftVoterRequest, RemoveRaftVoterResponse

if TYPE_CHECKING:
    from scriba.broker.request import Context
    from scriba.wire.schema import Message

RETRY_PAUSE_MS: Final = 20
"""Kafka's `controller.quorum.retry.backoff.ms`; a change of leadership ends the pause early."""

LEAST_PATIENCE_MS: Final = 1_000
"""A client that gives its request less still has it brought to the controller."""

HEARTBEAT: Final = "heartbeat"
FORWARDING: Final = "forwarding"
BROKER: Final = "broker"

PURPOSES: Final[dict[type[Message], str]] = {
    own.BrokerRegistrationRequest: HEARTBEAT,
    own.BrokerHeartbeatRequest: HEARTBEAT,
    own.ControllerRegistrationRequest: BROKER,
    own.AlterPartitionRequest: "partitions",
    own.AssignReplicasToDirsRequest: "directories",
    own.AllocateProducerIdsRequest: BROKER,
}
"""What a node asks in its own name, and the connection that carries it."""

VISIBLE: Final[frozenset[type[Message]]] = frozenset(
    {
        admin.CreateTopicsRequest,
        admin.DeleteTopicsRequest,
        admin.CreatePartitionsRequest,
        admin.ElectLeadersRequest,
        admin.AlterPartitionReassignmentsRequest,
        configs.AlterConfigsRequest,
        configs.IncrementalAlterConfigsRequest,
        configs.UpdateFeaturesRequest,
        own.UnregisterBrokerRequest,
    }
)
"""Answered when every broker that follows the metadata has applied what they changed."""

CREATING: Final = (admin.CreateTopicsRequest, admin.CreatePartitionsRequest)


class Leader(NamedTuple):
    """Who leads the metadata quorum, as this node knows it."""

    id: int
    epoch: int
    address: Address | None


class Quorum(Protocol):
    """The metadata quorum as a client of its leader sees it."""

    @property
    def leads(self) -> bool:
        """Whether the active controller is in this process."""

    async def call(self, request: Message, version: int | None, ctx: Context | None) -> Any:
        """Its response once that is committed; KafkaError NOT_CONTROLLER when it no longer is."""

    def leader(self) -> Leader | None: ...

    def voters(self) -> list[int]:
        """The controllers of which a majority elects one."""

    def changed(self) -> Awaitable[None]:
        """Ends when there is another leader, or none any more."""

    async def applied(self) -> None:
        """Returns when all that is known to be committed is in this node's image."""

    async def visible(self, deadline: int) -> None:
        """On the leader: returns when all live brokers have applied what is committed now, at
        the latest at `deadline`."""


class ControllerChannelHost(ChannelHost, Protocol):
    @property
    def quorum(self) -> Quorum: ...

    def is_controller_listener(self, name: str) -> bool: ...

    async def metadata_settled(self, created: bool) -> None:
        """Returns when this broker has carried out the metadata it has seen; with `created`, files
        of new partitions are waited for as well, but not for long."""


class ControllerChannel:
    def __init__(self, node: ControllerChannelHost) -> None:
        self._node = node
        self._channels = NodeChannels(node)
        self._patient = NodeChannels(node)
        """For requests that may as well wait until another leader is known: what is asked again
        may be told that it has been done."""
        self._asked: Leader | None = None
        """Whom the connections lead to."""

    async def call(
        self,
        request: Message,
        version: int | None = None,
        ctx: Context | None = None,
        *,
        timeout_ms: int | None = None,
        leaderless_ms: int | None = None,
    ) -> Any:
        """The controller's response, once that is committed; KafkaError where it refuses the whole
        request, REQUEST_TIMED_OUT when no controller has answered in time.

        Where none takes it, it is tried again until `leaderless_ms` have passed, else to the end
        of its time. What an administrator's request has changed is in effect on all live brokers
        when it is answered.
        """
        node = self._node
        limit = self._patience(request) if timeout_ms is None else timeout_ms
        began = node.world.clock.mono_ms()
        # Bringing it to the controller may take longer than its client gave it; being seen not.
        visible_until = began + min(limit, max(getattr(request, "timeout_ms", limit), 0))
        passed_on = ctx is None or not node.is_controller_listener(ctx.listener)
        last: Exception | None = None
        try:
            async with asyncio.timeout(limit / 1000):
                while True:
                    before = node.quorum.leader()
                    try:
                        response = await self._attempt(
                            request, version, ctx, visible_until, passed_on, leaderless_ms is None
                        )
                        break
                    except (NetworkError, TimeoutError) as failure:
                        last = failure
                    except KafkaError as refused:
                        if last is not None and _is_done(request, refused.code):
                            return RemoveRaftVoterResponse(error_message=None)
                        if refused.code is not ErrorCode.NOT_CONTROLLER or not passed_on:
                            raise
                        last = refused
                    waited = node.world.clock.mono_ms() - began
                    if leaderless_ms is not None and waited >= leaderless_ms:
                        limit = leaderless_ms
                        raise TimeoutError
                    await self._pause(before)
        except TimeoutError:
            text = f"no controller has answered within {limit} ms{f': {last}' if last else ''}"
            if ctx is not None and last is not None:
                text = self._leaderless(limit, last)
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text) from last
        if type(request) in VISIBLE:
            await node.metadata_settled(isinstance(request, CREATING))
        if last is not None and _is_done(request, getattr(response, "error_code", 0)):
            return RemoveRaftVoterResponse(error_message=None)
        return response

    def _leaderless(self, waited_ms: int, last: Exception) -> str:
        """What a client is told: it can reach this broker, and knows nothing of controllers."""
        named = ", ".join(map(str, self._node.quorum.voters()))
        why = last.message if isinstance(last, KafkaError) else next(iter(last.args), "no answer")
        return (
            f"no active controller has answered within {waited_ms} ms ({why}); start "
            f"controllers until a majority of {named} runs and can be reached"
        )

    def close(self) -> None:
        self._channels.close()
        self._patient.close()

    def on_leader(self) -> None:
        """The leader has changed: nobody waits any longer for the one before.

        Where none is known now it may be this node alone that has not heard of it for a while: who
        has the time waits for its answer until there is another one.
        """
        asked, now = self._asked, self._node.quorum.leader()
        if asked is None or (now is not None and (now.id, now.epoch) == (asked.id, asked.epoch)):
            return
        self._channels.drop(asked.id)
        if now is not None:
            self._asked = None
            self._patient.drop(asked.id)

    def _patience(self, request: Message) -> int:
        given: int | None = getattr(request, "timeout_ms", None)
        longest = self._node.settings.request_timeout_ms
        return longest if given is None else max(LEAST_PATIENCE_MS, min(given, longest))

    async def _attempt(
        self,
        request: Message,
        version: int | None,
        ctx: Context | None,
        visible_until: int,
        passed_on: bool,
        patient: bool,
    ) -> Any:
        quorum = self._node.quorum
        if quorum.leads:
            response = await quorum.call(request, version, ctx)
            if type(request) in VISIBLE:
                await quorum.visible(visible_until)
        elif passed_on:
            response = await self._ask_leader(request, version, ctx, patient)
            if type(request) in VISIBLE:
                await quorum.applied()
        else:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        if type(request) in PURPOSES and response.error_code:
            raise KafkaError(error_code(response.error_code))
        return response

    async def _ask_leader(
        self, request: Message, version: int | None, ctx: Context | None, patient: bool
    ) -> Any:
        leader = self._node.quorum.leader()
        if leader is None or leader.address is None or leader.id == self._node.id:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "there is no active controller now")
        self._asked = leader
        patience = self._node.settings.controller_socket_timeout_ms
        purpose = PURPOSES.get(type(request))
        try:
            if purpose is not None:
                return await self._channels.call_at(
                    leader.id,
                    leader.address,
                    request,
                    version,
                    purpose=purpose,
                    timeout_ms=patience,
                )
            version = request.VERSIONS.high if version is None else version
            who = (ANONYMOUS, "", None) if ctx is None else (ctx.principal, ctx.host, ctx.client_id)
            channels = self._patient if patient else self._channels
            envelope: EnvelopeResponse = await channels.call_at(
                leader.id,
                leader.address,
                wrap(request, version, *who),
                purpose=FORWARDING,
                timeout_ms=patience,
            )
        except BrokerError as error:
            raise KafkaError(error.code, str(error)) from error
        except Closed as stopping:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "this node is stopping") from stopping
        except ClientError as failure:
            raise NetworkError(str(failure)) from failure
        return unwrap(request, version, envelope)

    async def _pause(self, before: Leader | None) -> None:
        """Before the next attempt: a moment, unless there is news of the leader."""
        quorum = self._node.quorum
        if quorum.leader() != before:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_PAUSE_MS / 1000):
                await quorum.changed()


def _is_done(request: Message, code: int) -> bool:
    """Whether an attempt finds that the one before, whose answer was lost, was carried out: a
    leader that is asked to remove itself is gone when it has."""
    return isinstance(request, RemoveRaftVoterRequest) and code == ErrorCode.VOTER_NOT_FOUND
