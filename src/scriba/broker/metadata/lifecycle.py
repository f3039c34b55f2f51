"""A broker as the controller knows it: it registers, sends heartbeats, and leaves in good order.

All of it are requests to the active controller, in the same process or another. A registration
gives the broker its epoch, which every later request bears; with the first heartbeat it asks to be
unfenced, and with the last ones to hand its leaderships over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from scriba.broker.ports import Configuration, ControllerAccess, EventLog, MetadataView
from scriba.config import StartError
from scriba.errors import ErrorCode, KafkaError, error_code
from scriba.events import EventKind
from scriba.wire.messages.brokers import (
    AllocateProducerIdsRequest,
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
PROTOCOL_NUMBERS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


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


class LifecycleHost(Configuration, ControllerAccess, EventLog, MetadataView, Protocol):
    """What a node tells the controller of itself."""

    @property
    def id(self) -> int: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def listeners(self) -> Sequence[BoundListener]: ...

    @property
    def controller_listeners(self) -> Sequence[BoundListener]: ...

    @property
    def supported_features(self) -> Mapping[str, tuple[int, int]]: ...

    @property
    def log_dirs(self) -> RegisteredDirs: ...


class BrokerLifecycle:
    def __init__(self, node: LifecycleHost, incarnation: bytes) -> None:
        self._node = node
        self._incarnation = incarnation
        self.broker_epoch = -1
        """-1 until the controller has given one."""

    async def register(self) -> None:
        """Both roles make themselves known; their records share one flush."""
        response, _ = await asyncio.gather(self._register_broker(), self._register_controller())
        if response.error_code:
            raise StartError(
                f"the controller refused this broker: {error_code(response.error_code).text}"
            )
        self.broker_epoch = response.broker_epoch

    async def _register_controller(self) -> None:
        node = self._node
        if not node.controller_listeners:
            return
        await node.controller.call(
            ControllerRegistrationRequest(
                controller_id=node.id,
                incarnation_id=self._incarnation,
                listeners=[
                    ControllerRegistrationRequestListener(
                        name=bound.name,
                        host=bound.host or node.settings.machine,
                        port=bound.port,
                        security_protocol=PROTOCOL_NUMBERS["PLAINTEXT"],
                    )
                    for bound in node.controller_listeners
                ],
                features=[
                    ControllerRegistrationRequestFeature(
                        name=name, min_supported_version=low, max_supported_version=high
                    )
                    for name, (low, high) in sorted(node.supported_features.items())
                ],
            )
        )

    async def _register_broker(self) -> BrokerRegistrationResponse:
        node = self._node
        ports = {bound.name: bound.port for bound in node.listeners}
        response = await node.controller.call(
            BrokerRegistrationRequest(
                broker_id=node.id,
                cluster_id=node.cluster_id,
                incarnation_id=self._incarnation,
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
            )
        )
        assert isinstance(response, BrokerRegistrationResponse)
        return response

    async def heartbeat(self, stopping: bool = False) -> BrokerHeartbeatResponse:
        node = self._node
        response = await node.controller.call(
            BrokerHeartbeatRequest(
                broker_id=node.id,
                broker_epoch=self.broker_epoch,
                current_metadata_offset=node.image.last_offset,
                want_shut_down=stopping,
                offline_log_dirs=node.log_dirs.offline_ids(),
            )
        )
        if response.error_code:
            raise KafkaError(error_code(response.error_code), "the controller refused a heartbeat")
        assert isinstance(response, BrokerHeartbeatResponse)
        return response

    async def controlled_shutdown(self) -> None:
        """The controller moves leaderships away before the broker goes."""
        try:
            async with asyncio.timeout(self._node.settings.broker_session_timeout_ms / 1000):
                while True:
                    answer = await self.heartbeat(stopping=True)
                    if answer.should_shut_down:
                        return
                    await asyncio.sleep(SHUTDOWN_PAUSE_S)
        except (TimeoutError, KafkaError) as error:
            text = f"the controller did not confirm: {error}"
            self._node.note(EventKind.SHUTDOWN_NOT_CLEAN, "controlled shutdown", text)

    async def allocate_producer_ids(self) -> tuple[int, int]:
        """A block of ids that no other broker has: the first, and how many."""
        response = await self._node.controller.call(
            AllocateProducerIdsRequest(broker_id=self._node.id, broker_epoch=self.broker_epoch)
        )
        if response.error_code:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return response.producer_id_start, response.producer_id_len
