"""A consumer in its group: carries out what the machine of its membership decides.

One task talks to the coordinator, one request after the other, on a connection of its own, since
JoinGroup and SyncGroup wait there for other members. What happens to the application's partitions
happens in `turn`, which every poll takes when `due` says so: first the commit, then the listener,
then the positions. A turn that was begun is finished even if the poll that began it was cancelled;
the next one waits for it.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextvars import ContextVar
from typing import Any, Final

from scriba.client.cluster import Cluster
from scriba.client.consuming.fetcher import Fetcher
from scriba.client.consuming.positions import Positions
from scriba.client.consuming.subscription import Subscription
from scriba.client.coordinator import Coordinator, CoordinatorKind
from scriba.client.group.assignors import ASSIGNORS
from scriba.client.group.membership.classic import NO_GENERATION, Classic, Phase
from scriba.client.group.membership.model import Change, Identity, Subscribed
from scriba.client.group.membership.reconciling import JOIN_EPOCH, Reconciling
from scriba.client.group.offsets import GroupOffsets
from scriba.client.model import ConsumerGroupMetadata, TopicPartition
from scriba.client.settings import ConsumerSettings
from scriba.errors import ErrorCode, error_code
from scriba.peers.errors import BrokerError, ClientError, Closed
from scriba.peers.ports import Backoff
from scriba.wire.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from scriba.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from scriba.wire.schema import Message
from scriba.wire.uuids import to_text

log = logging.getLogger(__name__)

_ANSWERS: Final[dict[type[Message], type[Message]]] = {
    JoinGroupRequest: JoinGroupResponse,
    SyncGroupRequest: SyncGroupResponse,
    HeartbeatRequest: HeartbeatResponse,
    LeaveGroupRequest: LeaveGroupResponse,
    ConsumerGroupHeartbeatRequest: ConsumerGroupHeartbeatResponse,
}

_SEVERAL_LEAVE: Final = 3
_TOPICS_BY_ID: Final = 12
_FAREWELL_MS: Final = 1_000
"""How much of the time of a close, or half of it, is left for telling the group."""

_LATE_MS: Final = 5_000
"""How much later than the rebalance itself the answer to JoinGroup may come."""


class _ListenerCall:
    """A listener that is being told something, until it has returned; then of no group."""

    __slots__ = ("group",)

    def __init__(self, group: "Group") -> None:
        self.group: Group | None = group


_telling: ContextVar[_ListenerCall | None] = ContextVar("telling", default=None)
"""Goes with what a listener calls, through tasks and threads."""


class Group:
    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        group_id: str,
        positions: Positions,
        fetcher: Fetcher,
    ) -> None:
        self.touched = False
        """Set by whoever takes records without a turn: the application is alive."""
        self.waiting = 0
        """Polls that wait at this moment; meanwhile the application is alive, too."""
        self.subscription: Subscription | None = None
        self.offsets = GroupOffsets(cluster, settings, group_id, positions, fetcher)
        self.offsets.member = self._committer
        self.offsets.reader = self._reader
        self.offsets.refused = self._commit_refused
        self._cluster = cluster
        self._settings = settings
        self._clock = cluster.ports.clock
        self._positions = positions
        self._fetcher = fetcher
        self._identity = Identity(
            group_id,
            settings.group_instance_id,
            settings.client_rack or None,
            settings.session_timeout_ms,
            settings.heartbeat_interval_ms,
            settings.max_poll_interval_ms,
            tuple(ASSIGNORS[name] for name in settings.partition_assignment_strategy),
            settings.group_remote_assignor,
        )
        self._machine: Classic | Reconciling = self._new_machine()
        self._coordinator = Coordinator(cluster, CoordinatorKind.GROUP, group_id, "group")
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._changing: asyncio.Task[Exception | None] | None = None
        self._end: float | None = None
        """When the application's part in a close has to end, on the loop's clock."""
        self._limits: set[asyncio.Timeout] = set()
        """Of what that would cut short."""
        self._given: ConsumerGroupMetadata | None = None
        """Who this was when it last got partitions."""
        self._turn_wanted = False
        self._topics: frozenset[str] = frozenset()
        rng = cluster.ports.rng
        self._backoff = Backoff(rng, settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self.trouble: ClientError | None = None
        """Why the coordinator is asked again; None when it answers."""

    def _new_machine(self) -> "Classic | Reconciling":
        if self._settings.group_protocol == "classic":
            return Classic(self._identity)
        return Reconciling(self._identity, to_text(self._cluster.ports.rng.uuid()))

    @property
    def due(self) -> bool:
        """Whether the next poll has to take a turn."""
        return self._turn_wanted or self.offsets.due

    def metadata(self) -> ConsumerGroupMetadata:
        """The member that the application's partitions were given to. One that the group has
        dropped stays what it was until there are others: as nobody it would still be let commit
        what it had read, in a transaction, though it is no longer its own."""
        machine = self._machine
        out = machine.lost or machine.generation <= 0
        if out and self.subscription is not None and self._given is not None:
            return self._given
        member = self.subscription is not None and machine.generation > 0
        return ConsumerGroupMetadata(
            self._identity.group_id,
            machine.generation if member else NO_GENERATION,
            machine.member_id if self.subscription is not None else "",
            self._identity.instance_id,
        )

    # -- subscribing -----------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        wish = self._wish(subscription)
        self.subscription = subscription
        self._machine.polled(self._clock.mono_ms())
        if not self._tasks:
            spawn = self._cluster.tasks.spawn
            self._tasks = [
                spawn(self._run(), name="scriba-group"),
                spawn(self._follow_updates(), name="scriba-group-topics"),
            ]
            for task in self._tasks:
                task.add_done_callback(self._ended)
        if subscription.pattern is not None and isinstance(self._machine, Classic):
            internal_too = not self._settings.exclude_internal_topics
            self._cluster.want_matching(
                lambda name, internal: (internal_too or not internal) and subscription.matches(name)
            )
            return  # joins when it is known which topics there are
        self._cluster.want_matching(None)
        self._machine.want(wish)
        self._follow()

    def _wish(self, subscription: Subscription) -> Subscribed:
        if isinstance(self._machine, Reconciling):
            return Subscribed(subscription.topics, subscription.regex)
        return Subscribed(subscription.topics)

    async def leave(self, reason: str, timeout_ms: int, commit: bool = True) -> None:
        """Gives everything up, and tells the group. Without `commit` a listener that commits the
        positions commits nothing either. A listener that takes longer is cancelled."""
        self.offsets.withheld = not commit
        deadline = self._clock.mono_ms() + timeout_ms
        for task in self._tasks:
            task.cancel()
        self._tasks = []
        self._end_in(max(timeout_ms // 2, timeout_ms - _FAREWELL_MS))
        try:
            problem = await self._give_all_up(reason, deadline, commit)
        finally:
            self._end = None
        if problem is not None:
            raise problem

    def _end_in(self, left_ms: int) -> None:
        """From now on what the application does in a change has this time."""
        self._end = asyncio.get_running_loop().time() + left_ms / 1000
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(self._end)

    @contextlib.asynccontextmanager
    async def _until_the_end(self, what: str) -> AsyncIterator[None]:
        """Goes on until it is done, or a close has no more time for it."""
        limit = asyncio.timeout_at(self._end)
        self._limits.add(limit)
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            log.warning("%s was given up: the time of the close was over", what)
        finally:
            self._limits.discard(limit)

    async def _give_all_up(self, reason: str, deadline: int, commit: bool) -> Exception | None:
        """What went wrong in the application's part."""
        if self._changing is not None:
            await self._finish_change()
        machine, subscription = self._machine, self.subscription
        problem: Exception | None = None
        last = commit and not machine.lost
        await self.offsets.under_way(max(0, deadline - self._clock.mono_ms()), last)
        if last:
            left = max(0, deadline - self._clock.mono_ms())
            await self.offsets.commit_before_parting(left)
        if subscription is not None:
            if machine.owned:
                problem = await self._part(machine.owned, machine.lost)
            farewell = machine.leave(reason)
            self.subscription = None
            self._turn_wanted = False
            if farewell is not None:
                await self._say(farewell, deadline - self._clock.mono_ms())
        self._cluster.want_matching(None)
        self._want_topics()
        return problem

    async def _say(self, farewell: Message, timeout_ms: int) -> None:
        """A member that cannot say that it leaves is missed when its session ends."""
        coordinator = self._coordinator
        if isinstance(farewell, LeaveGroupRequest):
            # A connection of its own: on the other one a JoinGroup may be waiting. Heartbeats do
            # not wait, and a last one must not overtake the first.
            coordinator = Coordinator(
                self._cluster, CoordinatorKind.GROUP, self._identity.group_id, "farewell"
            )
            coordinator.node = self._coordinator.node
        try:
            work = self._ask(coordinator, farewell)
            await self._cluster.within(work, max(0, timeout_ms), "the farewell")
        except ClientError as failure:
            log.info("the group was not told that a member leaves: %s", failure)

    # -- in a poll -------------------------------------------------------------------------------

    async def turn(self) -> None:
        """What the group wants of the application; raises what the application has to know."""
        machine = self._machine
        self.refuse_listener("poll")
        for task in self._tasks:
            if task.done():
                task.result()  # it ends only by a mistake, which must not go unnoticed
        machine.polled(self._clock.mono_ms())
        if self.offsets.due:
            self.offsets.commit_automatically()
        if self.subscription is None:
            return
        error = machine.take_error()
        self._wake.set()
        if error is not None:
            self._look()
            raise error
        while self._changing is not None or machine.change() is not None:
            problem = await self._finish_change()
            self._follow()
            if problem is not None:
                raise problem
        self._look()

    async def _finish_change(self) -> Exception | None:
        if self._changing is None:
            change = self._machine.change()
            assert change is not None
            self._machine.begin(change)
            self._changing = self._cluster.tasks.spawn(self._carry_out(change), name="scriba-turn")
        changing = self._changing
        problem = await asyncio.shield(changing)
        if self._changing is changing:
            self._changing = None
        return problem

    async def _carry_out(self, change: Change) -> Exception | None:
        assert self.subscription is not None
        machine = self._machine
        problem: Exception | None = None
        if change.release:
            if not change.lost:
                settings = self._settings
                limit = min(settings.default_api_timeout_ms, settings.max_poll_interval_ms)
                async with self._until_the_end("the commit before giving up partitions"):
                    await self.offsets.commit_before_parting(limit)
            problem = await self._part(change.release, change.lost)
        if change.assign is not None:
            before = self._positions.assigned
            added = [where for where in change.assign if where not in before]
            self._assign(change.assign)
            if not machine.lost:
                self._given = self.metadata()
            problem = await self._tell(self.subscription.listener.assigned(added)) or problem
        machine.changed(change)
        self._wake.set()
        return problem

    async def _part(self, partitions: tuple[TopicPartition, ...], lost: bool) -> Exception | None:
        assert self.subscription is not None
        listener = self.subscription.listener
        told = listener.lost if lost else listener.revoked
        log.info("%s: %s", "lost" if lost else "given up", ", ".join(map(str, sorted(partitions))))
        problem = await self._tell(told(partitions))
        gone = set(partitions)
        self._assign([where for where in self._positions.assigned if where not in gone])
        return problem

    async def _tell(self, told: Coroutine[Any, Any, None]) -> Exception | None:
        """The application's own failure goes to its poll, when the rebalance is done."""
        telling = _ListenerCall(self)
        before = _telling.set(telling)
        try:
            async with self._until_the_end("a listener"):
                await told
        except Exception as problem:
            return problem
        finally:
            telling.group = None
            _telling.reset(before)
        return None

    def refuse_listener(self, call: str) -> None:
        """A listener that waited for the end of its own turn would wait for ever."""
        telling = _telling.get()
        if telling is not None and telling.group is self:
            raise ClientError(f"a listener cannot {call}", fix=f"{call} after it has returned")

    def _assign(self, partitions: Iterable[TopicPartition]) -> None:
        before = self._positions.assigned
        self._positions.assign(partitions, None)
        fresh = [a for where, a in self._positions.assigned.items() if where not in before]
        self.offsets.restore(fresh)
        self._want_topics()
        self._fetcher.poke()

    # -- in the background -----------------------------------------------------------------------

    async def _run(self) -> None:
        machine = self._machine
        while True:
            now = self._clock.mono_ms()
            if self._fetcher.moved() or self.touched or self.waiting:
                self.touched = False
                if not machine.lost:
                    machine.polled(now)
            request = machine.next(now)
            if request is not None:
                await self._exchange(request)
                self._follow()
                continue
            self._look()
            wake_at = machine.wake_at()
            pause = None if wake_at is None else max(0, wake_at - self._clock.mono_ms()) / 1000
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            self._wake.clear()

    async def _exchange(self, request: Message) -> None:
        machine = self._machine
        try:
            answer = await self._ask(self._coordinator, request)
        except ClientError as failure:
            self._coordinator.failed(failure)
            if not failure.retriable and not isinstance(failure, Closed):
                # Tried again once it was told; what the request said is to be said again, then.
                machine.unanswered(request, self._clock.mono_ms())
                machine.fail(failure)
                return
            self.trouble = failure
            log.debug("group %s: trying again after %s", self._identity.group_id, failure)
            await asyncio.sleep(self._backoff.next_ms() / 1000)
            machine.unanswered(request, self._clock.mono_ms())
        else:
            self.trouble = None
            self._backoff.reset()
            machine.answered(request, answer, self._clock.mono_ms())

    async def _ask(self, coordinator: Coordinator, request: Message) -> Message:
        """The answer; BrokerError when it says only that someone else has to be asked, or later."""
        connection = await coordinator.connect()
        version = connection.version(type(request))
        timeout_ms = self._settings.request_timeout_ms
        if isinstance(request, JoinGroupRequest | SyncGroupRequest):
            timeout_ms = max(timeout_ms, self._identity.max_poll_interval_ms + _LATE_MS)
        elif isinstance(request, HeartbeatRequest):
            timeout_ms = min(timeout_ms, self._identity.session_timeout_ms)
        elif isinstance(request, LeaveGroupRequest) and version < _SEVERAL_LEAVE:
            [me] = request.members
            request = LeaveGroupRequest(group_id=request.group_id, member_id=me.member_id)
        kind = _ANSWERS[type(request)]
        try:
            coming = connection.post(request, kind, version=version, timeout_ms=timeout_ms)
        except ValueError as unknown:
            # Something that was asked for, such as a static member, is newer than the broker.
            code = ErrorCode.UNSUPPORTED_VERSION
            raise BrokerError(code, str(unknown), about=connection.address) from unknown
        answer = await coming
        code = error_code(getattr(answer, "error_code", 0))
        if code.retriable:
            raise BrokerError(code, about=f"group {self._identity.group_id}")
        return answer

    # -- topics ----------------------------------------------------------------------------------

    async def _follow_updates(self) -> None:
        while True:
            await self._cluster.next_update()
            subscription = self.subscription
            matching = subscription is not None and subscription.pattern is not None
            if subscription is not None and matching and isinstance(self._machine, Classic):
                found = frozenset(filter(subscription.matches, self._cluster.topics))
                self._machine.want(Subscribed(found))
            self._follow()
            if isinstance(self._machine, Reconciling) and self._machine.unnamed:
                await self._name_topics(self._machine)

    def _follow(self) -> None:
        """Tells the machine what is known of topics, and the cluster what has to be."""
        machine = self._machine
        self._want_topics()
        if isinstance(machine, Reconciling):
            names = self._cluster.names
            machine.learn({i: names[i] for i in machine.unnamed if i in names})
            if machine.unnamed:
                self._cluster.stale()
        else:
            known = {
                topic: len(self._cluster.topics[topic].partitions)
                for topic in machine.needed_topics
                if topic in self._cluster.topics
            }
            if machine.phase is not Phase.ASSIGNING:
                machine.look(known)
            elif all(t in known or t in self._cluster.errors for t in machine.needed_topics):
                machine.plan(known)
        self._wake.set()
        self._look()

    async def _name_topics(self, machine: Reconciling) -> None:
        """Asks for names by id: a broker that matches expressions knows topics we do not."""
        try:
            connection = await self._cluster.any_connection()
            if connection.version(MetadataRequest) < _TOPICS_BY_ID:
                return
            wanted = [MetadataRequestTopic(topic_id=i, name=None) for i in machine.unnamed]
            request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
            answer = await connection.request(request, MetadataResponse)
        except ClientError as failure:
            log.debug("names of topics: %s", failure)
            self._cluster.stale()
            return
        machine.learn({t.topic_id: t.name for t in answer.topics if t.name and not t.error_code})
        self._follow()

    def _want_topics(self) -> None:
        wanted = {where.topic for where in self._positions.assigned}
        if self.subscription is not None:
            wanted |= self.subscription.topics
            if isinstance(self._machine, Classic):
                wanted |= self._machine.needed_topics
        topics = frozenset(wanted)
        for topic in sorted(topics - self._topics):
            self._cluster.keep(topic)
        self._cluster.forget(sorted(self._topics - topics))
        self._topics = topics

    # -- small things ----------------------------------------------------------------------------

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if task in self._tasks:
            self._turn_wanted = True
            self._fetcher.halt()
            self._fetcher.arrived.wake()

    def _look(self) -> None:
        """Whether the application has to take a turn."""
        machine = self._machine
        wanted = (
            machine.lost or machine.change() is not None or machine.has_error
        ) and self.subscription is not None
        if wanted and not self._turn_wanted:
            self._fetcher.arrived.wake()
        self._turn_wanted = wanted
        if wanted:
            self._fetcher.halt()

    def _commit_refused(self, code: ErrorCode, generation: int) -> None:
        if self.subscription is not None and generation == self._machine.generation:
            self._machine.commit_refused(code)
            self._wake.set()
            self._look()

    def _committer(self) -> ConsumerGroupMetadata:
        """A consumer that subscribes commits as a member or not at all."""
        me = self.metadata()
        if self.subscription is not None and me.generation_id <= JOIN_EPOCH:
            code = ErrorCode.REBALANCE_IN_PROGRESS
            if self._machine.lost:
                code = ErrorCode.UNKNOWN_MEMBER_ID
            raise BrokerError(code, about=f"group {me.group_id}")
        return me

    def _reader(self) -> ConsumerGroupMetadata:
        """Only the consumer protocol checks who reads."""
        me = self.metadata()
        if isinstance(self._machine, Classic) or self.subscription is None:
            return ConsumerGroupMetadata(me.group_id)
        return me
