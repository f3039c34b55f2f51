"""A broker as the controller knows it: it registers, sends heartbeats, and leaves in good order.

All of it are requests to the active controller, in the same process or another. A registration
gives the broker its epoch, which every later request bears; with the first heartbeats it asks to be
unfenced, and with the last ones to hand its leaderships over.

The controller may be away, or move; none of that ends a broker. It serves on with the metadata
that it has, and its next heartbeat finds the controller that there is then. One that does not know
the broker any more, or knows another incarnation, is asked for a registration again.

One thing has a limit: a log directory that has failed, and of which no controller hears. Its
partitions keep their leader until one does, so after `log.dir.failure.timeout.ms` the broker ends,
and is fenced for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from scriba.broker.ports import (
    CLIENTS_WAIT_MS,
    BackgroundTasks,
    Configuration,
    ControllerAccess,
    EventLog,
    MetadataView,
    Timekeeping,
)
from scriba.config import StartError, StorageLost
from scriba.controller import features, levels
from scriba.errors import ErrorCode, KafkaError
from scriba.events import EventKind
from scriba.wire.messages.brokers import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationRequestFeature,
    BrokerRegistrationRequestListener,
    BrokerRegistrationResponse,
    ControllerRegistrationRequest,
    ControllerRegistrationRequestFeature,
    ControllerRegistrationRequestListener,
)

SHUTDOWN_PAUSE_S: Final = 0.01
"""Between two questions whether the leaderships have gone."""
UNFENCING_PAUSE_S: Final = 0.02
RETRY_PAUSE_S: Final = 0.1
LOOKS: Final = 50
"""How often a broker that was refused looks into the metadata for the reason."""
ANSWER_MS: Final = 3_000
"""How long a broker that leaves waits for any controller to answer."""
LAST_ANSWER_MS: Final = 250
"""The same where no other broker is left that could lead in its place: most likely all of them
stop, and a majority of the controllers is gone."""
OTHERS_BEGIN_MS: Final = 300
OTHERS_LEAVE_MS: Final = 3_000
STILL_MS: Final = 1_000
"""How long a controller that stops looks out for brokers that do so, too, and stays for them; and
how long nothing may happen meanwhile: an active controller writes twice a second."""
TOLD: Final = -1
PROTOCOL_NUMBERS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}

FINAL: Final[dict[ErrorCode, str]] = {
    ErrorCode.INCONSISTENT_CLUSTER_ID: "its log directories belong to another cluster; give it "
    "other log.dirs, or the controllers of its own cluster",
    ErrorCode.INVALID_REGISTRATION: "two brokers share a log directory, or a directory has no id "
    "of its own; do not copy meta.properties",
    ErrorCode.UNSUPPORTED_VERSION: "it does not support a feature that the cluster runs; start a "
    "release that supports it",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "it is not allowed to act as a broker; grant it "
    "CLUSTER_ACTION",
}
"""Refusals of a registration that no second attempt changes."""

UNKNOWN_HERE: Final = (ErrorCode.BROKER_ID_NOT_REGISTERED, ErrorCode.STALE_BROKER_EPOCH)


class BoundListener(Protocol):
    """A listener that is open, with the port it really has."""

    @property
    def name(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class RegisteredDirs(Protocol):
    def ids(self) -> list[bytes]: ...

    def offline_ids(self) -> list[bytes]: ...

    def cordoned_ids(self) -> list[bytes]: ...

    def registered(self, broker_epoch: int) -> None:
        """The broker has this epoch now."""

    def mark(self) -> bool:
        """Has the directories name the process, where they do not yet."""


class LifecycleHost(
    BackgroundTasks,
    Configuration,
    ControllerAccess,
    EventLog,
    MetadataView,
    Timekeeping,
    Protocol,
):
    """What a node tells the controller of itself."""

    @property
    def id(self) -> int: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def listeners(self) -> Sequence[BoundListener]: ...

    @property
    def controller_listeners(self) -> Sequence[BoundListener]: ...
    def controller_addresses(self) -> Sequence[tuple[str, str, int]]: ...

    @property
    def supported_features(self) -> Mapping[str, tuple[int, int]]: ...

    @property
    def log_dirs(self) -> RegisteredDirs: ...


class BrokerLifecycle:
    def __init__(self, node: LifecycleHost, incarnation: bytes) -> None:
        self._node = node
        self._process = incarnation
        self.incarnation = incarnation
        """Of this process; or of one before it that was killed before it had an epoch."""
        self.previous_epoch = -1
        """Up to which the broker has lost nothing before this process; -1 where that is unknown."""
        self.broker_epoch = -1
        """-1 until the controller has given one."""
        self.fenced = True
        """As the last answer to a heartbeat said."""
        self.heard_at = -1
        """When a controller last accepted a heartbeat, in monotonic milliseconds."""
        self._untold: dict[bytes, int] = {}
        """Log directories that have failed, and since when no controller has heard of it."""

    # ---- registering ----

    def begin(self, incarnation: bytes, previous_epoch: int) -> None:
        """As what the broker registers, and the epoch up to which it has lost nothing."""
        self.incarnation, self.previous_epoch = incarnation, previous_epoch

    async def register(self) -> None:
        """Makes the broker known, and the controller where the node is one: records share a flush.

        StartError where the controller refuses for good, a live broker holds the id, or no
        controller is found within `initial.broker.registration.timeout.ms`.
        """
        await asyncio.gather(self._register_broker(), self.register_controller())

    async def _register_broker(self) -> None:
        node, clock = self._node, self._node.world.clock
        began = clock.mono_ms()
        while True:
            settings = node.settings
            patience_ms = settings.initial_broker_registration_timeout_ms
            left_ms = began + patience_ms - clock.mono_ms()
            try:
                await self._try_to_register(max(left_ms, 1))
                return
            except KafkaError as error:
                if error.code in FINAL:
                    why = FINAL[error.code]
                    if error.code is ErrorCode.UNSUPPORTED_VERSION:
                        why = await self._lacked() or why
                    raise StartError(f"the controller refused broker {node.id}: {why}") from error
                waited_ms = clock.mono_ms() - began
                duplicate = error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
                # A predecessor that died may hold the id until its session ends.
                session_ms = settings.broker_session_timeout_ms
                if duplicate and waited_ms >= session_ms + settings.broker_heartbeat_interval_ms:
                    raise StartError(
                        f"a live broker holds the id {node.id}; give this one another node.id"
                    ) from error
                if waited_ms >= patience_ms:
                    raise StartError(
                        f"no controller registered broker {node.id} within {patience_ms} ms "
                        f"(initial.broker.registration.timeout.ms): {error.message or error}; "
                        "check that the controllers run, and controller.quorum.bootstrap.servers"
                    ) from error
                self._unreachable(error)
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _lacked(self) -> str:
        """Which feature it is that this release lacks, once the metadata tells: the refusal does
        not."""
        for _ in range(LOOKS):
            if why := features.lacked(self._node.image.features, self._node.supported_features):
                return (
                    f"{why}; turn it off (kafka-features downgrade), or start a release that has it"
                )
            await asyncio.sleep(RETRY_PAUSE_S)
        return ""

    async def _try_to_register(self, timeout_ms: int) -> None:
        response: BrokerRegistrationResponse = await self._node.controller.call(
            self._registration(), timeout_ms=timeout_ms
        )
        self.broker_epoch = response.broker_epoch
        self._node.log_dirs.registered(response.broker_epoch)

    def _registration(self) -> BrokerRegistrationRequest:
        node = self._node
        ports = {bound.name: bound.port for bound in node.listeners}
        return BrokerRegistrationRequest(
            broker_id=node.id,
            cluster_id=node.cluster_id,
            incarnation_id=self.incarnation,
            rack=node.settings.broker_rack,
            listeners=[
                BrokerRegistrationRequestListener(
                    name=told.name,
                    host=told.host,
                    port=told.port or ports[told.name],
                    security_protocol=PROTOCOL_NUMBERS[told.protocol],
                )
                for told in node.settings.advertised_endpoints
            ],
            features=[
                BrokerRegistrationRequestFeature(
                    name=name, min_supported_version=low, max_supported_version=high
                )
                for name, (low, high) in sorted(node.supported_features.items())
            ],
            log_dirs=node.log_dirs.ids(),
            # A process that goes on has lost nothing; one that starts tells how the last one ended.
            previous_broker_epoch=self.broker_epoch
            if self.broker_epoch >= 0
            else self.previous_epoch,
        )

    async def register_controller(self) -> None:
        """Makes the node known as a controller, unless it is; what fails comes with a later one."""
        node = self._node
        if not node.controller_listeners:
            return
        known = node.image.controllers.get(node.id)
        if known is not None and known.incarnation_id == self._process:
            return
        request = ControllerRegistrationRequest(
            controller_id=node.id,
            incarnation_id=self._process,
            listeners=[
                ControllerRegistrationRequestListener(
                    name=name,
                    host=host,
                    port=port,
                    security_protocol=PROTOCOL_NUMBERS["PLAINTEXT"],
                )
                for name, host, port in node.controller_addresses()
            ],
            features=[
                ControllerRegistrationRequestFeature(
                    name=name, min_supported_version=low, max_supported_version=high
                )
                for name, (low, high) in sorted(node.supported_features.items())
            ],
        )
        try:
            await node.controller.call(request, timeout_ms=self._heartbeat_timeout_ms)
        except KafkaError as error:
            self._unreachable(error)

    # ---- heartbeats ----

    @property
    def _heartbeat_timeout_ms(self) -> int:
        return max(1, self._node.settings.broker_session_timeout_ms // 2)

    async def heartbeat(self, stopping: bool = False) -> BrokerHeartbeatResponse:
        """One heartbeat and its answer; KafkaError where it was refused, or not answered."""
        node = self._node
        offline = node.log_dirs.offline_ids()
        response: BrokerHeartbeatResponse = await node.controller.call(
            BrokerHeartbeatRequest(
                broker_id=node.id,
                broker_epoch=self.broker_epoch,
                current_metadata_offset=node.image.last_offset,
                want_fence=bool(node.image.security.forbids),
                want_shut_down=stopping,
                offline_log_dirs=offline,
                cordoned_log_dirs=self._cordons(),
            ),
            timeout_ms=self._patience_ms(stopping),
        )
        self.heard_at = node.world.clock.mono_ms()
        self._untold.update(dict.fromkeys(offline, TOLD))
        if not stopping:
            self._tell_if_fenced(response.is_fenced)
        return response

    def _cordons(self) -> list[bytes] | None:
        """The cordoned directories, where the controller knows of others (KIP-1066), and where the
        cluster's level has a word for them."""
        node = self._node
        if node.image.metadata_version < levels.CORDONS:
            return None
        cordoned = node.log_dirs.cordoned_ids()
        broker = node.image.brokers.get(node.id)
        known = broker.cordoned_directories if broker is not None else ()
        return cordoned if set(cordoned) != set(known) else None

    def _patience_ms(self, stopping: bool) -> int:
        if not stopping:
            return self._heartbeat_timeout_ms
        return ANSWER_MS if self._has_successors() else LAST_ANSWER_MS

    def _has_successors(self) -> bool:
        others = self._node.image.brokers.values()
        return any(broker.active and broker.id != self._node.id for broker in others)

    async def beat(self) -> None:
        """Stays in contact; nothing that a controller says, or does not say, ends the broker."""
        self._node.log_dirs.mark()
        self._note_failed_dirs()
        try:
            await self.heartbeat()
        except KafkaError as error:
            self._end_if_untold()
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                return  # the controller's device is full, which is told where it is
            self._unreachable(error)
            if error.code in UNKNOWN_HERE:
                await self._register_again()

    def _note_failed_dirs(self) -> None:
        for directory in self._node.log_dirs.offline_ids():
            self._untold.setdefault(directory, self._node.world.clock.mono_ms())

    def _end_if_untold(self) -> None:
        """Ends the broker when a failed directory has been a secret for too long."""
        node, limit_ms = self._node, self._node.settings.log_dir_failure_timeout_ms
        now = node.world.clock.mono_ms()
        if any(since != TOLD and now - since >= limit_ms for since in self._untold.values()):
            node.tasks.fail(
                StorageLost(
                    f"a log directory failed, and no controller has heard of it for {limit_ms} ms "
                    "(log.dir.failure.timeout.ms): others could not take over what lay there; "
                    "check the disk and the way to the controllers, and start again"
                )
            )

    async def unfence(self) -> None:
        """Sends heartbeats until the broker takes part in the cluster.

        StartError while the cluster has ACLs, which nobody here would keep."""
        while True:
            if rules := self._node.image.security.forbids:
                raise StartError(
                    f"the cluster has {rules}, which this release does not enforce; remove them "
                    "(kafka-acls --remove), or run this broker in a cluster without"
                )
            await self.beat()
            if not self.fenced:
                return
            await asyncio.sleep(UNFENCING_PAUSE_S)

    async def _register_again(self) -> None:
        try:
            await self._try_to_register(self._heartbeat_timeout_ms)
        except KafkaError as error:
            self._unreachable(error)

    def _tell_if_fenced(self, fenced: bool) -> None:
        if fenced and not self.fenced:
            text = "leads nothing and is in no ISR until it has caught up with the metadata"
            self._node.note(EventKind.BROKER_FENCED, f"broker {self._node.id}", text)
        self.fenced = fenced

    def _unreachable(self, error: KafkaError) -> None:
        text = error.message or error.code.text
        self._node.note(EventKind.CONTROLLER_UNREACHABLE, f"broker {self._node.id}", text)

    # ---- leaving ----

    async def controlled_shutdown(self) -> None:
        """The controller moves leaderships away before the broker goes."""
        settings = self._node.settings
        if not settings.controlled_shutdown_enable:
            return
        try:
            async with asyncio.timeout(settings.broker_session_timeout_ms / 1000):
                while True:
                    answer = await self.heartbeat(stopping=True)
                    if answer.should_shut_down:
                        return
                    await asyncio.sleep(SHUTDOWN_PAUSE_S)
        except (TimeoutError, KafkaError) as error:
            if self._has_successors():
                text = f"the controller did not confirm: {error}"
                self._node.note(EventKind.SHUTDOWN_NOT_CLEAN, "controlled shutdown", text)

    async def let_others_leave(self) -> None:
        """Has a controller stay while brokers hand their leaderships over, for a while.

        Where all nodes are stopped at once, the first controllers to go would take the quorum with
        them, and the brokers would have nobody to tell.
        """
        node, clock = self._node, self._node.world.clock
        if not node.controller_listeners:
            return
        began = moved = clock.mono_ms()
        end_offset = node.image.end_offset
        while (now := clock.mono_ms()) - began < OTHERS_LEAVE_MS:
            if node.image.end_offset != end_offset:
                end_offset, moved = node.image.end_offset, now
            others = [b for b in node.image.brokers.values() if b.id != node.id and not b.fenced]
            leaving = any(broker.in_controlled_shutdown for broker in others)
            # Without news of the metadata nobody leads any more, and nobody hears them.
            if not others or now - moved >= STILL_MS:
                return
            if not leaving and now - began >= OTHERS_BEGIN_MS:
                return
            await asyncio.sleep(SHUTDOWN_PAUSE_S)

    # ---- what else a broker asks ----

    async def allocate_producer_ids(self) -> tuple[int, int]:
        """A block of ids that no other broker has: the first, and how many."""
        try:
            response: AllocateProducerIdsResponse = await self._node.controller.call(
                AllocateProducerIdsRequest(broker_id=self._node.id, broker_epoch=self.broker_epoch),
                leaderless_ms=CLIENTS_WAIT_MS,
            )
        except KafkaError as error:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, error.message) from error
        return response.producer_id_start, response.producer_id_len
