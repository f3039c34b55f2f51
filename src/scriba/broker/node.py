"""A node: everything put together, in the order in which it may be used.

Start: take the ports (nothing is touched if one is taken), take the directories, replay the
metadata log and lead its quorum, register with the controller, open every partition's log, ask to
be unfenced, and only then answer clients. Stop runs the other way round: no new connections,
leadership handed back, logs flushed and closed, directories marked clean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

from scriba.broker.access import Access, AllowAll, RefuseClients
from scriba.broker.api.dispatch import Dispatch
from scriba.broker.api.faults import Faults
from scriba.broker.api.table import api_table
from scriba.broker.channels import BrokerChannels, NodeChannels
from scriba.broker.coordinators.internal_topics import INTERNAL_TOPICS
from scriba.broker.coordinators.kinds import (
    configure,
    group_coordinators,
    txn_coordinators,
)
from scriba.broker.coordinators.markers import TransactionMarkers
from scriba.broker.coordinators.producer_ids import ProducerIds
from scriba.broker.coordinators.runtime import CoordinatorRuntime
from scriba.broker.coordinators.verification import TransactionVerifier
from scriba.broker.handlers.records.acks import AckDeadlines
from scriba.broker.jobs.clock_guard import ClockGuard
from scriba.broker.jobs.compaction import LogCleaner
from scriba.broker.jobs.schedule import JOBS, run_forever
from scriba.broker.metadata.channel import ControllerChannel
from scriba.broker.metadata.controller import QuorumController
from scriba.broker.metadata.deaths import DeathWatch
from scriba.broker.metadata.elections import tell_changes
from scriba.broker.metadata.follower import NotFollowed
from scriba.broker.metadata.lifecycle import BrokerLifecycle
from scriba.broker.metadata.visibility import QuorumView
from scriba.broker.metrics.http import MetricsServer
from scriba.broker.net.answers import Parked, Parts
from scriba.broker.net.api_entry import ApiEntry
from scriba.broker.net.connection import Connection
from scriba.broker.net.listeners import Bound, bind
from scriba.broker.net.server import ConnectionLimits, Server
from scriba.broker.observe.counters import Counters
from scriba.broker.observe.events import Events
from scriba.broker.partitions.directories.log_dirs import LogDirs
from scriba.broker.partitions.directories.write_watermark import WriteWatermarks
from scriba.broker.partitions.fetch_sessions import FetchSessions
from scriba.broker.partitions.partition import Partition
from scriba.broker.partitions.replicas import Replicas
from scriba.broker.partitions.replication.stalls import Stalls
from scriba.broker.request import Context
from scriba.config import StartError
from scriba.controller.features import SUPPORTED
from scriba.controller.image import TOPIC, ClusterImage, Delta
from scriba.controller.machine import effective_settings
from scriba.errors import KafkaError
from scriba.events import EventKind
from scriba.runtime.loop.tasks import Tasks
from scriba.runtime.ports import World
from scriba.settings import NodeSettings, TopicSettings
from scriba.settings.foreign import taken
from scriba.storage.results import NoRoom
from scriba.wire import uuids

REQUESTS_SHARE: Final = 8
"""What part of its memory a node lets requests wait in, where nobody says how much."""


class Node:
    """The composition root: makes every part once, and is what each of them asks by protocol."""

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
        self.access: Access = access or AllowAll()
        self._granted = self.access
        self.tasks = Tasks()
        self.counters = Counters()
        self.events = Events(world.clock)
        self.fetch_sessions = FetchSessions(
            settings.max_incremental_fetch_session_cache_slots, world.rng
        )
        self.ack_deadlines = AckDeadlines()
        self.channels = BrokerChannels(self)
        """Connections to the other brokers."""
        self.quorum = QuorumView(self)
        self.controller = ControllerChannel(self)
        """The active controller, wherever it is."""
        self.deaths = DeathWatch(self)
        self.quorum_channels = NodeChannels(self)
        """Connections to the other controllers."""
        self.log_dirs = LogDirs(self)
        self.lifecycle = BrokerLifecycle(self, world.rng.uuid())
        self.producer_ids = ProducerIds(self.lifecycle.allocate_producer_ids)
        self.internal_topics = INTERNAL_TOPICS
        self.clock_guard = ClockGuard(self)
        self.group_coordinators = group_coordinators(self)
        self.txn_coordinators = txn_coordinators(self)
        self.txn_markers = TransactionMarkers(self)
        self.txn_verifier = TransactionVerifier(self)
        self.supported_features = SUPPORTED
        table = api_table()
        self.dispatch = Dispatch(self, faults.install(self, table) if faults else table)
        self._controller_dispatch = Dispatch(self, api_table(on_controller=True))
        self.server = Server(
            world.net,
            world.clock,
            _limits(settings, world),
            self._handle,
            self.note,
            self._unreadable,
            world.spoil,
        )
        self.request_memory = self.server.memory
        self.listeners: list[Bound] = []
        self.controller_listeners: list[Bound] = []
        self.cluster_id = ""
        self.fast_paths = settings.scriba_fast_paths
        """Whether a request of the usual kind may be answered without its handler."""
        self._handlers_asked = False
        self.departures: int = 0
        """Counts what went away: topics of the cluster, and replicas here."""
        self.topology: int = 0
        """Counts changes of topics, partitions and brokers: what Metadata tells."""
        self.shape: int = 0
        """Counts changes of topics, their replicas and brokers' racks: what groups go by."""
        self.log_cleaner = LogCleaner(self)
        self.metrics = MetricsServer(self)
        self.write_watermarks = WriteWatermarks(self)
        self.stalls = Stalls(self)
        self.replicas: Replicas
        self.metadata: QuorumController
        self.started_ms = world.clock.mono_ms()
        self._started = False

    # ---- start ----

    async def start(self) -> None:
        """Brings the node up; StartError with one clear line when it cannot."""
        try:
            self._bind()
            await self._join_quorum()
            if self.settings.is_broker:
                await self._open_replicas()
            else:
                self._only_control()
            self.server.open()
            self._tell_metrics()
            for job in JOBS:
                if self.settings.is_broker or job.on_controllers:
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
            bound = bind(self.server, endpoint)
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

    async def _join_quorum(self) -> None:
        """Takes part in the metadata quorum. Its listener answers before anything else does: the
        others may need this node to find their cluster, or a leader."""
        known = self.log_dirs.take()
        home = self.log_dirs.metadata_home
        self.metadata = QuorumController(
            self.world,
            home.path,
            node_id=self.id,
            cluster_id="",
            directory_id=self.log_dirs.metadata_id,
            settings=self.static_settings,
            tasks=self.tasks,
            on_refused=partial(self.log_dirs.on_refused, home.path),
            has_room=self.log_dirs.has_room,
            note=self.note,
            broker_epoch=lambda: self.broker_epoch,
            channels=self.quorum_channels,
            endpoints=self.controller_addresses(),
            brokers=self.channels,
            counters=self.counters,
        )
        self.server.open(bound.name for bound in self.controller_listeners)
        self._compare_own_voter()
        cluster_id = await self.metadata.find_cluster(
            known, lambda: uuids.to_text(self.world.rng.uuid())
        )
        await self.log_dirs.adopt(cluster_id, self._begin_run)
        self.cluster_id = self.metadata.cluster_id = cluster_id
        await self.metadata.start(clean=home.clean, also=self.clock_guard.at_start)
        self.tasks.spawn(self._follow_leadership(), name="leadership of the quorum")

    def _compare_own_voter(self) -> None:
        """Forwarding of ports is legitimate, so this is told and not refused."""
        bound = sorted({each.port for each in self.controller_listeners})
        known = {*bound, *(port for _, _, port in self.controller_addresses())}
        for voter in self.settings.quorum_voters:
            if bound and voter.node_id == self.id and voter.port not in known:
                text = (
                    f"controller.quorum.voters has {voter.node_id}@{voter.host}:{voter.port}, and "
                    f"this controller listens on port {', '.join(map(str, bound))}"
                )
                self.note(EventKind.QUORUM_ADDRESS, f"node {self.id}", text)

    def _begin_run(self) -> None:
        self.metadata.make_directory()
        if self.settings.is_broker:
            self.lifecycle.begin(*self.log_dirs.begin_run(self.lifecycle.incarnation))

    def controller_addresses(self) -> tuple[tuple[str, str, int], ...]:
        """Name, host and port by which other nodes reach this one's controller."""
        ports = {bound.name: bound.port for bound in self.controller_listeners}
        return tuple(
            (told.name, told.host, told.port or ports[told.name])
            for told in self.settings.advertised_controllers
        )

    def _only_control(self) -> None:
        """A controller that is no broker has no replicas, and follows only the settings."""
        self.replicas = Replicas(self, self.log_dirs.data)
        self._refresh_settings()
        self.metadata.subscribe(self._on_change_of_settings)

    def _on_change_of_settings(self, delta: Delta, image: ClusterImage) -> None:
        if delta.configs:
            self._refresh_settings()

    async def _open_replicas(self) -> None:
        await self.lifecycle.register()
        try:
            await self._registration_applied()
        except NotFollowed as error:
            raise StartError(
                f"the metadata of the cluster cannot be followed: {error.message}; start a release "
                "that can"
            ) from error
        self.replicas = Replicas(self, self.log_dirs.data)
        self._refresh_settings()
        for shards in (self.group_coordinators, self.txn_coordinators):
            shards.start()
        self.replicas.load(self.image)
        self.metadata.subscribe(self._on_change)
        await self.replicas.settled()
        if not self.metadata.led_at_start:
            await self.clock_guard.join(self.image, self.metadata.newest_ms)
        await self.clock_guard.ask_records()
        # Once it is unfenced, a replica that is trusted and not whole could be elected.
        await self.replicas.losses_told()
        await self.lifecycle.unfence()
        await self.replicas.settled()

    async def _registration_applied(self) -> None:
        """Returns when the metadata has all that was there when the broker came back, and knows it
        as the one that it is now.

        Of replicas on disk that the metadata does not name, nobody knows before whether they are
        strays. And what it says of an earlier incarnation, which may have led, must not be taken up
        by this one: it knows a smaller high watermark and, after a power cut, fewer records. The
        epoch is where the metadata ended, and the records that end the old leaderships come before
        the registration, maybe in several batches: so its offset alone tells nothing.
        """
        await self.metadata.applied.reach(self.broker_epoch + 1)
        while (
            known := self.image.brokers.get(self.id)
        ) is not None and known.epoch < self.broker_epoch:
            await self.metadata.applied.reach(self.image.end_offset + 1)

    async def _follow_leadership(self) -> None:
        """Nobody waits for a controller that has been replaced; the new one looks around, and
        hears of its brokers at once."""
        known = self.quorum.leader()
        while True:
            await self.quorum.changed()
            self.controller.on_leader()
            self.deaths.look()
            before, known = known, self.quorum.leader()
            if self._started and self.settings.is_broker and known not in (None, before):
                self.tasks.spawn(self.lifecycle.beat(), name="heartbeat to a new controller")

    async def _abandon(self) -> None:
        """Lets go of all that a start has taken, and leaves the files as they are."""
        self.metrics.close()
        self._hang_up()
        self.server.close()
        await self.tasks.stop()
        self.log_dirs.release()

    # ---- stop ----

    async def stop(self) -> None:
        """A clean shutdown: what was acknowledged is flushed, and the next start reads nothing."""
        if not self._started:
            return
        self._started = False
        self.metrics.close()
        # Served meanwhile: clients of what is still led here, and the controllers' election.
        # An active controller goes first: it would hear of its broker's successors before they do,
        # and send clients to leaders that do not know yet that they lead. Of two voters neither
        # can do anything without the other, and the one that leads stays until the other has gone.
        if self.voters > 2:
            await self.metadata.resign()
        if self.settings.is_broker:
            await self.lifecycle.controlled_shutdown()
        await self.lifecycle.let_others_leave()
        await self.metadata.resign()
        for shards in (self.group_coordinators, self.txn_coordinators):
            shards.stop()
        self._hang_up()
        self.server.close()
        await self.tasks.stop()
        await self.replicas.close()
        try:
            await self.replicas.checkpoint_high_watermarks()
        except KafkaError as error:
            text = f"high watermarks stay as they were last written: {error.message}"
            self.note(EventKind.SHUTDOWN_NOT_CLEAN, "high watermarks", text)
        try:
            await self.metadata.stop()
        except KafkaError as error:
            self.note(EventKind.SHUTDOWN_NOT_CLEAN, "metadata log", error.message)
        await self.log_dirs.close(self.broker_epoch)

    def _hang_up(self) -> None:
        """Ends what this node asks others, and what it makes of their ends."""
        self.deaths.close()
        self.controller.close()
        self.channels.close()
        self.quorum_channels.close()

    async def halt(self) -> None:
        """Ends at once, as a killed process does: nothing is flushed, handed back or marked."""
        if self._started:
            self._started = False
            await self._abandon()

    async def wait_stopped(self) -> None:
        """Waits for a failure that the node cannot go on from, and raises it."""
        await self.tasks.watch()

    # ---- what handlers ask ----

    @property
    def image(self) -> ClusterImage:
        return self.metadata.image

    @property
    def broker_epoch(self) -> int:
        return self.lifecycle.broker_epoch

    @property
    def active_controller_id(self) -> int:
        leader = self.metadata.leader_id
        return -1 if leader is None else leader

    def controllers_on(self, listener: str) -> list[tuple[int, str, int]]:
        """The controllers by id, with their addresses: while there is no cluster, this one."""
        if not self.cluster_id:
            return [
                (self.id, bound.host or self.settings.machine, bound.port)
                for bound in self.controller_listeners
                if bound.name == listener
            ]
        return [
            (controller.id, end.host, end.port)
            for _, controller in sorted(self.image.controllers.items())
            for end in controller.listeners
            if end.name == listener
        ]

    @property
    def is_voter(self) -> bool:
        return self.metadata.quorum.raft.is_voter

    @property
    def voters(self) -> int:
        return len(self.metadata.quorum.raft.voters)

    @property
    def data_dirs(self) -> list[str]:
        return [directory.path for directory in self.log_dirs.data]

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

    async def metadata_settled(self, created: bool) -> None:
        """Returns when this broker has carried out all metadata that it has seen so far; with
        `created`, files of new partitions are waited for as well, but not for long."""
        if hasattr(self, "replicas"):  # a controller without a broker has none
            await (self.replicas.created() if created else self.replicas.applied())

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

    # ---- what the metadata changes ----

    def _tell_left_aside(self, delta: Delta, image: ClusterImage) -> None:
        """Tells what topics have been given, and this release does not take."""
        check = partial(TopicSettings.checked, node=self.settings)
        for kind, name in delta.configs:
            if kind == TOPIC and (left := taken(image.config(kind, name), check).left_aside):
                self.note(EventKind.SETTINGS_LEFT_ASIDE, f"topic {name}", ", ".join(left))

    def _keep_rules(self, image: ClusterImage) -> None:
        """Serves clients, unless the cluster has ACLs."""
        self.access = RefuseClients() if image.security.forbids else self._granted

    def _on_change(self, delta: Delta, image: ClusterImage) -> None:
        tell_changes(self, delta, image)
        if delta.security:
            before = self.access
            self._keep_rules(image)
            if self._started and type(self.access) is not type(before):
                self.tasks.spawn(self.lifecycle.beat(), name="heartbeat of changed rules")
        if delta.configs:
            self._refresh_settings()
            self._tell_left_aside(delta, image)
            self.clock_guard.on_configs()
        if delta.created or delta.deleted or delta.partitions or delta.brokers:
            self.topology += 1
        changed = list(_topics_of(delta, image))
        if changed or _racks_differ(delta, image):
            self.shape += 1
        if delta.deleted:
            self.departures += 1
        if delta.brokers:
            self.channels.on_change(delta, image)
        self.replicas.apply(delta, image)
        if delta.configs or delta.features:
            configure(self)
        if delta.partitions or delta.deleted:
            self.txn_markers.metadata_changed()
        self.group_coordinators.topics_changed(changed)

    def on_lead(self, partition: Partition) -> None:
        """This broker leads the partition in an epoch that may be new."""
        shards = self._shards_of(partition)
        if shards is not None:
            shards.lead(partition)

    def on_log_dir_failed(self) -> None:
        """A log directory failed, and its replicas with it: the controller hears of it at once."""
        if self._started:
            self.tasks.spawn(self.lifecycle.beat(), name="heartbeat of a failed directory")

    def on_departure(self) -> None:
        """A replica is no longer here, or of no use any more: nobody should keep it in mind."""
        self.departures += 1

    def on_moved(self) -> None:
        """A replica has another log now: nobody should keep the old one in mind."""
        self.departures += 1
        self.dispatch.forget_partitions()

    def on_replicas_removed(self, partitions: Iterable[Partition]) -> None:
        """The partitions are no longer here, or of no use any more."""
        self.dispatch.forget_partitions()
        for partition in partitions:
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
        before = self.settings.left_aside
        self.settings = effective_settings(self.static_settings, self.image, self.id)
        if self.settings.left_aside not in ((), before):
            text = ", ".join(self.settings.left_aside)
            self.note(EventKind.SETTINGS_LEFT_ASIDE, f"broker {self.id}", text)
        self.server.limits = _limits(self.settings, self.world)
        self._set_fast_paths()
        self.settings_changed.set()
        self.settings_changed = asyncio.Event()

    def _handle(self, connection: Connection, frame: memoryview) -> Parts | Parked | None:
        if self.controller_listeners and self.is_controller_listener(connection.listener):
            return self._controller_dispatch.handle(connection, frame)
        return self.dispatch.handle(connection, frame)

    def _unreadable(self, path: str, error: OSError) -> None:
        self.replicas.unreadable(path, error)


