"""Runs the coordinators: one machine per partition of their topic that this broker leads.

A shard begins with the leadership of its partition. Its log is replayed into a new machine, a
slice at a time and one shard after the other; meanwhile callers are told that it is loading. Then
requests are handed to the machine one by one. What it returns is carried out in one step without an
await: its records are appended, replayed into it, and its replies are given to those who asked. A
caller gets a reply, a refusal too, only once the high watermark covers all that was in the log when
it was computed: nobody hears of what may yet be lost. A large step takes its time, in slices
(`slices`), and so does the end of a large transaction; whoever comes meanwhile waits until it is
done.

A shard whose append failed is thrown away, its callers come back later, and it is built again from
the log, after a rest that grows while failures repeat. The same happens to one whose machine failed
in a way nobody expected. Lost leadership ends a shard at once. `shard.VALID` has its states.

Invariants: the machine has replayed exactly what is in the log of its partition, as far as it is
ACTIVE; a shard belongs to one leader epoch, and what comes late from an earlier one is dropped.
Never: an await between `handle`, append and replay of a shard that is not BUSY; uncovered replies.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from scriba.broker.access import TopicVisibility
from scriba.broker.coordinators.shard import (
    FIRST_REST_MS,
    LONGEST_REST_MS,
    LONGEST_WAIT_MS,
    REFUSALS,
    Settled,
    Shard,
    State,
    partition_for,
)
from scriba.broker.coordinators.shard_log import Batch, Packing, read_back
from scriba.broker.coordinators.slices import (
    ANSWERS_AT_ONCE,
    answer_in_turns,
    carry_out_in_slices,
    end_in_slices,
    tell_in_slices,
)
from scriba.broker.observe.counters import CoordinatorCounters
from scriba.broker.ports import (
    Authorization,
    BackgroundTasks,
    Configuration,
    EventLog,
    MetadataView,
    WorldAccess,
)
from scriba.errors import ErrorCode, KafkaError, ParseError
from scriba.events import EventKind
from scriba.instant import Instant
from scriba.outcome import Caller, Change, Machine, Origin, Outcome, Token
from scriba.records.compression import Codec
from scriba.runtime.loop.pace import Pace
from scriba.settings import NodeSettings
from scriba.wire.schema import Message

if TYPE_CHECKING:
    from scriba.broker.partitions.partition import Partition
    from scriba.broker.request import Context

NEVER_TAKEN: Final = frozenset(
    {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_REQUEST}
)
"""Why the log refuses records that it would refuse again."""

END: Final = object()
AT_ONCE: Final = 500
"""Records of one step that do not hold the loop for long."""
TICKS_AT_ONCE: Final = 1_000
"""Deadlines of one shard that are met before the next shard has its turn."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What tells the coordinators of one topic from those of another."""

    topic: str
    make: Callable[[int], Machine]
    """A new machine for a partition."""
    load_bytes: Callable[[NodeSettings], int]
    timeout_ms: Callable[[NodeSettings], int]
    """How long a change may take to reach the in-sync replicas."""
    codec: Callable[[NodeSettings], Codec]
    draws: frozenset[type[Message]] = frozenset()
    """Requests that are handed random bytes."""


class CoordinatorHost(
    Authorization,
    BackgroundTasks,
    Configuration,
    EventLog,
    MetadataView,
    WorldAccess,
    Protocol,
):
    """What running coordinators takes of the node."""


