"""Keeps a consumer's partitions supplied with records, ahead of what the application takes.

One task finds and checks positions. Every broker that partitions are read from is a source: a task
with a connection and a fetch session of its own that has one Fetch under way at a time. A source
waits while one of its partitions has all the completed fetches it may hold, since a request without
it could park at the broker just when it runs dry.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter, length_hint
from typing import Any, Final

from scriba.client.cluster import HOPELESS, NO_NODE, WORTH_TELLING_MS, Cluster, Node
from scriba.client.consuming.completed_fetch import CompletedFetch, DecodeSettings
from scriba.client.consuming.fetch_request import fetch_request
from scriba.client.consuming.fetch_session import FINAL_EPOCH, NO_SESSION, FetchSession, FetchSpec
from scriba.client.consuming.list_offsets import EpochEnd, epoch_ends, look_up, reset_target
from scriba.client.consuming.positions import AssignedPartition, Positions
from scriba.client.consuming.record import ConsumerRecord
from scriba.client.errors import DecodeError, OffsetError
from scriba.client.model import Isolation, OffsetSpec, TopicPartition
from scriba.client.settings import ConsumerSettings
from scriba.errors import ErrorCode, error_code
from scriba.peers.connection import Connection
from scriba.peers.errors import BrokerError, ClientError
from scriba.peers.ports import Backoff, Signal
from scriba.wire.messages.fetch import FetchRequest, FetchResponse, PartitionData

log = logging.getLogger(__name__)

_BY_TOPIC_ID: Final = 13
_WITH_SESSIONS: Final = 7
_SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
_FINAL: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    }
)
"""What the application has to know; everything else is tried again."""

_AVOID_MS: Final = 10_000
"""How long the leader is read from after a replica close by was of no use: about as long as a
cluster takes to notice that a broker is gone. Before that the leader would name it again."""

_WHERE: Final = ("topic", "partition")

_DRY: Final[Iterator[ConsumerRecord[Any, Any]]] = iter(())


class _Source:
    __slots__ = ("backoff", "node", "session", "wake")

    def __init__(self, node: int, backoff: Backoff) -> None:
        self.node = node
        self.backoff = backoff
        self.session = FetchSession()
        self.wake = asyncio.Event()


class Fetcher:
    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        positions: Positions,
        reading: DecodeSettings,
    ) -> None:
        self.arrived = Signal()
        """Wakes who waits for records, positions or errors."""
        self.breathe = False
        """Whether a fetch was used up since this was last set back: others need a turn."""
        self.flow: Iterator[ConsumerRecord[Any, Any]] = _DRY
        """Records that may be taken one by one, with nothing else to look at in between."""
        self._left = 0
        """How many they were when somebody looked."""
        self._moved = False
        self._cluster = cluster
        self._settings = settings
        self._positions = positions
        self._reading = reading
        self._committed = settings.isolation_level == "read_committed"
        self._isolation = (
            Isolation.READ_COMMITTED if self._committed else Isolation.READ_UNCOMMITTED
        )
        self._clock = cluster.ports.clock
        self._sources: dict[int, _Source] = {}
        self._line: deque[AssignedPartition] = deque()
        """A partition for each completed fetch that came, in the order they came."""
        self._tend_now = asyncio.Event()

    def start(self) -> None:
        self._cluster.tasks.spawn(self._tend(), name="scriba-positions")
        self._cluster.tasks.spawn(self._follow_updates(), name="scriba-leaders")

    def poke(self) -> None:
        """Tells that positions have changed, or there is room for more."""
        self.halt()
        self._tend_now.set()
        for source in self._sources.values():
            source.wake.set()

    def halt(self) -> None:
        """Has whoever takes one record after the other look up before the next."""
        self._note_flow()
        self.flow, self._left = _DRY, 0

    def moved(self) -> bool:
        """Whether records were taken from `flow` since this was last asked."""
        self._note_flow()
        moved, self._moved = self._moved, False
        return moved

    def _note_flow(self) -> None:
        left = length_hint(self.flow)
        self._moved = self._moved or left < self._left
        self._left = left

    # -- out to the application ------------------------------------------------------------------

    def take(self, most: int) -> list[ConsumerRecord[Any, Any]]:
        """Up to `most` buffered records; none when there are none.

        Raises a partition's error, but only when no record can be given before it.
        """
        taken: list[ConsumerRecord[Any, Any]] = []
        aside: list[AssignedPartition] = []
        line = self._line
        try:
            while line and len(taken) < most:
                assigned = line[0]
                if not self._is_current(assigned) or not assigned.buffered:
                    line.popleft()
                elif assigned.paused:
                    aside.append(line.popleft())
                else:
                    taken += self._take_from(assigned, most - len(taken))
        except DecodeError:
            if not taken:
                raise
        finally:
            line.extend(aside)
        if not taken:
            self._raise_errors()
        return taken

    def _take_from(self, assigned: AssignedPartition, most: int) -> list[ConsumerRecord[Any, Any]]:
        completed = assigned.buffered[0]
        taken = completed.take(most)
        if not taken or completed.used_up:
            self._finish(assigned)
        return taken

    def next(self) -> ConsumerRecord[Any, Any] | None:
        """The next buffered record; more of the same batch are in `flow` then."""
        records = self.take(1)
        if not records:
            return None
        if self._line:
            assigned = self._line[0]
            if assigned.buffered and not assigned.paused and self._is_current(assigned):
                self.halt()
                self.flow = assigned.buffered[0].rest
                self._left = length_hint(self.flow)
        return records[0]

    def give_back(self, records: Iterable[ConsumerRecord[Any, Any]]) -> None:
        """Has the records that were taken last come first again, in the same order."""
        runs = [(where, list(run)) for where, run in groupby(records, key=attrgetter(*_WHERE))]
        for where, run in reversed(runs):
            assigned = self._positions.assigned.get(TopicPartition(*where))
            if assigned is None:
                continue  # it was given up meanwhile
            if assigned.position > run[-1].offset:
                assigned.give_back(run)
                self._line.appendleft(assigned)
            else:
                assigned.jump(run[0].offset)  # the position changed: the log was truncated, say
        self.poke()

    def _finish(self, assigned: AssignedPartition) -> None:
        """A completed fetch is used up: there is room for another."""
        assigned.used_up()
        self._line.popleft()
        self.breathe = True
        self.poke()

    def _is_current(self, assigned: AssignedPartition) -> bool:
        return self._positions.assigned.get(assigned.where) is assigned

    def _raise_errors(self) -> None:
        for assigned in self._positions.assigned.values():
            error = assigned.error
            if error is not None and not assigned.paused:
                if not isinstance(error, OffsetError):
                    assigned.error = None  # the next try may do better
                    self.poke()
                raise error.anew()

    # -- finding and checking positions ----------------------------------------------------------

    async def _follow_updates(self) -> None:
        while True:
            await self._cluster.next_update()
            self.poke()

    async def _tend(self) -> None:
        """Has positions found and checked, by one request to each leader concerned."""
        spawn = self._cluster.tasks.spawn
        while True:
            await self._tend_now.wait()
            self._tend_now.clear()
            now = self._clock.mono_ms()
            to_find: dict[int, list[AssignedPartition]] = {}
            for assigned in self._positions.to_be_found(now):
                assigned.asking = True
                to_find.setdefault(self._cluster.leader(assigned.where), []).append(assigned)
            for part in to_find.values():
                spawn(self._find(part), name="scriba-find")
            to_check: dict[int, list[tuple[AssignedPartition, int]]] = {}
            for assigned, partition in self._positions.to_be_checked(self._cluster, now):
                assigned.asking = True
                entry = (assigned, partition.leader_epoch)
                to_check.setdefault(partition.leader, []).append(entry)
            for leader, checks in to_check.items():
                spawn(self._check(leader, checks), name="scriba-check")
            self._open_sources()

    async def _find(self, part: list[AssignedPartition]) -> None:
        asked = {a.where: (a, a.generation) for a in part}
        wanted = {a.where: a.target for a in part if a.target is not None}
        found = await look_up(self._cluster, wanted, self._isolation)
        for where, (assigned, generation) in asked.items():
            if assigned.generation != generation:
                continue
            assigned.asking = False
            failure = found.failures.get(where)
            place = found.offsets.get(where)
            if failure is not None:
                self._failed(assigned, failure)
            elif place is None:
                # Nothing is as late as that: the end is where the next record will be.
                assigned.target = OffsetSpec.LATEST
            else:
                assigned.jump(place.offset, place.leader_epoch)
        self.arrived.wake()
        self.poke()

    async def _check(self, leader: int, part: list[tuple[AssignedPartition, int]]) -> None:
        """Asks a new leader whether it has what was read from the old ones (KIP-320)."""
        generations = [assigned.generation for assigned, _ in part]
        wanted = {assigned.where: (current, assigned.epoch) for assigned, current in part}
        problem: ClientError | None = None
        ends: dict[TopicPartition, EpochEnd | ErrorCode] = {}
        try:
            ends = await epoch_ends(self._cluster, leader, wanted)
        except ClientError as failure:
            problem = failure
        for (assigned, current), generation in zip(part, generations, strict=True):
            if assigned.generation != generation:
                continue
            assigned.asking = False
            end = ends.get(assigned.where, ErrorCode.UNKNOWN_SERVER_ERROR)
            if isinstance(end, ErrorCode):
                self._cluster.stale()
                self._failed(assigned, problem or BrokerError(end, about=str(assigned.where)))
            elif 0 <= end.end_offset < assigned.fetch_offset:
                self._truncated(assigned, end)
            else:
                assigned.checked(current)
        self.poke()

    def _truncated(self, assigned: AssignedPartition, end: EpochEnd) -> None:
        """The leader's log no longer has all that was fetched."""
        log.warning("%s was truncated to offset %d", assigned.where, end.end_offset)
        self.halt()
        seen = assigned.position
        if seen <= end.end_offset:
            assigned.jump(seen)  # only what was fetched ahead is gone
        elif self._settings.auto_offset_reset == "none":
            assigned.jump(seen)
            assigned.error = OffsetError(*assigned.where, seen, end.end_offset)
        else:
            assigned.jump(end.end_offset, end.epoch)
        self.arrived.wake()

    def _failed(self, assigned: AssignedPartition, failure: ClientError) -> None:
        """Something about one partition has to be tried again after a pause, or told."""
        if not failure.retriable:
            assigned.error = failure
            self.arrived.wake()
        else:
            log.debug("%s: trying again after %s", assigned.where, failure)
        self._rest(assigned)

    def _rest(self, assigned: AssignedPartition) -> None:
        pause = Backoff(self._cluster.ports.rng, self._settings.retry_backoff_ms, 0).next_ms()
        assigned.retry_at = self._clock.mono_ms() + pause
        asyncio.get_running_loop().call_later(pause / 1000, self.poke)

    # -- sources ---------------------------------------------------------------------------------

    def _open_sources(self) -> None:
        now = self._clock.mono_ms()
        for assigned in self._positions.assigned.values():
            partition = self._cluster.partition(assigned.where)
            if partition is None or partition.leader == NO_NODE:
                self._cluster.stale()
                if partition is None:
                    self._tell_absent(assigned, now)
                trouble = self._cluster.errors.get(assigned.where.topic)
                if self._cluster.hopeless is not None:
                    assigned.error = self._cluster.hopeless
                    self.arrived.wake()
                elif trouble in HOPELESS and trouble is not None:
                    assigned.error = BrokerError(trouble, about=f"topic {assigned.where.topic}")
                    self.arrived.wake()
                continue
            assigned.absent_since = -1
            node = assigned.node(partition, now)
            if node not in self._sources:
                settings = self._settings
                backoff = Backoff(
                    self._cluster.ports.rng,
                    settings.retry_backoff_ms,
                    settings.retry_backoff_max_ms,
                )
                source = self._sources[node] = _Source(node, backoff)
                self._cluster.tasks.spawn(self._run(source), name=f"scriba-fetch-{node}")

    def _tell_absent(self, assigned: AssignedPartition, now: int) -> None:
        """Says of a partition that its topic does not have it, when that lasts: it may be new."""
        topic = self._cluster.topics.get(assigned.where.topic)
        if topic is None or assigned.absent_since is None:
            return
        if assigned.absent_since < 0:
            assigned.absent_since = now
        elif now - assigned.absent_since >= WORTH_TELLING_MS:
            assigned.absent_since = None
            count = len(topic.partitions)
            has = "one partition, 0" if count == 1 else f"{count} partitions, 0 to {count - 1}"
            log.warning("%s is not there: %s has %s", assigned.where, topic.name, has)

    async def _run(self, source: _Source) -> None:
        busy = False
        while True:
            wanted = self._wanted(source.node)
            if not wanted:
                if busy:
                    self.poke()  # what was read here may have to be read elsewhere now
                busy = False
                await source.wake.wait()
                source.wake.clear()
                continue
            busy = True
            try:
                connection = await self._cluster.connect(source.node, "fetch")
                if any(a.fetch_offset != want.offset for a, want in wanted.values()):
                    continue  # the application went elsewhere while the connection was made
                await self._fetch(source, connection, wanted)
            except ClientError as failure:
                log.debug("fetching from broker %d: %s", source.node, failure)
                source.session.lost()
                self._cluster.stale()
                for assigned, _ in wanted.values():
                    if assigned.nearby == source.node:
                        assigned.avoid_nearby(self._clock.mono_ms() + _AVOID_MS)
                    elif not failure.retriable:
                        assigned.error = failure
                        self.arrived.wake()
                await asyncio.sleep(source.backoff.next_ms() / 1000)
                self.poke()
            else:
                source.backoff.reset()

    def _wanted(self, node: int) -> dict[TopicPartition, tuple[AssignedPartition, FetchSpec]]:
        """What to fetch from a broker now."""
        now = self._clock.mono_ms()
        found: dict[TopicPartition, tuple[AssignedPartition, FetchSpec]] = {}
        for where, assigned in self._positions.assigned.items():
            partition = self._cluster.partition(where)
            if partition is None or assigned.node(partition, now) != node or assigned.paused:
                continue
            if assigned.full:
                return {}
            ready = assigned.found and assigned.error is None and assigned.retry_at <= now
            if ready and not assigned.to_be_checked(partition):
                found[where] = (
                    assigned,
                    FetchSpec(
                        self._cluster.topics[where.topic].id,
                        assigned.fetch_offset,
                        partition.leader_epoch,
                        self._settings.max_partition_fetch_bytes,
                    ),
                )
        return found

    async def _fetch(
        self,
        source: _Source,
        connection: Connection,
        wanted: dict[TopicPartition, tuple[AssignedPartition, FetchSpec]],
    ) -> None:
        version = connection.version(FetchRequest)
        plan = source.session.plan(
            {where: want for where, (_, want) in wanted.items()}, version >= _BY_TOPIC_ID
        )
        if not plan.by_id:
            version = connection.version(FetchRequest, _BY_TOPIC_ID - 1)
        generations = {where: a.generation for where, (a, _) in wanted.items()}
        settings = self._settings
        now = self._clock.mono_ms()
        avoid = any(assigned.avoid_until > now for assigned, _ in wanted.values())
        answer = await connection.request(
            fetch_request(plan, settings, self._isolation, "" if avoid else settings.client_rack),
            FetchResponse,
            version=version,
            timeout_ms=settings.request_timeout_ms + settings.fetch_max_wait_ms,
        )
        if answer.error_code:
            code = error_code(answer.error_code)
            source.session.lost(code)
            if code in _SESSION_ERRORS:
                log.debug("broker %d: fetch session: %s", source.node, code.name)
                self._cluster.stale()
                if code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID):
                    raise BrokerError(code)
                return
            raise BrokerError(code, about="fetch")
        source.session.answered(answer.session_id if version >= _WITH_SESSIONS else NO_SESSION)
        nodes = [Node(n.node_id, n.host, n.port, n.rack) for n in answer.node_endpoints]
        for topic in answer.responses:
            name = self._cluster.names.get(topic.topic_id) if plan.by_id else topic.topic
            for said in topic.partitions:
                where = TopicPartition(name or "", said.partition_index)
                if where in wanted:
                    assigned, want = wanted[where]
                    stayed = generations[where] == assigned.generation
                    if stayed and self._is_current(assigned):
                        self._receive(source, assigned, want, said, nodes)
        self.arrived.wake()

    # -- answers ---------------------------------------------------------------------------------

    def _receive(
        self,
        source: _Source,
        assigned: AssignedPartition,
        want: FetchSpec,
        said: PartitionData,
        nodes: list[Node],
    ) -> None:
        if said.error_code:
            self._receive_error(source, assigned, said, nodes)
            return
        if said.diverging_epoch.end_offset >= 0:
            diverging = said.diverging_epoch
            self._truncated(assigned, EpochEnd(diverging.epoch, diverging.end_offset))
            return
        assigned.high_watermark = said.high_watermark
        assigned.last_stable_offset = said.last_stable_offset
        assigned.log_start_offset = said.log_start_offset
        if said.preferred_read_replica >= 0:
            self._go_nearby(assigned, said.preferred_read_replica)
            return
        data = said.records
        if not isinstance(data, memoryview) or not data:
            return
        aborted = (said.aborted_transactions or []) if self._committed else None
        completed = CompletedFetch(
            assigned.where, data, want.offset, assigned.generation, self._reading, aborted
        )
        if not completed.used_up:
            assigned.fetched(completed, completed.end_offset, completed.end_epoch)
            self._line.append(assigned)
            self._positions.to_end(assigned)

    def _go_nearby(self, assigned: AssignedPartition, node: int) -> None:
        """The leader has a replica close by to read from, and sent no records."""
        now = self._clock.mono_ms()
        if node in self._cluster.nodes:
            assigned.nearby = node
            assigned.nearby_until = now + self._settings.metadata_max_age_ms
        else:
            self._cluster.stale()
            assigned.avoid_nearby(now + _AVOID_MS)
        self.poke()

    def _receive_error(
        self,
        source: _Source,
        assigned: AssignedPartition,
        said: PartitionData,
        nodes: list[Node],
    ) -> None:
        code = error_code(said.error_code)
        if assigned.nearby == source.node:
            # The leader knows best: it is asked next, and after a while may name a replica again.
            assigned.avoid_nearby(self._clock.mono_ms() + _AVOID_MS)
            self.poke()
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(assigned)
        elif code in _FINAL:
            assigned.error = BrokerError(code, about=str(assigned.where))
        else:
            new = said.current_leader
            told = self._cluster.learn_leader(
                assigned.where, new.leader_id, new.leader_epoch, nodes
            )
            self._cluster.stale()
            if told:
                self.poke()
            else:
                self._rest(assigned)

    def _out_of_range(self, assigned: AssignedPartition) -> None:
        """The position is before the log's start, or after its end."""
        if assigned.buffered:
            self._rest(assigned)  # what was fetched before is still good
            return
        target = reset_target(self._settings.auto_offset_reset, self._clock.wall_ms())
        offset = assigned.fetch_offset
        if target is None:
            assigned.error = OffsetError(*assigned.where, offset)
            return
        log.warning("%s: offset %d is not in the log; position reset", assigned.where, offset)
        assigned.look_for(target)
        self.poke()

    def close(self) -> None:
        """Tells brokers that the sessions can go; nobody waits for their answers."""
        self.halt()
        for source in self._sources.values():
            connection = self._cluster.living(source.node)
            if connection is not None and source.session.id != NO_SESSION:
                end = FetchRequest(session_id=source.session.id, session_epoch=FINAL_EPOCH)
                with contextlib.suppress(ClientError):
                    connection.post(end, FetchResponse)
