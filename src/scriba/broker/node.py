"""A node: everything put together, in the order in which it may be used.

Start: take the ports (nothing is touched if one is taken), take the directories, replay the
metadata log and lead its quorum, register with the controller, open every partition's log, ask to
be unfenced, and only then answer clients. Stop runs the other way round: no new connections,
leadership handed back, logs flushed and closed, directories marked clean.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from functools import partial
from typing import Any, Final, NamedTuple

from scriba.broker.access import Access, Open
from scriba.broker.api.dispatch import Dispatch
from scriba.broker.api.faults import Faults
from scriba.broker.api.table import api_table
from scriba.broker.coordinators.coordination import (
    configure,
    group_coordinators,
    txn_coordinators,
)
from scriba.broker.coordinators.internal_topics import INTERNAL_TOPICS
from scriba.broker.coordinators.markers import TransactionMarkers
from scriba.broker.coordinators.producer_ids import ProducerIds
from scriba.broker.coordinators.runtime import CoordinatorRuntime
from scriba.broker.coordinators.verification import TransactionVerifier
from scriba.broker.jobs.aging import Aging
from scriba.broker.jobs.compaction import Cleaning
from scriba.broker.jobs.schedule import JOBS, run_forever
from scriba.broker.metadata.controller import ControllerNode
from scriba.broker.net.answers import Parked, Parts
from scriba.broker.net.api_entry import ApiEntry
from scriba.broker.net.connection import Connection
from scriba.broker.net.server import Limits, Server
from scriba.broker.observe.counters import Counters
from scriba.broker.observe.events import Events
from scriba.broker.observe.http import MetricsServer
from scriba.broker.partitions.fetch_sessions import FetchSessions
from scriba.broker.partitions.partition import Partition
from scriba.broker.partitions.replicas import Replicas
from scriba.broker.request import Context
from scriba.config import StartError, StorageLost
from scriba.controller.features import SUPPORTED
from scriba.controller.image import ClusterImage, Delta
from scriba.controller.machine import effective_settings
from scriba.errors import ErrorCode, KafkaError, error_code
from scriba.events import EventKind
from scriba.runtime.loop.tasks import Tasks
from scriba.runtime.ports import World
from scriba.settings import NodeSettings
from scriba.storage.directory.logdir import LogDir
from scriba.storage.directory.names import PartitionName
from scriba.storage.log import METADATA_TOPIC, Log
from scriba.storage.results import NoRoom
from scriba.wire import uuids
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

HAND_BACK_PAUSE_S: Final = 0.01
LEAST_ROOM_BYTES: Final = 64 << 10
"""A log directory with less is full for a new partition: five files and a name."""
PROTOCOL_NUMBERS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


_CURES: Final = {
    errno.EADDRINUSE: "stop whoever holds the port, or choose another with --port",
    errno.EACCES: "ports below 1024 need the right to bind them (root, or CAP_NET_BIND_SERVICE); "
    "choose a higher one with --port",
    errno.EADDRNOTAVAIL: "this machine has no such address; name one it has in listeners",
}


def _cure(error: OSError) -> str:
    """What to do about an address that cannot be listened on."""
    return _CURES.get(error.errno or 0, "name another address in listeners")


class Bound(NamedTuple):
    """A listener as it came up: with the port it really has."""

    name: str
    host: str
    port: int


class Node:
    def __init__(
        self,
        settings: NodeSettings,
        world: World,
        access: Access | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.world = world
        self.id = settings.node_id
        self.static_settings = settings
        self.settings: NodeSettings = settings
        self.settings_changed = asyncio.Event()
        """Set once, when they do; then there is another one for the next time."""
        self.access: Access = access or Open()
        self.tasks = Tasks()
        self.counters = Counters()
        self.events = Events(world.clock)
        self.sessions = FetchSessions(settings.max_incremental_fetch_session_cache_slots, world.rng)
        self.producer_ids = ProducerIds(self._allocate_producer_ids)
        self.internal_topics = INTERNAL_TOPICS
        self.aging = Aging(self)
        self.group_coordinators = group_coordinators(self)
        self.txn_coordinators = txn_coordinators(self)
        self.txn_markers = TransactionMarkers(self)
        self.txn_verifier = TransactionVerifier(self)
        self.supported_features = SUPPORTED
        table = api_table()
        self.dispatch = Dispatch(self, faults.install(self, table) if faults else table)
        self._controller_dispatch = Dispatch(self, api_table(on_controller=True))
        self.server = Server(
            world.net, world.clock, _limits(settings), self._handle, self.note, world.spoil
        )
        self.listeners: list[Bound] = []
        self.controller_listeners: list[Bound] = []
        self.cluster_id = ""
        self.broker_epoch = -1
        self.fast_paths = settings.scriba_fast_paths
        """Whether a request that repeats an earlier one may be answered without its handler."""
        self._handlers_asked = False
        self.topology: int = 0
        """Counts changes of topics, partitions and brokers: what Metadata tells."""
        self.cleaning = Cleaning(self)
        self.metrics = MetricsServer(self)
        self.replicas: Replicas
        self.controller: ControllerNode
        self._dirs: list[LogDir] = []
        """Where replicas lie."""
        self._all_dirs: list[LogDir] = []
        """Those, and the one of the metadata log if it has one of its own."""
        self._incarnation = world.rng.uuid()
        self._started = False

    # ---- start ----

    async def start(self) -> None:
        """Brings the node up; StartError with one clear line when it cannot."""
        try:
            self._bind()
            await self._take_directories()
            await self._lead_metadata()
            await self._open_replicas()
            self.server.open()
            self._tell_metrics()
            for job in JOBS:
                self.tasks.spawn(run_forever(self, job), name=job.name)
            self._started = True
        except NoRoom as error:
            await self._abandon()
            raise StartError(
                f"no room on the device: {error.message}; make room and start again"
            ) from None
        except BaseException:
            await self._abandon()
            raise

    def _bind(self) -> None:
        for endpoint in self.settings.endpoints:
            try:
                listener = self.server.listen(endpoint.name, endpoint.host, endpoint.port)
            except OSError as error:
                raise StartError(
                    f"cannot listen on {endpoint.host}:{endpoint.port}: {error.strerror}; "
                    f"{_cure(error)}"
                ) from None
            bound = Bound(endpoint.name, endpoint.host, listener.port)
            if self.is_controller_listener(endpoint.name):
                self.controller_listeners.append(bound)
            else:
                self.listeners.append(bound)

    def _tell_metrics(self) -> None:
        try:
            self.metrics.start()
        except OSError as error:
            where = self.settings.scriba_metrics_listener
            raise StartError(
                f"cannot listen on {where}: {error.strerror}; set scriba.metrics.listener"
            ) from None

    async def _take_directories(self) -> None:
        """Looks at every directory before it changes any."""
        settings, world = self.settings, self.world
        for path in dict.fromkeys((*settings.data_dirs, settings.metadata_dir)):
            self._all_dirs.append(
                LogDir.open(
                    world.disk, path, world.offload, self._on_storage_failure, self._on_refused
                )
            )
        self._dirs = self._all_dirs[: len(settings.data_dirs)]
        home = self._metadata_home()
        for other in self._all_dirs:
            if other is not home and other.holds(METADATA_TOPIC, 0):
                raise StartError(
                    f"{other.path} holds {METADATA_TOPIC}-0, but the metadata belongs into "
                    f"{home.path}: move it there, or set metadata.log.dir={other.path}"
                )
        known = [d.meta.cluster_id for d in self._all_dirs if d.meta is not None]
        self.cluster_id = known[0] if known else uuids.to_text(world.rng.uuid())
        for directory in self._all_dirs:
            directory.check_owner(self.cluster_id, self.id)
        for directory in self._all_dirs:
            await directory.adopt(self.cluster_id, self.id, world.rng.uuid())
        for directory in self._all_dirs:
            await directory.start()

    def _metadata_home(self) -> LogDir:
        return next(d for d in self._all_dirs if d.path == self.settings.metadata_dir)

    async def _lead_metadata(self) -> None:
        home = self._metadata_home()
        self.controller = ControllerNode(
            self.world,
            home.path,
            node_id=self.id,
            cluster_id=self.cluster_id,
            directory_id=home.id,
            settings=self.static_settings,
            tasks=self.tasks,
            on_refused=partial(self._on_refused, home.path),
            has_room=self._has_room,
            note=self.note,
        )
        await self.controller.start(clean=home.clean, also=self.aging.at_start)

    async def _open_replicas(self) -> None:
        await self._register()
        self.replicas = Replicas(self, self._dirs)
        self._refresh_settings()
        for shards in (self.group_coordinators, self.txn_coordinators):
            shards.start()
        self.replicas.load(self.image)
        self.controller.subscribe(self._on_change)
        await self.replicas.settled()
        await self.aging.ask_records()
        while True:
            answer = await self.heartbeat()
            await self.replicas.settled()
            if not answer.is_fenced:
                return

    async def _register(self) -> None:
        """Both roles make themselves known; their records share one flush."""
        response, _ = await asyncio.gather(self._register_broker(), self._register_controller())
        if response.error_code:
            raise StartError(
                f"the controller refused this broker: {error_code(response.error_code).text}"
            )
        self.broker_epoch = response.broker_epoch

    async def _register_controller(self) -> None:
        if self.controller_listeners:
            await self.controller.call(
                ControllerRegistrationRequest(
                    controller_id=self.id,
                    incarnation_id=self._incarnation,
                    listeners=[
                        ControllerRegistrationRequestListener(
                            name=bound.name,
                            host=bound.host or self.settings.machine,
                            port=bound.port,
                            security_protocol=PROTOCOL_NUMBERS["PLAINTEXT"],
                        )
                        for bound in self.controller_listeners
                    ],
                    features=[
                        ControllerRegistrationRequestFeature(
                            name=name, min_supported_version=low, max_supported_version=high
                        )
                        for name, (low, high) in sorted(self.supported_features.items())
                    ],
                )
            )

    async def _register_broker(self) -> BrokerRegistrationResponse:
        ports = {bound.name: bound.port for bound in self.listeners}
        response = await self.controller.call(
            BrokerRegistrationRequest(
                broker_id=self.id,
                cluster_id=self.cluster_id,
                incarnation_id=self._incarnation,
                rack=self.settings.broker_rack,
                listeners=[
                    BrokerRegistrationRequestListener(
                        name=told.name,
                        host=told.host,
                        port=told.port or ports[told.name],
                        security_protocol=PROTOCOL_NUMBERS[told.protocol],
                    )
                    for told in self.settings.advertised_endpoints
                ],
                features=[
                    BrokerRegistrationRequestFeature(
                        name=name, min_supported_version=low, max_supported_version=high
                    )
                    for name, (low, high) in sorted(self.supported_features.items())
                ],
                log_dirs=[directory.id for directory in self._dirs],
            )
        )
        assert isinstance(response, BrokerRegistrationResponse)
        return response

    async def _abandon(self) -> None:
        """Lets go of all that a start has taken, and leaves the files as they are."""
        self.metrics.close()
        self.server.close()
        await self.tasks.stop()
        for directory in self._all_dirs:
            directory.release()

    # ---- stop ----

    async def stop(self) -> None:
        """A clean shutdown: what was acknowledged is flushed, and the next start reads nothing."""
        if not self._started:
            return
        self._started = False
        self.metrics.close()
        self.server.stop_listening()
        await self._hand_back()
        for shards in (self.group_coordinators, self.txn_coordinators):
            shards.stop()
        self.server.close()
        await self.tasks.stop()
        await self.replicas.close()
        try:
            await self.replicas.checkpoint_high_watermarks()
        except KafkaError as error:
            text = f"high watermarks stay as they were last written: {error.message}"
            self.note(EventKind.SHUTDOWN_NOT_CLEAN, "high watermarks", text)
        try:
            await self.controller.stop()
        except KafkaError as error:
            self.note(EventKind.SHUTDOWN_NOT_CLEAN, "metadata log", error.message)
        for directory in self._all_dirs:
            await directory.close(self.broker_epoch)

    async def halt(self) -> None:
        """Ends at once, as a killed process does: nothing is flushed, handed back or marked."""
        if self._started:
            self._started = False
            await self._abandon()

    async def _hand_back(self) -> None:
        """Controlled shutdown: the controller moves leaderships away before we go."""
        try:
            async with asyncio.timeout(self.settings.broker_session_timeout_ms / 1000):
                while True:
                    answer = await self.heartbeat(stopping=True)
                    if answer.should_shut_down:
                        return
                    await asyncio.sleep(HAND_BACK_PAUSE_S)
        except (TimeoutError, KafkaError) as error:
            text = f"the controller did not confirm: {error}"
            self.note(EventKind.SHUTDOWN_NOT_CLEAN, "controlled shutdown", text)

    async def wait_stopped(self) -> None:
        """Waits for a failure that the node cannot go on from, and raises it."""
        await self.tasks.watch()

    # ---- what handlers ask ----

    @property
    def image(self) -> ClusterImage:
        return self.controller.image

    @property
    def controller_id(self) -> int:
        return self.id

    @property
    def data_dirs(self) -> list[str]:
        return [directory.path for directory in self._dirs]

    def is_controller_listener(self, name: str) -> bool:
        return name in self.settings.controller_names

    def api_table(self, listener: str) -> dict[int, ApiEntry]:
        """The APIs that a listener serves."""
        if self.is_controller_listener(listener):
            return self._controller_dispatch.table
        return self.dispatch.table

    def api_entries(self) -> Iterator[ApiEntry]:
        """All that is served, on whatever listener."""
        yield from self.dispatch.table.values()
        yield from self._controller_dispatch.table.values()

    def topic_name(self, topic_id: bytes) -> str | None:
        topic = self.image.topics_by_id.get(topic_id)
        return topic.name if topic is not None else None

    def throttle(self, ctx: Context, response: Any) -> None:
        """The one place that fills `throttle_time_ms`; without quotas it stays at zero.

        Answers of fast paths do not pass here, so whoever limits a rate turns these off
        (`ask_handlers`).
        """

    def ask_handlers(self, always: bool) -> None:
        """Has every request pass its handler, whatever `scriba.fast.paths` says, until told
        otherwise."""
        self._handlers_asked = always
        self._set_fast_paths()

    def _set_fast_paths(self) -> None:
        self.fast_paths = self.settings.scriba_fast_paths and not self._handlers_asked

    def note(
        self, kind: EventKind, about: str, text: str, failure: BaseException | None = None
    ) -> None:
        """Tells of an event: logged, counted, and kept for the console (see `Events`)."""
        self.events.note(kind, about, text, failure)

    # ---- contact with the controller ----

    async def heartbeat(self, stopping: bool = False) -> BrokerHeartbeatResponse:
        response = await self.controller.call(
            BrokerHeartbeatRequest(
                broker_id=self.id,
                broker_epoch=self.broker_epoch,
                current_metadata_offset=self.image.last_offset,
                want_shut_down=stopping,
                offline_log_dirs=[d.id for d in self._dirs if d.failure is not None],
            )
        )
        if response.error_code:
            raise KafkaError(error_code(response.error_code), "the controller refused a heartbeat")
        assert isinstance(response, BrokerHeartbeatResponse)
        return response

    async def _allocate_producer_ids(self) -> tuple[int, int]:
        response = await self.controller.call(
            AllocateProducerIdsRequest(broker_id=self.id, broker_epoch=self.broker_epoch)
        )
        if response.error_code:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return response.producer_id_start, response.producer_id_len

    def _on_refused(self, path: str, what: str) -> None:
        """A device did not take a write: counted each time, told once a minute.

        Whatever it was (a batch, a checkpoint, a new partition), it is tried again by whoever
        needs it, so that all goes on by itself once the device takes writes.
        """
        self.counters.refused_writes += 1
        self.note(EventKind.WRITE_REFUSED, path, f"takes no writes, reads go on: {what}")

    def _has_room(self) -> bool:
        """Whether a partition more can be made: some file system blocks for its files."""
        return any(directory.has_room(LEAST_ROOM_BYTES) for directory in self._dirs)

    def _on_storage_failure(self, directory: LogDir, store: Log | None, why: str) -> None:
        if store is None:
            self.note(EventKind.LOG_DIR_OFFLINE, directory.path, why)
            if all(each.offline for each in self._dirs):
                # All it could do from here is to answer errors. A supervisor starts it again,
                # which is what a device needs that has come back.
                self.tasks.fail(
                    StorageLost(
                        f"every log directory is offline, the last one {directory.path}: {why}; "
                        "check the disks and start again"
                    )
                )
        else:
            name = PartitionName(store.topic, store.partition)
            self.replicas.offline(name, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, why))

    def _on_change(self, delta: Delta, image: ClusterImage) -> None:
        if delta.configs:
            self._refresh_settings()
            self.aging.on_configs()
        if delta.created or delta.deleted or delta.partitions or delta.brokers:
            self.topology += 1
        self.replicas.apply(delta, image)
        if delta.configs or delta.features:
            configure(self)
        self.group_coordinators.topics_changed(_topics_of(delta, image))

    def on_lead(self, partition: Partition) -> None:
        """This broker leads the partition in an epoch that may be new."""
        shards = self._shards_of(partition)
        if shards is not None:
            shards.follow(partition)

    def on_let_go(self, partition: Partition) -> None:
        """The partition is no longer here, or of no use any more."""
        shards = self._shards_of(partition)
        if shards is not None:
            shards.unload(partition.index)

    def _shards_of(self, partition: Partition) -> CoordinatorRuntime | None:
        if partition.topic not in INTERNAL_TOPICS:
            return None
        return (
            self.group_coordinators
            if partition.topic == self.group_coordinators.topic
            else self.txn_coordinators
        )

    def _refresh_settings(self) -> None:
        self.settings = effective_settings(self.static_settings, self.image, self.id)
        self.server.limits = _limits(self.settings)
        self._set_fast_paths()
        self.settings_changed.set()
        self.settings_changed = asyncio.Event()

    def _handle(self, connection: Connection, frame: memoryview) -> Parts | Parked | None:
        if self.controller_listeners and self.is_controller_listener(connection.listener):
            return self._controller_dispatch.handle(connection, frame)
        return self.dispatch.handle(connection, frame)


def _topics_of(delta: Delta, image: ClusterImage) -> Iterator[str]:
    """Names of the topics that a change is about."""
    for topic in delta.deleted.values():
        yield topic.name
    for topic_id in delta.partitions:
        if (known := image.topics_by_id.get(topic_id)) is not None:
            yield known.name


def _limits(settings: NodeSettings) -> Limits:
    return Limits(
        max_request_bytes=settings.socket_request_max_bytes,
        max_connections=settings.max_connections,
        max_connections_per_ip=settings.max_connections_per_ip,
        max_connections_per_ip_overrides=dict(settings.connections_per_ip),
        idle_ms=settings.connections_max_idle_ms,
    )