def _topics_of(delta: Delta, image: ClusterImage) -> Iterator[str]:
    """Names of the topics that were made, grew, went or have other replicas.

    Who leads a partition and who is in sync is nothing to a group.
    """
    for topic in delta.deleted.values():
        yield topic.name
    for topic_id, before in delta.partitions.items():
        known = image.topics_by_id.get(topic_id)
        if known is not None and any(
            partition is None or partition.replicas != known.partitions[index].replicas
            for index, partition in before.items()
        ):
            yield known.name


def _racks_differ(delta: Delta, image: ClusterImage) -> bool:
    for broker_id, before in delta.brokers.items():
        after = image.brokers.get(broker_id)
        if (before and before.rack) != (after and after.rack):
            return True
    return False


def _limits(settings: NodeSettings, world: World) -> ConnectionLimits:
    share = max(world.memory_bytes // REQUESTS_SHARE, settings.socket_request_max_bytes)
    memory = settings.queued_max_request_bytes
    return ConnectionLimits(
        max_request_bytes=settings.socket_request_max_bytes,
        request_memory_bytes=memory if memory > 0 else share,
        max_connections=settings.max_connections,
        max_connections_per_ip=settings.max_connections_per_ip,
        max_connections_per_ip_overrides=dict(settings.connections_per_ip),
        idle_ms=settings.connections_max_idle_ms,
    )
