"""A consumer's offsets in its group: where reading begins, and what is committed when.

Automatic commits happen at the beginning of a poll, so that they cover what earlier polls gave and
nothing of what the application may still be working on. All commits of a consumer leave one after
the other, in the order they were asked for: an older one never overtakes a younger one, retries or
not.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from scriba.client.cluster import Cluster
from scriba.client.consuming.fetcher import Fetcher
from scriba.client.consuming.list_offsets import reset_target
from scriba.client.consuming.positions import AssignedPartition, Positions
from scriba.client.coordinator import Coordinator, CoordinatorKind
from scriba.client.errors import OffsetError
from scriba.client.group.commits import MISSING, CommittedOffsets
from scriba.client.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from scriba.client.settings import ConsumerSettings
from scriba.errors import ErrorCode
from scriba.peers.errors import BrokerError, ClientError, Closed
from scriba.peers.ports import Backoff

log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Done = Callable[[Offsets, ClientError | None], object]

_NOT_NOW: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.FENCED_MEMBER_EPOCH,
    }
)
"""What a coordinator says to a member that it does not know as it was named."""


class GroupOffsets:
    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        group_id: str,
        positions: Positions,
        fetcher: Fetcher,
    ) -> None:
        self.due = False
        """Whether the next poll should commit."""
        self.member: Callable[[], ConsumerGroupMetadata] = lambda: ConsumerGroupMetadata(group_id)
        """Who commits; BrokerError when nobody may."""
        self.refused: Callable[[ErrorCode, int], None] = lambda code, generation: None
        """Told what a refusal may mean for the membership, and in which generation it came."""
        self.reader: Callable[[], ConsumerGroupMetadata] = lambda: ConsumerGroupMetadata(group_id)
        """Who reads."""
        self.withheld = False
        """Whether the positions are not to be committed: nobody knows what was worked on."""
        self._cluster = cluster
        self._settings = settings
        self._positions = positions
        self._fetcher = fetcher
        coordinator = Coordinator(cluster, CoordinatorKind.GROUP, group_id)
        self._committed = CommittedOffsets(cluster, coordinator)
        self._turn = asyncio.Lock()
        self._automatic: asyncio.Task[None] | None = None
        self._commits: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        if self._settings.enable_auto_commit:
            self._cluster.tasks.spawn(self._keep_time(), name="scriba-auto-commit")

    # -- committing ------------------------------------------------------------------------------

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions: what the application has been given up to now."""
        if self.withheld:
            return {}
        return {
            where: OffsetAndMetadata(assigned.position, "", assigned.seen_epoch)
            for where, assigned in self._positions.assigned.items()
            if assigned.position >= 0
        }

    async def commit(self, offsets: Offsets, timeout_ms: int, *, automatic: bool = False) -> None:
        """Commits after those that were asked for before. One that nobody asked for leaves topics
        be that are not there: waiting for one would hold up the others."""
        if not offsets:
            return

        async def attempt() -> None:
            member = self.member()
            try:
                await self._committed.commit(member, offsets)
            except BrokerError as refusal:
                stale = refusal.code is ErrorCode.STALE_MEMBER_EPOCH
                if refusal.code in _NOT_NOW and not stale and self.member() != member:
                    # It was meant for a generation that ended meanwhile; what is owned in the new
                    # one only the next poll tells.
                    about = f"group {member.group_id}"
                    raise BrokerError(ErrorCode.REBALANCE_IN_PROGRESS, about=about) from None
                self.refused(refusal.code, member.generation_id)
                refusal.retriable |= stale
                if automatic and refusal.code in MISSING:
                    refusal.retriable = False
                raise

        async def in_turn() -> None:
            async with self._turn:
                await self._cluster.retry(attempt, timeout_ms, "the commit")

        await self._cluster.within(in_turn(), timeout_ms, "the commit")

    def commit_nowait(
        self, offsets: Offsets, done: Done | None, *, automatic: bool = False
    ) -> "asyncio.Task[None]":
        def tell(failure: ClientError | None) -> None:
            if done is not None:
                done(offsets, failure)
            elif failure is not None:
                log.warning("a commit failed: %s", failure)

        async def work() -> None:
            failure: ClientError | None = None
            try:
                limit = self._settings.default_api_timeout_ms
                await self.commit(offsets, limit, automatic=automatic)
            except ClientError as refused:
                failure = refused
            tell(failure)

        def ended(task: "asyncio.Task[None]") -> None:
            self._commits.discard(task)
            if task.cancelled():  # perhaps before its first step
                tell(Closed("the consumer left its group before the commit was done"))

        task = self._cluster.tasks.spawn(work(), name="scriba-commit")
        self._commits.add(task)
        task.add_done_callback(ended)
        return task

    async def under_way(self, timeout_ms: int, last: bool) -> None:
        """Waits for the commits that nobody waits for, as long as there is time. When a `last` one
        is to follow, half of the time is left for that, and what still runs then makes way."""
        if not self._commits:
            return
        last = last and self._settings.enable_auto_commit
        limit = timeout_ms // 2 if last else timeout_ms
        _, late = await asyncio.wait(list(self._commits), timeout=limit / 1000)
        if last:
            for commit in late:
                commit.cancel()

    def commit_automatically(self) -> None:
        """Begins to commit the positions of now; the one before may still be under way."""
        self.due = False
        if self._automatic is None or self._automatic.done():
            offsets = self._known()
            if offsets:
                self._automatic = self.commit_nowait(offsets, None, automatic=True)

    async def commit_before_parting(self, timeout_ms: int) -> None:
        """Commits what is about to be given up; that it is given up does not depend on it."""
        if self._settings.enable_auto_commit:
            try:
                await self.commit(self._known(), timeout_ms, automatic=True)
            except ClientError as failure:
                log.warning("the commit before giving up partitions failed: %s", failure)

    def _known(self) -> Offsets:
        """The positions in partitions that are there."""
        known = self._cluster.partition
        return {where: place for where, place in self.consumed().items() if known(where)}

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(max(1, self._settings.auto_commit_interval_ms) / 1000)
            if not self.due and self._positions.assigned:
                self.due = True
                self._fetcher.halt()
                self._fetcher.arrived.wake()

    # -- reading ---------------------------------------------------------------------------------

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        wanted = list(partitions)

        async def attempt() -> dict[TopicPartition, OffsetAndMetadata | None]:
            return await self._fetch(wanted)

        return await self._cluster.retry(attempt, timeout_ms, "the committed offsets")

    async def _fetch(
        self, wanted: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        member = self.reader()
        try:
            return await self._committed.fetch(member, wanted)
        except BrokerError as refusal:
            self.refused(refusal.code, member.generation_id)
            # Membership tells the application about itself: here it passes, one way or the other.
            refusal.retriable |= refusal.code in _NOT_NOW
            raise

    def restore(self, fresh: list[AssignedPartition]) -> None:
        """Has partitions begin where the group left off, unless a seek comes first."""
        if fresh:
            self._cluster.tasks.spawn(self._restore(fresh), name="scriba-committed")

    async def _restore(self, fresh: list[AssignedPartition]) -> None:
        settings = self._settings
        rng = self._cluster.ports.rng
        backoff = Backoff(rng, settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        generations = {assigned.where: assigned.generation for assigned in fresh}
        while waiting := [a for a in fresh if self._waits(a, generations[a.where])]:
            try:
                found = await self._fetch([assigned.where for assigned in waiting])
            except ClientError as failure:
                if not failure.retriable:
                    for assigned in waiting:
                        assigned.error = failure
                    self._fetcher.arrived.wake()
                await asyncio.sleep(backoff.next_ms() / 1000)
                continue
            for assigned in waiting:
                if self._waits(assigned, generations[assigned.where]):
                    self._begin(assigned, found[assigned.where])
            break
        self._fetcher.arrived.wake()
        self._fetcher.poke()

    def _waits(self, assigned: AssignedPartition, generation: int) -> bool:
        current = self._positions.assigned.get(assigned.where) is assigned
        return current and assigned.generation == generation

    def _begin(self, assigned: AssignedPartition, committed: OffsetAndMetadata | None) -> None:
        if committed is not None:
            assigned.jump(committed.offset, committed.leader_epoch)
            return
        wall_ms = self._cluster.ports.clock.wall_ms()
        target = reset_target(self._settings.auto_offset_reset, wall_ms)
        if target is None:
            assigned.error = OffsetError(*assigned.where, -1)
        else:
            assigned.look_for(target)
