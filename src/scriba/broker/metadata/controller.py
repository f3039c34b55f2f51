"""The metadata of a node: its part in the quorum, its image of the cluster, its controller.

Three duties, each by itself: `quorum` keeps the log that all agree on, `follower` folds what is
committed of it into the image, and `active` is there while this node leads the quorum. This puts
them together: an epoch that is won makes an active controller, one that is lost ends it.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from scriba.broker.channels import Address, NodeChannels
from scriba.broker.metadata.active import ActiveController
from scriba.broker.metadata.balance import AutomaticBalance
from scriba.broker.metadata.elections import OfflineWatch
from scriba.broker.metadata.follower import MetadataFollower, NotFollowed, Subscriber
from scriba.broker.metadata.quorum import snapshots
from scriba.broker.metadata.quorum.changes import VoterChanges
from scriba.broker.metadata.quorum.describe import describe_quorum
from scriba.broker.metadata.quorum.founding import Found, Founding
from scriba.broker.metadata.quorum.opening import open_quorum
from scriba.broker.metadata.quorum.quorum import MetadataQuorum
from scriba.broker.metadata.quorum.quorum_state import QUORUM_STATE
from scriba.broker.metadata.quorum.snapshots import QuorumFacts
from scriba.broker.metadata.quorum.transport import WireTransport
from scriba.broker.metadata.quorum.voters import KRAFT_LEVEL, Identity, Membership, voters_record
from scriba.broker.metadata.quorum.wire import (
    TOPIC,
    Endpoints,
    Sender,
    WireError,
    add_voter_request,
    remove_voter_request,
)
from scriba.broker.metadata.unclean import ReplicaSurvey
from scriba.broker.observe.counters import Counters
from scriba.broker.observe.events import Note
from scriba.config import StartError
from scriba.controller.brokers import STOPPED
from scriba.controller.features import SUPPORTED
from scriba.controller.image import KRAFT_VERSION, ClusterImage, Delta, ImageError
from scriba.controller.machine import Controller
from scriba.controller.partitions.unclean import Choice
from scriba.errors import ErrorCode, KafkaError, error_code
from scriba.events import EventKind
from scriba.instant import Instant
from scriba.peers.errors import ClientError
from scriba.raft.messages import Leadership, Position, Voter
from scriba.runtime.loop.pace import Pace, in_slices
from scriba.runtime.loop.tasks import Tasks
from scriba.runtime.ports import World
from scriba.runtime.watermark import Watermark
from scriba.settings import NodeSettings
from scriba.storage.results import as_no_room
from scriba.wire.messages.admin import ElectLeadersRequest, ElectLeadersResponse
from scriba.wire.messages.configs import UpdateFeaturesRequest, UpdateFeaturesResponse
from scriba.wire.messages.quorum import (
    AddRaftVoterRequest,
    DescribeQuorumRequest,
    RemoveRaftVoterRequest,
)
from scriba.wire.schema import Message
from scriba.wire.uuids import to_text

if TYPE_CHECKING:
    from scriba.broker.ports import BrokerClient
    from scriba.broker.request import Context

ADDRESS_PAUSE_S: Final = 1
"""Between two attempts of a voter to tell where it is."""

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
        channels: NodeChannels | None = None,
        endpoints: Endpoints = (),
        brokers: BrokerClient | None = None,
        counters: Counters | None = None,
    ) -> None:
        """`log_dir` is the directory that holds the metadata log, `directory_id` its id.

        `on_refused` is told what the device did not take; `has_room` tells whether this broker can
        make another partition, `broker_epoch` under which epoch it is registered, -1 for none.
        `endpoints` are where other controllers reach this one, by `channels`. `brokers` are asked
        what their replicas have before one is elected uncleanly.
        """
        self.cluster_id = cluster_id
        self.follower = MetadataFollower(world, settings, tasks, note, on_refused)
        self.follower.on_stopped = self._on_stopped
        self.active: ActiveController | None = None
        """While this node leads the quorum, and has read all of its log."""
        self._world = world
        self._log_dir = log_dir
        self._node_id = node_id
        self._settings = settings
        self._tasks = tasks
        self._note = note
        self._offline = OfflineWatch(note)
        self._balance = AutomaticBalance(note, world.clock)
        self._supported = supported
        self._on_refused = on_refused
        self._has_room = has_room
        self._broker_epoch = broker_epoch
        self._channels = channels
        self._survey: ReplicaSurvey | None = None
        if brokers is not None:
            self._survey = ReplicaSurvey(self, brokers, tasks, note, counters or Counters())
        self._identity = Identity(Voter(node_id, directory_id), endpoints)
        self._quorum: MetadataQuorum | None = None
        self._changes: VoterChanges | None = None
        self._founding: Founding | None = None
        self.not_joined = ""
        """Why a controller that would be a voter is none yet, as the leader said last."""
        self._voted = False
        """Whether this node was a voter, and all know it."""
        self._started = False
        self.newest_ms = -1
        """The newest time in the log when it was opened: of an earlier life, not of this one."""
        self.led_at_start = False
        """Whether this node is the only voter, so that what it wrote at first is its own."""

    @property
    def quorum(self) -> MetadataQuorum:
        if self._quorum is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "this controller is starting")
        return self._quorum

    @property
    def changes(self) -> VoterChanges:
        """Of the voters, while this node leads."""
        assert self.quorum is not None
        if self._changes is None:
            self._changes = VoterChanges(
                self.quorum, self.cluster_id, self._settings, self._world.clock, self._note
            )
        return self._changes

    @property
    def leader_id(self) -> int | None:
        """The active controller, as far as this node knows."""
        return None if self._quorum is None else self._quorum.leadership.leader

    @property
    def image(self) -> ClusterImage:
        return self.follower.image

    @property
    def applied(self) -> Watermark:
        return self.follower.applied

    def subscribe(self, subscriber: Subscriber) -> None:
        self.follower.subscribe(subscriber)

    # ---- a cluster to belong to ----

    async def find_cluster(self, known: str | None, new_id: Callable[[], str]) -> str:
        """The id of the cluster that this node belongs to, founded if it must be.

        StartError where that cannot be told. `known` is the id in the node's directories.
        """
        others = self._settings.other_controllers
        if known is None:
            self._forget_unborn()
        if not others:
            return known or new_id()
        assert self._channels is not None
        empty = self._is_empty()
        founding = Founding(
            self._channels,
            self._identity,
            others,
            self._settings.quorum_voters,
            new_id,
            self._note,
            clock=self._world.clock,
            known=known,
            may_found=self._settings.is_controller and empty,
            patience_ms=None
            if self._settings.is_controller
            else self._settings.initial_broker_registration_timeout_ms,
        )
        if known is not None and not empty:
            await founding.confirm()
            return known
        self._founding = founding
        try:
            found = await founding.run()
        finally:
            self._founding = None
        if found.voters is not None:
            await self._found(found)
        return found.cluster_id

    def meet(self, identity: Identity) -> bool:
        """A controller that has no cluster yet names itself; whether this node has none, too."""
        if self._founding is None:
            return False
        self._founding.meet(identity)
        return True

    @property
    def _directory(self) -> str:
        return f"{self._log_dir}/{TOPIC}-0"

    def _is_empty(self) -> bool:
        """Whether this node never had metadata, nor promised anything to anybody."""
        disk, directory = self._world.disk, self._directory
        if not disk.exists(directory):
            return True
        names = disk.list(directory)
        return QUORUM_STATE not in names and not any(
            name.endswith((".log", snapshots.SUFFIX)) and disk.size(f"{directory}/{name}")
            for name in names
        )

    def _forget_unborn(self) -> None:
        """Removes the voters of a cluster that nobody heard of: a founding ended in a crash."""
        path = f"{self._directory}/{snapshots.file_name(Position(0, 0))}"
        if self._world.disk.exists(path):
            self._world.disk.unlink(path)

    def make_directory(self) -> None:
        """To be called before the names of the log directory are synced, and that before `start`:
        this node votes before it flushes the metadata log for the first time."""
        with as_no_room(f"{self._directory} cannot be made"):
            self._world.disk.mkdir(self._directory)

    async def _found(self, found: Found) -> None:
        """Writes down who votes, before anybody hears of the cluster."""
        assert found.voters is not None
        disk = self._world.disk
        position = Position(0, 0)
        facts = QuorumFacts(KRAFT_LEVEL, voters_record(found.voters))
        self.make_directory()
        with as_no_room(f"{self._directory} cannot be written"):
            batches = snapshots.encoded(position, facts, None, self._world.clock.wall_ms())
            await snapshots.write(disk, self._directory, position, _each(batches))

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
            quorum, snapshot, batches = await open_quorum(
                self._world,
                self._log_dir,
                self._membership(),
                self._settings,
                self._tasks,
                self._note,
                clean=clean,
            )
            if self._on_refused is not None:
                quorum.on_refused = self._on_refused
            quorum.on_leadership = self._on_leadership
            quorum.transport = self._transport(quorum)
            self._quorum = quorum
            self.follower.load(quorum, snapshot, batches)
            newest_ms = self.newest_ms = self.follower.last_timestamp
            await self.quorum.begin()
            if self.quorum.is_leader:
                await self._activate(self.quorum.epoch, lambda image: also(image, newest_ms))
                self.led_at_start = True
        except ImageError as error:
            raise StartError(f"the metadata of the cluster cannot be followed: {error}") from error
        except UnsupportedFeature as error:
            raise StartError(f"{error}; start a release that supports it") from error
        self._started = True
        self.follower.start()
        if self.quorum.leadership.leader not in (None, self._node_id):
            self._tasks.spawn(self._take_part(self.quorum.leadership), name="voter")

    def _membership(self) -> Membership:
        settings = self._settings
        return Membership(
            self._identity,
            settings.quorum_voters,
            tuple(-2 - number for number in range(len(settings.other_controllers))),
            alone=not settings.other_controllers,
        )

    def _transport(self, quorum: MetadataQuorum) -> WireTransport | None:
        settings = self._settings
        if self._channels is None:
            return None
        configured = {v.node_id: (v.host, v.port) for v in settings.quorum_voters}

        def addresses_of(peer: int) -> list[Address]:
            if peer < 0:
                return [settings.other_controllers[-2 - peer]]
            named = quorum.history.address(peer, settings.controller_names)
            return list(dict.fromkeys(a for a in (named, configured.get(peer)) if a is not None))

        transport = WireTransport(
            self._channels,
            Sender(self.cluster_id, self._identity.voter, self._identity.endpoints),
            self._tasks,
            addresses_of,
            settings.controller_quorum_request_timeout_ms,
            settings.controller_quorum_fetch_max_bytes,
            settings.controller_quorum_fetch_snapshot_max_bytes,
            self.follower.applied,
        )
        transport.client = quorum
        return transport

    async def resign(self) -> None:
        """Leaves the lead to another controller, if there is one."""
        if self._quorum is not None:
            await self._quorum.resign()

    async def stop(self) -> None:
        """Closes the log when all that was appended is flushed."""
        self.follower.stop()
        if self.active is not None:
            self.active.end()
        if self._quorum is not None:
            await self._quorum.close()

    # ---- leading ----

    def _on_leadership(self, leadership: Leadership) -> None:
        if self.active is not None:
            self.active.end()
            self.active = None
        if not self._started:
            return
        self._note(EventKind.QUORUM_LEADER, f"epoch {leadership.epoch}", _told(leadership))
        if leadership.leader == self._node_id:
            self._tasks.spawn(self._lead(leadership.epoch), name="active controller")
        elif leadership.leader is not None:
            self._tasks.spawn(self._take_part(leadership), name="voter")

    async def _take_part(self, leadership: Leadership) -> None:
        """A voter that listens elsewhere than the log has it tells the leader, until it knows. One
        that is none, and shall be, asks to be made one."""
        quorum, own = self.quorum, self._identity.endpoints
        joins = self._settings.controller_quorum_auto_join_enable
        told, since = False, self._world.clock.mono_ms()
        while quorum.transport is not None and own and quorum.leadership == leadership:
            assert leadership.leader is not None
            joins = joins and not self._was_removed()
            with suppress(ClientError, WireError):
                # Who has yet to read its log does not know whether it is a voter there.
                if quorum.raft.is_voter and quorum.facts.voters is not None:
                    if quorum.voter_endpoints().get(self._node_id) == own and not joins:
                        return
                    if quorum.voter_endpoints().get(self._node_id) != own:
                        await quorum.transport.update_voter(leadership.leader, leadership.epoch)
                elif quorum.raft.is_voter and not told:
                    # It is known by its id alone; somebody may want to write its directory down.
                    answer = await quorum.transport.update_voter(
                        leadership.leader, leadership.epoch
                    )
                    told = not answer.error_code
                elif joins and quorum.facts.voters is not None and self._has_caught_up():
                    await self._join(leadership.leader, since)
            await asyncio.sleep(ADDRESS_PAUSE_S)

    def _was_removed(self) -> bool:
        """Whether somebody took this voter out: then it does not put itself in again."""
        raft, history = self.quorum.raft, self.quorum.history
        if raft.is_voter and raft.voters_since < raft.high_watermark:
            self._voted = True
        return not raft.is_voter and (self._voted or history.removed_at(raft.own) >= 0)

    def _has_caught_up(self) -> bool:
        """Whether the voters that this node knows are those that count."""
        raft = self.quorum.raft
        return raft.high_watermark > 0 and raft.high_watermark == raft.log.end_offset

    async def _join(self, leader: int, since: int) -> None:
        """Asks to be made a voter. One with the same id is this node before it lost its disk: that
        one is removed first (KIP-1186), unless it lives. `since` when this leader is known."""
        quorum, transport = self.quorum, self.quorum.transport
        assert transport is not None
        former = quorum.raft.voters.get(self._node_id)
        request: AddRaftVoterRequest | RemoveRaftVoterRequest
        if former is not None:
            if alive := await self._lives(former, leader, since):
                self._not_joined(leader, alive)
                return
            request = remove_voter_request(self.cluster_id, former)
        else:
            sender = Sender(self.cluster_id, self._identity.voter, self._identity.endpoints)
            request = add_voter_request(sender, self._settings.request_timeout_ms)
        answer = await transport.ask_for_voter(leader, request)
        if answer.error_code == ErrorCode.DUPLICATE_VOTER:
            # An earlier request was carried out, and its answer lost: the log brings it.
            return
        if answer.error_code:
            self._not_joined(leader, answer.error_message or error_code(answer.error_code).text)

    def _not_joined(self, leader: int, text: str) -> None:
        self.not_joined = text
        self._note(EventKind.QUORUM_NOT_JOINED, f"controller {leader}", text)

    async def _lives(self, former: Voter, leader: int, since: int) -> str:
        """What tells that a voter with this node's id lives; nothing if it does not, as far as the
        leader knows. One that is new has to be given time to hear of it."""
        transport, patience = self.quorum.transport, self.quorum.raft.patience_ms
        assert transport is not None
        silent = await transport.silence(leader, former)
        known = self._world.clock.mono_ms() - since
        if (known if silent is None else silent) >= patience:
            return ""
        heard = "may live" if silent is None else f"fetched {silent} ms ago"
        return (
            f"controller {former.id} is a voter with another directory, {to_text(former.directory)}"
            f", and {heard}: if it is to stay, give this one another node.id; else stop it"
        )

    async def _lead(self, epoch: int) -> None:
        """Leads, or leaves that to another controller where the cluster has what this one lacks,
        or the log what it cannot follow."""
        try:
            await self._activate(epoch)
        except (UnsupportedFeature, ImageError, NotFollowed) as error:
            self._note(EventKind.QUORUM_NOT_LED, f"epoch {epoch}", str(error))
            await self.resign()

    def _on_stopped(self) -> None:
        """The image does not follow any more: whoever decides by it must not."""
        if self.active is not None:
            self.active.end()
            self.active = None
            self.quorum.changed.wake()
            self._tasks.spawn(self.resign(), name="resignation")

    async def _activate(
        self, epoch: int, also: Callable[[ClusterImage], list[Message]] = lambda image: []
    ) -> None:
        """Makes the active controller of an epoch, unless it is lost meanwhile."""
        image = await self.follower.speculative()
        machine = Controller(
            image,
            node_id=self._node_id,
            cluster_id=self.cluster_id,
            settings=self._settings,
            uuid=self._world.rng.uuid,
            below=self._world.rng.below,
            supported=self._supported,
        )
        await in_slices(machine.prepare(), Pace(self._world.clock))
        if self.quorum.leadership != (epoch, self._node_id):
            return
        if self.follower.stopped:
            raise ImageError(self.follower.stopped)
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
            self._look_after,
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
        match request:
            case AddRaftVoterRequest():
                return await self.changes.add(request)
            case RemoveRaftVoterRequest():
                return await self.changes.remove(request)
            case UpdateFeaturesRequest() if _raises_kraft(request):
                return await self._raise_kraft(request, version, ctx)
            case ElectLeadersRequest():
                return await self._elect(request, version, ctx)
        return await self.active.call(request, version, ctx)

    def _look_after(self) -> None:
        """Tells and asks what the machine of the active controller has to."""
        if self.active is not None:
            for news in self.active.machine.take_news():
                if news.broker_id == self._node_id:
                    continue  # it starts and stops with this process, which tells of that itself
                kind = EventKind.BROKER_FENCED if news.fenced else EventKind.BROKER_UNFENCED
                if news.fenced and news.cause == STOPPED:
                    kind = EventKind.BROKER_STOPPED
                self._note(kind, f"broker {news.broker_id}", news.cause)
        if self._survey is not None:
            self._survey.look()

    async def _elect(
        self, request: ElectLeadersRequest, version: int | None, ctx: Context | None
    ) -> Any:
        """An unclean election goes by what replicas answer."""
        active = self.active
        assert active is not None
        questions = active.machine.questions(request)
        if not questions or self._survey is None:
            return await active.call(request, version, ctx)
        wait_ms = active.machine.state.settings.scriba_unclean_wait_ms
        answers = await self._survey.ask(questions, wait_ms)
        active.machine.note_answers(questions, answers)
        response: ElectLeadersResponse = await active.call(request, version, ctx)
        self._survey.tell(
            [
                Choice(f"{topic.topic}-{each.partition_id}", each.error_message)
                for topic in response.replica_election_results
                for each in topic.partition_result
                if not each.error_code and each.error_message
            ]
        )
        return response

    async def _raise_kraft(
        self, request: UpdateFeaturesRequest, version: int | None, ctx: Context | None
    ) -> Any:
        """The level of the quorum's own records is the quorum's to write, after all else in the
        request is found to be right."""
        assert self.active is not None
        trial = copy.copy(request)
        trial.validate_only = True
        checked: UpdateFeaturesResponse = await self.active.call(trial, version, ctx)
        if checked.error_code or self.quorum.facts.voters is not None:
            return checked if checked.error_code else await self.active.call(request, version, ctx)
        try:
            self.changes.check_upgrade()
        except KafkaError as error:
            return UpdateFeaturesResponse(error_code=error.code, error_message=error.message)
        if request.validate_only:
            return checked
        active = self.active
        await self.changes.upgrade()
        active.machine.image.set_feature(KRAFT_VERSION, KRAFT_LEVEL, Delta())
        return await active.call(request, version, ctx)

    # ---- background ----

    async def tick(self, now: Instant) -> None:
        """One bounded pass, due at least every half second: sessions, idle records, snapshots."""
        if self.active is not None:
            with self.unless_refused():
                await self.active.tick(now)
        self._offline.look(None if self.active is None else self.active.machine, now)
        if self._quorum is not None:
            self.follower.tick(now)

    async def balance(self) -> None:
        """One pass over what the active controller moves by itself."""
        with self.unless_refused():
            await self._balance.look(self.active)

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


def _raises_kraft(request: UpdateFeaturesRequest) -> bool:
    return any(
        update.feature == KRAFT_VERSION and update.max_version_level == KRAFT_LEVEL
        for update in request.feature_updates
    )


def _told(leadership: Leadership) -> str:
    if leadership.leader is None:
        return "nobody leads the quorum"
    return f"controller {leadership.leader} leads the quorum"


async def _each(batches: Iterable[bytearray]) -> AsyncIterator[bytearray]:
    for batch in batches:
        yield batch


class UnsupportedFeature(Exception):
    """The cluster is at a level of a feature that this release does not know."""