class CoordinatorRuntime:
    def __init__(self, node: CoordinatorHost, kind: Kind) -> None:
        self.topic = kind.topic
        self.counts = CoordinatorCounters()
        self.on_send: Callable[[Any, int], None] | None = None
        """Takes what a machine wants sent, once it is committed, with the shard's epoch."""
        self.clock = node.world.clock
        self._node = node
        self._kind = kind
        self._shards: dict[int, Shard] = {}
        self._to_load: deque[Shard] = deque()
        self._loader: asyncio.Task[None] | None = None
        self._last_token: Token = 0
        self._news = asyncio.Event()
        """Set when the keeper of time should look again before its alarm."""
        self._alarm_ms: float = math.inf
        self._changed_topics: dict[str, None] = {}

    # ---- life ----

    def start(self) -> None:
        self._node.tasks.spawn(self._keep_time(), name=f"timers of {self.topic}")

    def stop(self) -> None:
        """Ends every wait, so that clients look for another coordinator at once."""
        for index in tuple(self._shards):
            self.unload(index)

    def lead(self, partition: Partition) -> None:
        """This broker leads `partition` now; called again for what changes nothing here."""
        known = self._shards.get(partition.index)
        if known is not None:
            if known.partition is partition and known.epoch == partition.leader_epoch:
                return
            self.unload(partition.index)
        shard = Shard(partition, self._kind.make(partition.index))
        self._shards[partition.index] = shard
        self._load_soon(shard)

    def unload(self, index: int) -> None:
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.end(KafkaError(ErrorCode.NOT_COORDINATOR))

    def partitions_led(self) -> list[int]:
        return sorted(self._shards)

    def machines(self) -> list[Machine]:
        """All of them, for whoever changes their settings."""
        return [shard.machine for shard in self._shards.values()]

    def machine_of(self, index: int) -> Machine | None:
        """What runs for a partition, to be looked at."""
        shard = self._shards.get(index)
        return shard.machine if shard is not None else None

    def topics_changed(self, names: Iterable[str]) -> None:
        """Topics were made, grew or went: every machine is told soon, in slices."""
        self._changed_topics.update(dict.fromkeys(names))
        self._news.set()

    # ---- asking ----

    def partition_of(self, key: str) -> int:
        """The partition that coordinates a group or a transactional id, as Kafka chooses it."""
        topic = self._node.image.topics_by_name.get(self.topic)
        if topic is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return partition_for(key, len(topic.partitions))

    async def ask(self, key: str, request: Message, ctx: Context) -> Message:
        return await self.ask_partition(self.partition_of(key), request, ctx)

    async def ask_partition(self, index: int, request: Message, ctx: Context) -> Message:
        answer = self.begin(index, request, ctx)
        return answer if isinstance(answer, Message) else await answer

    def begin(self, index: int, request: Message, ctx: Context) -> Message | Awaitable[Message]:
        """Starts a request now; its reply, if it may leave at once. KafkaError refuses it."""
        busy = self.busy(index)
        if busy is not None:
            return self._begin_later(busy, index, request, ctx)
        shard = self.answering(index)
        now = self._node.world.clock.now()
        fresh = self._node.world.rng.bytes(16) if type(request) in self._kind.draws else b""
        sees = None if self._node.access.open else TopicVisibility(self._node.access, ctx)
        caller = Caller(ctx.version, ctx.client_id or "", ctx.host, fresh, sees)
        self._last_token = token = self._last_token + 1
        waiter: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()
        shard.waiting[token] = waiter
        try:
            outcome = shard.machine.handle(request, token, caller, now)
        except KafkaError as error:
            shard.reply(token, error)
        except Exception:
            self._rest(shard, "a request failed")
            raise
        else:
            self._carry_out(shard, outcome, now)
        if waiter.done():
            answer, end = waiter.result()
            if shard.partition.high_watermark.value >= end:
                if isinstance(answer, KafkaError):
                    try:
                        raise answer
                    finally:
                        # Else its trace holds this frame, which holds it, and the request's bytes.
                        del answer, waiter
                if isinstance(answer, Message):
                    return answer
        return self._finish(shard.partition, waiter)

    async def _begin_later(
        self, idle: asyncio.Future[None], index: int, request: Message, ctx: Context
    ) -> Message:
        await asyncio.wait([idle])
        return await self.ask_partition(index, request, ctx)

    async def _finish(self, partition: Partition, waiter: asyncio.Future[Settled]) -> Message:
        answer, end = await waiter
        await self.covered(partition, end)
        if isinstance(answer, KafkaError):
            raise answer
        if isinstance(answer, Message):
            return answer
        return await tell_in_slices(self.clock, answer)

    async def covered(self, partition: Partition, end_offset: int) -> None:
        """Waits for the high watermark, for as long as a change may take."""
        if partition.high_watermark.value >= end_offset:
            return
        limit_ms = self._kind.timeout_ms(self._node.settings)
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await partition.high_watermark.reach(end_offset)
        except TimeoutError:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{partition!r}: not replicated in time"
            ) from None
        except KafkaError as error:  # the partition moved, was deleted or failed
            raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from error

    def answering(self, index: int) -> Shard:
        """The shard of a partition; KafkaError unless it answers."""
        shard = self._shards.get(index)
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if shard.state is not State.ACTIVE:
            raise KafkaError(REFUSALS[shard.state])
        if not self._leads(shard):
            self.unload(index)
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return shard

    def _leads(self, shard: Shard) -> bool:
        leader = shard.partition.leader
        return leader is not None and leader.leader_epoch == shard.epoch

    # ---- carrying out ----

    def _carry_out(self, shard: Shard, outcome: Outcome, now: Instant) -> None:
        """Appends, replays, replies: one step, whole or not at all."""
        if outcome.work is not None or (
            len(outcome.records) > AT_ONCE and outcome.producer is None
        ):
            shard.move(State.BUSY)
            work = carry_out_in_slices(self, shard, outcome, now)
            self._node.tasks.spawn(work, name=f"large step of {self.topic}")
            return
        if outcome.records:
            try:
                self._append(shard, outcome, now)
            except KafkaError as error:
                self.not_appended(shard, outcome, error)
                return
            except Exception:
                self.surprised(shard)
                return
        self.conclude(shard, outcome)

    def conclude(self, shard: Shard, outcome: Outcome) -> None:
        """The records are in the log and replayed."""
        if len(outcome.replies) > ANSWERS_AT_ONCE:
            answers = shard.take(outcome.replies)
            covered = self.covered(shard.partition, shard.partition.log.end_offset)
            work = answer_in_turns(covered, answers)
            self._node.tasks.spawn(work, name=f"answers of {self.topic}")
        else:
            for token, answer in outcome.replies:
                shard.reply(token, answer)
        for token, telling in outcome.told:
            shard.reply(token, telling)
        for event in outcome.events:
            self._node.note(event.kind, event.about, event.text)
        if outcome.sends:
            self._send(shard, outcome.sends)
        self.set_alarm(shard)

    def _append(self, shard: Shard, outcome: Outcome, now: Instant) -> None:
        packing = self.packing(shard, outcome, now)
        for change in outcome.records:
            packing.add(change)
        for batch in self.checked(shard, packing.done()):
            for change, origin in self.append_batch(shard, batch, outcome, now):
                shard.machine.replay(*change, origin)

    def packing(self, shard: Shard, outcome: Outcome, now: Instant) -> Packing:
        limit = shard.partition.settings.max_message_bytes
        return Packing(self.topic, outcome, now, self._kind.codec(self._node.settings), limit)

    def checked(self, shard: Shard, built: list[Batch]) -> list[Batch]:
        """Batches that may be appended now; KafkaError where the partition takes none."""
        leader = shard.partition.check_leader(shard.epoch)
        if not leader.in_sync(shard.partition.settings.min_insync_replicas):
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        return built

    def append_batch(
        self, shard: Shard, batch: Batch, outcome: Outcome, now: Instant
    ) -> Iterator[tuple[Change, Origin]]:
        """Appends now; what comes back is to be replayed."""
        view, header, changes = batch
        producer = outcome.producer or (-1, -1)
        base_offset, *_ = shard.partition.append(view, header, now, by_coordinator=True)
        self.counts.records_appended += len(changes)
        shard.rest_ms = FIRST_REST_MS
        return (
            (change, Origin(offset, now.wall_ms, *producer))
            for offset, change in enumerate(changes, base_offset)
        )

    def not_appended(self, shard: Shard, outcome: Outcome, error: KafkaError) -> None:
        if outcome.producer is not None and error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            # The producer's fault, not the shard's: the log knows a newer one.
            for token, _ in outcome.replies:
                shard.reply(token, error)
            return
        if not self._leads(shard):
            self.unload(shard.index)
            return
        if error.code in NEVER_TAKEN:
            # Kafka's answer, too: the client cannot mend it, and must not try again. The log is
            # well, so those who share the shard need not wait for it.
            told = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, error.message)
            for token, _ in outcome.replies:
                shard.reply(token, told)
            if outcome.instead is not None:
                kind, text = EventKind.COORDINATOR_RECORD_REFUSED, f"refused: {error}"
                self._node.note(kind, repr(shard.partition), text)
                self._step(shard, outcome.instead)
                return
            shard.rest_ms = 0
        waits = error.code is ErrorCode.NOT_ENOUGH_REPLICAS
        kind = EventKind.COORDINATOR_WAITS_FOR_REPLICAS if waits else EventKind.COORDINATOR_FAILED
        self._rest(shard, f"cannot append: {error}", kind=kind)

    def _send(self, shard: Shard, sends: list[Any]) -> None:
        end = shard.partition.log.end_offset
        if shard.partition.high_watermark.value >= end:
            self._hand_over(shard, sends)
        else:
            # From now on, not from when the task begins: what is sent keeps its order.
            covered = shard.partition.high_watermark.reach(end)
            work = self._send_later(shard, sends, covered)
            self._node.tasks.spawn(work, name=f"sends of {self.topic}")

    async def _send_later(
        self, shard: Shard, sends: list[Any], covered: asyncio.Future[None]
    ) -> None:
        try:
            await covered
        except KafkaError:
            return  # the next leader finds in the log what is to be sent
        if self._shards.get(shard.index) is shard:
            self._hand_over(shard, sends)

    def _hand_over(self, shard: Shard, sends: list[Any]) -> None:
        if self.on_send is not None:
            for send in sends:
                self.on_send(send, shard.epoch)

    def marker_appended(
        self, index: int, producer_id: int, producer_epoch: int, commit: bool
    ) -> None:
        """A marker was appended to the partition just now, in the same step as this call.

        A shard that is still loading finds it in the log. One that is BUSY replays it before
        anybody reads; so does one in which the transaction has many offsets.
        """
        shard = self._shards.get(index)
        if shard is None or shard.state not in (State.ACTIVE, State.BUSY):
            return
        try:
            work = shard.machine.replay_marker(producer_id, producer_epoch, commit)
            if shard.state is State.BUSY:
                shard.markers.append(work)
                return
            few = next(work, END) is END
        except Exception:
            self.surprised(shard)
            return
        if few:
            self.set_alarm(shard)
            return
        shard.move(State.BUSY)
        shard.markers.append(work)
        self._node.tasks.spawn(end_in_slices(self, shard), name=f"markers of {self.topic}")

    def busy(self, index: int) -> asyncio.Future[None] | None:
        """What is done when a large step of the shard is; None where there is none to wait for."""
        shard = self._shards.get(index)
        return shard.idle if shard is not None else None

    # ---- loading ----

    def _load_soon(self, shard: Shard) -> None:
        self._to_load.append(shard)
        if self._loader is None or self._loader.done():
            self._loader = self._node.tasks.spawn(self._load_all(), name=f"loads {self.topic}")

    async def _load_all(self) -> None:
        """One at a time: fifty side by side would each take a slice of every turn of the loop."""
        while self._to_load:
            shard = self._to_load.popleft()
            if self._shards.get(shard.index) is shard:
                await self._load(shard)

    async def _load(self, shard: Shard) -> None:
        clock = self._node.world.clock
        begun = clock.mono_ms()
        chunk = self._kind.load_bytes(self._node.settings)
        try:
            await read_back(lambda: shard.partition.log, shard.machine, chunk, Pace(clock))
        except Exception as error:
            if self._shards.get(shard.index) is shard:
                self._not_loaded(shard, error)
            return
        if self._shards.get(shard.index) is not shard:
            return
        if not self._leads(shard):
            self.unload(shard.index)
            return
        shard.move(State.ACTIVE)
        self.counts.loads.add(clock.mono_ms() - begun)
        self._step(shard, shard.machine.loaded)

    def _not_loaded(self, shard: Shard, error: Exception) -> None:
        """Told once: the same damage is found by every try that follows."""
        text = f"cannot be loaded: {error}"
        if isinstance(error, ParseError):
            text = (
                f"{text}. Nobody it coordinates is served until it is repaired: stop the node and "
                f"run scriba log repair {shard.partition.log.directory}"
            )
        new = shard.told != text
        shard.told = text
        unexpected = error if not isinstance(error, ParseError) else None
        self._rest(shard, text, unexpected, note=new)

    def _rest(
        self,
        shard: Shard,
        why: str,
        failure: BaseException | None = None,
        note: bool = True,
        kind: EventKind = EventKind.COORDINATOR_FAILED,
    ) -> None:
        """Throws away what the machine believes; the log will tell, after a while."""
        self.counts.failures += 1
        if note:
            self._node.note(kind, repr(shard.partition), why, failure)
        if shard.state is State.ENDED:
            return  # its leadership went in the same step
        passing = kind is EventKind.COORDINATOR_WAITS_FOR_REPLICAS
        shard.rest(self._mono_ms(), why, LONGEST_WAIT_MS if passing else LONGEST_REST_MS)
        self._news.set()

    def surprised(self, shard: Shard) -> None:
        """A bug in its machine costs this shard and no other; called where it was caught."""
        failure = sys.exception()
        self._rest(shard, f"failed: {failure!r}", failure)

    def _wake(self, shard: Shard) -> None:
        shard.machine = self._kind.make(shard.index)
        shard.move(State.LOADING)
        self._load_soon(shard)

    # ---- time ----

    async def _keep_time(self) -> None:
        """One task for all deadlines of all shards, and for news of topics."""
        pace = Pace(self._node.world.clock)
        while True:
            await self._sleep()
            changed, self._changed_topics = sorted(self._changed_topics), {}
            for shard in tuple(self._shards.values()):
                await pace()
                while changed and shard.idle is not None:
                    await asyncio.wait([shard.idle])
                if changed and self._is_active(shard):
                    self._step(shard, partial(shard.machine.topics_changed, changed))
                for _ in range(TICKS_AT_ONCE):
                    if not self._is_due(shard):
                        break
                    self._step(shard, shard.machine.tick)
                    await pace()
                if self._is_rested(shard):
                    self._wake(shard)

    async def _sleep(self) -> None:
        """Until the first deadline, or until there is news."""
        clock = self._node.world.clock
        self._alarm_ms = min(map(self._deadline, self._shards.values()), default=math.inf)
        left_ms = self._alarm_ms - clock.mono_ms()
        if left_ms > 0:
            try:
                async with asyncio.timeout(None if left_ms == math.inf else left_ms / 1000):
                    await self._news.wait()
            except TimeoutError:
                pass
        else:
            await asyncio.sleep(0)
        self._news.clear()

    def set_alarm(self, shard: Shard) -> None:
        """Wakes the keeper of time only for a deadline before all that it knows of."""
        deadline = self._deadline(shard)
        if deadline < self._alarm_ms:
            self._alarm_ms = deadline
            self._news.set()

    def _deadline(self, shard: Shard) -> float:
        if shard.state is State.RESTING:
            return shard.due_ms
        if shard.state is not State.ACTIVE:
            return math.inf
        deadline = shard.machine.next_deadline()
        return math.inf if deadline is None else deadline

    def _is_active(self, shard: Shard) -> bool:
        if self._shards.get(shard.index) is not shard or shard.state is not State.ACTIVE:
            return False
        if not self._leads(shard):
            self.unload(shard.index)
            return False
        return True

    def _is_due(self, shard: Shard) -> bool:
        return self._is_active(shard) and self._deadline(shard) <= self._mono_ms()

    def _is_rested(self, shard: Shard) -> bool:
        return (
            self._shards.get(shard.index) is shard
            and shard.state is State.RESTING
            and shard.due_ms <= self._mono_ms()
        )

    def _mono_ms(self) -> int:
        return self._node.world.clock.mono_ms()

    def _step(self, shard: Shard, step: Callable[[Instant], Outcome]) -> None:
        """What a machine does by itself."""
        now = self._node.world.clock.now()
        try:
            outcome = step(now)
        except Exception:
            self.surprised(shard)
        else:
            self._carry_out(shard, outcome, now)
