"""The metadata of a node: its part in the quorum, its image of the cluster, its controller.

Three duties, each by itself: `quorum` keeps the log that all agree on, `follower` folds what is
committed of it into the image, and `active` is there while this node leads the quorum. This puts
them together: an epoch that is won makes an active controller, one that is lost ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scriba.broker.metadata.active import ActiveController
from scriba.broker.metadata.describe import describe_quorum
from scriba.broker.metadata.follower import MetadataFollower, Subscriber
from scriba.broker.metadata.quorum import Identity, MetadataQuorum
from scriba.broker.observe.events import Note
from scriba.config import StartError
from scriba.controller.features import SUPPORTED
from scriba.controller.image import ClusterImage, ImageError
from scriba.controller.machine import Controller
from scriba.errors import ErrorCode, KafkaError
from scriba.instant import Instant
from scriba.raft.messages import Leadership, Voter
from scriba.runtime.loop.pace import Pace, in_slices
from scriba.runtime.loop.tasks import Tasks
from scriba.runtime.ports import World
from scriba.runtime.watermark import Watermark
from scriba.settings import NodeSettings
from scriba.wire.messages.quorum import DescribeQuorumRequest
from scriba.wire.schema import Message

if TYPE_CHECKING:
    from scriba.broker.request import Context

FirstRecords = Callable[[ClusterImage, int], list[Message]]
"""Given the image and the newest time in the log, the records that go in with the first ones."""


class QuorumController:
    def __init__(
        self,
        world: World,
        log_dir: str,
        *,
        node_id: int,
        cluster_id: str,
        directory_id: bytes,
        settings: NodeSettings,
        tasks: Tasks,
        note: Note,
        supported: Mapping[str, tuple[int, int]] = SUPPORTED,
        on_refused: Callable[[str], None] | None = None,
        has_room: Callable[[], bool] = lambda: True,
        broker_epoch: Callable[[], int] = lambda: -1,
    ) -> None:
        """`log_dir` is the directory that holds the metadata log, `directory_id` its id.

        `on_refused` is told what the device did not take; `has_room` tells whether this broker can
        make another partition, `broker_epoch` under which epoch it is registered, -1 for none.
        """
        self.quorum: MetadataQuorum
        self.follower = MetadataFollower(world, settings, tasks, on_refused)
        self.active: ActiveController | None = None
        """While this node leads the quorum, and has read all of its log."""
        self._world = world
        self._log_dir = log_dir
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._settings = settings
        self._tasks = tasks
        self._note = note
        self._supported = supported
        self._on_refused = on_refused
        self._has_room = has_room
        self._broker_epoch = broker_epoch
        endpoints = tuple(
            (e.name, e.host, e.port)
            for e in settings.endpoints
            if e.name in settings.controller_names
        )
        self._identity = Identity(Voter(node_id, directory_id), endpoints)
        self._started = False

    @property
    def image(self) -> ClusterImage:
        return self.follower.image

    @property
    def applied(self) -> Watermark:
        return self.follower.applied

    def subscribe(self, subscriber: Subscriber) -> None:
        self.follower.subscribe(subscriber)

    # ---- start and stop ----

    async def start(
        self,
        *,
        clean: bool = False,
        also: FirstRecords = lambda image, newest_ms: [],
    ) -> None:
        """Opens the metadata log and takes part in its quorum. StartError when that cannot be.

        A node that is the only voter leads when this returns. The image is complete with the first
        call that returns: its commit is also that of all records before it, so a broker that
        registers pays for one flush, not for two.
        """
        try:
            self.quorum, snapshot, batches = await MetadataQuorum.open(
                self._world,
                self._log_dir,
                self._identity,
                self._settings,
                self._tasks,
                self._note,
                clean=clean,
            )
            self.quorum.log.on_refused = self._on_refused
            self.quorum.on_leadership = self._on_leadership
            self.follower.load(self.quorum, snapshot, batches)
            newest_ms = self.follower.last_timestamp  # of an earlier life, not of this one
            await self.quorum.begin()
            if self.quorum.is_leader:
                await self._activate(self.quorum.epoch, lambda image: also(image, newest_ms))
        except ImageError as error:
            raise StartError(f"the metadata of the cluster cannot be followed: {error}") from error
        except UnsupportedFeature as error:
            raise StartError(f"{error}; start a release that supports it") from error
        self._started = True
        self.follower.start()

    async def stop(self) -> None:
        """Closes the log when all that was appended is flushed."""
        self.follower.stop()
        if self.active is not None:
            self.active.end()
        await self.quorum.close()

    # ---- leading ----

    def _on_leadership(self, leadership: Leadership) -> None:
        if self.active is not None:
            self.active.end()
            self.active = None
        if self._started and leadership.leader == self._node_id:
            self._tasks.spawn(self._activate(leadership.epoch), name="active controller")

    async def _activate(
        self, epoch: int, also: Callable[[ClusterImage], list[Message]] = lambda image: []
    ) -> None:
        """Makes the active controller of an epoch, unless it is lost meanwhile."""
        image = await self.follower.speculative()
        machine = Controller(
            image,
            node_id=self._node_id,
            cluster_id=self._cluster_id,
            settings=self._settings,
            uuid=self._world.rng.uuid,
            below=self._world.rng.below,
            supported=self._supported,
        )
        await in_slices(machine.prepare(), Pace(self._world.clock))
        if self.quorum.leadership != (epoch, self._node_id):
            return
        # The broker of this process lives; one that was here before it died with its own process.
        own = image.brokers.get(self._node_id)
        lives = own is not None and own.epoch == self._broker_epoch()
        try:
            first = machine.activate(
                self._world.clock.now(),
                own_broker=self._node_id,
                own_incarnation=own.incarnation_id if own is not None and lives else None,
            )
        except KafkaError as error:
            raise UnsupportedFeature(error.message) from error
        active = ActiveController(
            self.quorum,
            self.follower,
            machine,
            epoch,
            self._world.clock,
            self._settings,
            self._has_room,
        )
        active.begin([*first, *also(image)])
        self.active = active
        self.quorum.changed.wake()

    # ---- requests ----

    async def call(
        self, request: Message, version: int | None = None, ctx: Context | None = None
    ) -> Any:
        """What the active controller of this node answers; NOT_CONTROLLER when there is none."""
        if isinstance(request, DescribeQuorumRequest):
            return describe_quorum(self.quorum, request, self._world.clock.now())
        if self.active is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        return await self.active.call(request, version, ctx)

    # ---- background ----

    async def tick(self, now: Instant) -> None:
        """One bounded pass, due at least every half second: sessions, idle records, snapshots."""
        if self.active is not None:
            with self.unless_refused():
                await self.active.tick(now)
        self.follower.tick(now)

    @contextmanager
    def unless_refused(self) -> Iterator[None]:
        """For work that comes again by itself, when the device takes no writes or another leads.

        A full disk is no reason to stop: what is there can still be read. A log that failed is.
        """
        try:
            yield
        except KafkaError as error:
            if error.code is ErrorCode.NOT_CONTROLLER:
                return
            refused = error.code is ErrorCode.KAFKA_STORAGE_ERROR
            if not refused or self.quorum.log.failure is not None:
                raise


class UnsupportedFeature(Exception):
    """The cluster is at a level of a feature that this release does not know."""
