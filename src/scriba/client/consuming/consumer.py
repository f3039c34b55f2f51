"""Reads records of partitions that the application chooses, or that its group gives it.

    async with Consumer(bootstrap_servers="localhost:9092", group_id="billing") as consumer:
        consumer.subscribe("orders")
        async for record in consumer:
            print(record.offset, record.value)

Records are fetched ahead in the background. `poll` gives what is there as a list; `async for` gives
one after the other; both move the same position, and in both the group's rebalances happen.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from scriba.client.cluster import TOPIC_IDLE_MS, Cluster
from scriba.client.consuming.completed_fetch import DecodeSettings
from scriba.client.consuming.fetcher import Fetcher
from scriba.client.consuming.list_offsets import list_offsets, reset_target
from scriba.client.consuming.positions import AssignedPartition, Positions
from scriba.client.consuming.record import ConsumerRecord
from scriba.client.consuming.subscription import Listener, Subscription, Told
from scriba.client.errors import DecodeError, OffsetError
from scriba.client.group.member import Group
from scriba.client.group.offsets import Done
from scriba.client.keywords import ConsumerKeywords
from scriba.client.model import (
    ConsumerGroupMetadata,
    Isolation,
    K,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetSpec,
    TopicPartition,
    V,
    to_commit,
)
from scriba.client.serializers import deserializer
from scriba.client.settings import ConsumerSettings
from scriba.peers.errors import ClientError, Closed
from scriba.peers.ports import Ports, real_ports

T = TypeVar("T")
U = TypeVar("U")


class Consumer(Generic[K, V]):
    """Takes settings by Kafka's names: `Consumer({"fetch.min.bytes": 1}, client_rack="a")`.

    Keys and values are bytes unless deserializers are given; Kafka's null is `None`. Type checkers
    learn what records hold from a callable, and take `Consumer[str, Order]` as said for a name or
    a mapping. Made and used within one event loop.
    """

    @overload
    def __init__(
        self: "Consumer[bytes | None, bytes | None]",
        config: None = None,
        *,
        _ports: Ports | None = None,
        **keywords: Unpack[ConsumerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self: "Consumer[bytes | None, T | None]",
        config: None = None,
        *,
        value_deserializer: Callable[[bytes], T],
        _ports: Ports | None = None,
        **keywords: Unpack[ConsumerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self: "Consumer[T | None, bytes | None]",
        config: None = None,
        *,
        key_deserializer: Callable[[bytes], T],
        _ports: Ports | None = None,
        **keywords: Unpack[ConsumerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self: "Consumer[T | None, U | None]",
        config: None = None,
        *,
        key_deserializer: Callable[[bytes], T],
        value_deserializer: Callable[[bytes], U],
        _ports: Ports | None = None,
        **keywords: Unpack[ConsumerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self: "Consumer[Any, Any]",
        config: Mapping[str, Any] | None,
        *,
        key_deserializer: str | Callable[[bytes], Any] = "bytes",
        value_deserializer: str | Callable[[bytes], Any] = "bytes",
        _ports: Ports | None = None,
        **keywords: Unpack[ConsumerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self: "Consumer[Any, Any]",
        config: None = None,
        *,
        key_deserializer: str,
        value_deserializer: str | Callable[[bytes], Any] = "bytes",
        _ports: Ports | None = None,
        **keywords: Unpack[ConsumerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self: "Consumer[Any, Any]",
        config: None = None,
        *,
        key_deserializer: str | Callable[[bytes], Any] = "bytes",
        value_deserializer: str,
        _ports: Ports | None = None,
        **keywords: Unpack[ConsumerKeywords],
    ) -> None: ...

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        _ports: Ports | None = None,
        **keywords: Any,
    ) -> None:
        self.settings = settings = ConsumerSettings.build(config, keywords)
        self._ports = _ports or real_ports()
        self._isolation = (
            Isolation.READ_COMMITTED
            if settings.isolation_level == "read_committed"
            else Isolation.READ_UNCOMMITTED
        )
        self._cluster = Cluster(
            self._ports,
            settings,
            auto_create=settings.allow_auto_create_topics,
            topic_idle_ms=TOPIC_IDLE_MS,
        )
        self._positions = Positions()
        reading = DecodeSettings(
            deserializer(settings.key_deserializer),
            deserializer(settings.value_deserializer),
            settings.check_crcs,
            settings.scriba_decode_errors == "skip",
        )
        self._fetcher = Fetcher(self._cluster, settings, self._positions, reading)
        self._group: Group | None = None
        if settings.group_id is not None:
            self._group = Group(
                self._cluster, settings, settings.group_id, self._positions, self._fetcher
            )
        self._started = False
        self._closing = False
        self._closed = False

    # -- partitions ------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Reads these partitions, and no others. Those that were read before keep their position;
        the others begin at what the group has committed, if there is a `group.id`, or where
        `auto.offset.reset` says, unless a seek follows."""
        self._start()
        if self._group is not None and self._group.subscription is not None:
            raise ClientError("the group assigns partitions", fix="unsubscribe first")
        chosen = [TopicPartition(*where) for where in partitions]
        target = None
        if self._group is None:
            target = reset_target(self.settings.auto_offset_reset, self._ports.clock.wall_ms())
        before = dict(self._positions.assigned)
        self._positions.assign(chosen, target)
        topics = dict.fromkeys(where.topic for where in chosen)
        for topic in topics:
            self._cluster.keep(topic)
        self._cluster.forget({where.topic for where in before if where.topic not in topics})
        fresh = [a for where, a in self._positions.assigned.items() if where not in before]
        if self._group is not None:
            self._group.offsets.restore(fresh)
        elif target is None:
            for assigned in fresh:
                assigned.error = OffsetError(*assigned.where, -1)
        self._fetcher.poke()

    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_revoked: Told | None = None,
        on_assigned: Told | None = None,
        on_lost: Told | None = None,
    ) -> None:
        """Shares topics with the other members of the group: by name, or all that a pattern
        matches in full, those that are created later included.

        The callbacks are given a list of partitions, within a poll: `on_revoked` before they are
        given up, `on_lost` when others may have them already (unset: `on_revoked`), `on_assigned`
        after they were added. They may be coroutine functions. Subscribing again replaces topics
        and callbacks.
        """
        self._start()
        listener = Listener(on_revoked, on_assigned, on_lost)
        subscription = Subscription.of(topics, pattern, listener)
        group = self._member()
        if group.subscription is None and self._positions.assigned:
            raise ClientError("partitions were assigned by hand", fix="unsubscribe first")
        group.subscribe(subscription)

    async def unsubscribe(self, timeout_ms: int | None = None) -> None:
        """Gives up all partitions, however they came, and leaves the group."""
        self._check_open()
        if self._group is not None and self._group.subscription is not None:
            self._group.refuse_listener("unsubscribe")
            await self._group.leave("unsubscribed", self._limit(timeout_ms))
        else:
            self.assign([])

    def subscription(self) -> frozenset[str]:
        """The subscribed topics; for a pattern those of the partitions at hand."""
        chosen = self._group.subscription if self._group is not None else None
        if chosen is None:
            return frozenset()
        return chosen.topics or frozenset(where.topic for where in self._positions.assigned)

    @property
    def trouble(self) -> ClientError | None:
        """What keeps the cluster or the group's coordinator from answering, while it is tried
        again; None when nothing does."""
        mine = self._group.trouble if self._group is not None else None
        return self._cluster.trouble or mine

    def assignment(self) -> list[TopicPartition]:
        return sorted(self._positions.assigned)

    async def partitions(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic."""
        self._start()
        found = await self._cluster.topic(topic, self.settings.default_api_timeout_ms)
        return [TopicPartition(topic, partition) for partition in sorted(found.partitions)]

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Gives no more records of these partitions, of all when none is named."""
        for assigned in self._chosen(partitions):
            assigned.paused = True
        self._fetcher.poke()

    def resume(self, *partitions: tuple[str, int]) -> None:
        for assigned in self._chosen(partitions):
            assigned.paused = False
        self._fetcher.arrived.wake()
        self._fetcher.poke()

    def paused(self) -> list[TopicPartition]:
        return sorted(a.where for a in self._positions.assigned.values() if a.paused)

    # -- positions -------------------------------------------------------------------------------

    def seek(self, partition: tuple[str, int], offset: int, leader_epoch: int = -1) -> None:
        """Goes on at an offset. With the leader epoch of the record before it, it is noticed when
        that record is no longer the one that was read."""
        if offset < 0:
            raise ValueError(f"offset {offset} is negative; seek_to_end() goes to the end")
        self._assigned(partition).jump(offset, leader_epoch)
        self._fetcher.poke()

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Goes to the oldest record of these partitions, of all when none is named."""
        self._look_for(OffsetSpec.EARLIEST, partitions)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Goes behind the newest record of these partitions, of all when none is named."""
        self._look_for(OffsetSpec.LATEST, partitions)

    def seek_to_time(self, timestamp_ms: int, *partitions: tuple[str, int]) -> None:
        """Goes to the first record that is not older, or to the end when all are."""
        if timestamp_ms < 0:
            raise ValueError(f"timestamp {timestamp_ms} is negative")
        self._look_for(timestamp_ms, partitions)

    def skip(self, error: DecodeError) -> None:
        """Goes on behind a record that cannot be read."""
        self.seek((error.topic, error.partition), error.next_offset)

    async def position(self, partition: tuple[str, int], timeout_ms: int | None = None) -> int:
        """The offset at which reading goes on."""
        assigned = self._assigned(partition)

        async def known() -> int:
            while not assigned.found:
                if assigned.error is not None:
                    raise assigned.error.anew()
                await self._fetcher.arrived.wait()
            return assigned.position

        return await self._cluster.within(
            known(), self._limit(timeout_ms), f"the position in {assigned.where}"
        )

    def lag(self, partition: tuple[str, int]) -> int | None:
        """Records between the position and the end, as of the last fetch; None before that."""
        return self._assigned(partition).lag(self._isolation is Isolation.READ_COMMITTED)

    async def beginning_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        return await self._named_offsets(partitions, OffsetSpec.EARLIEST, timeout_ms)

    async def end_offsets(
        self, partitions: Iterable[tuple[str, int]], timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record; after the last stable one for read_committed."""
        return await self._named_offsets(partitions, OffsetSpec.LATEST, timeout_ms)

    async def offsets_for_times(
        self, times: Mapping[tuple[str, int], int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record that is not older than a timestamp; None where all are older."""
        self._start()
        wanted = {TopicPartition(*where): time for where, time in times.items()}
        return await list_offsets(self._cluster, wanted, self._isolation, self._limit(timeout_ms))

    # -- the group -------------------------------------------------------------------------------

    async def commit(
        self,
        offsets: Mapping[tuple[str, int], int | OffsetAndMetadata] | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Has the group go on at these offsets, or at the positions: behind what was given."""
        group = self._member()
        await group.offsets.commit(self._to_commit(group, offsets), self._limit(timeout_ms))

    def commit_nowait(
        self,
        offsets: Mapping[tuple[str, int], int | OffsetAndMetadata] | None = None,
        done: Done | None = None,
    ) -> None:
        """The same without waiting; `done` is called with the offsets and the failure or None.
        Commits leave in the order they were asked for; without `done` a failure is logged."""
        group = self._member()
        group.offsets.commit_nowait(self._to_commit(group, offsets), done)

    async def committed(
        self, partitions: Iterable[tuple[str, int]], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed; None where nothing is."""
        self._start()
        wanted = [TopicPartition(*where) for where in partitions]
        return await self._member().offsets.committed(wanted, self._limit(timeout_ms))

    def group_metadata(self) -> ConsumerGroupMetadata:
        """This member, for a transaction that commits its offsets."""
        return self._member().metadata()

    def _member(self) -> Group:
        self._check_open()
        if self._group is None:
            raise ClientError("this consumer is in no group", fix="give it a group_id")
        return self._group

    def _to_commit(
        self, group: Group, offsets: Mapping[tuple[str, int], int | OffsetAndMetadata] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            return group.offsets.consumed()
        return to_commit(offsets)

    # -- records ---------------------------------------------------------------------------------

    async def poll(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> list[ConsumerRecord[K, V]]:
        """Records that were fetched, waiting up to `timeout_ms` for the first of them.

        Raises what stands in the way: DecodeError, OffsetError, BrokerError. The position stays
        before it until a seek, or `skip`, moves on.
        """
        if max_records is not None and max_records < 1:
            raise ValueError(f"max_records is {max_records}; it has to be 1 at least")
        most = max_records or self.settings.max_poll_records
        if self._group is not None:
            return await self._poll_in_group(self._group, timeout_ms, most)
        # Fetches go on even if the caller never waits; and from a taking to its end there is no
        # await, so that a poll that is cancelled takes nothing with it.
        await asyncio.sleep(0)
        records = self._take(most)
        if records or timeout_ms <= 0:
            return records
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not records:
                    await self._fetcher.arrived.wait()
                    records = self._take(most)
        except TimeoutError:
            return []
        return records

    async def _poll_in_group(
        self, group: Group, timeout_ms: int, most: int
    ) -> list[ConsumerRecord[K, V]]:
        """The time limits waiting for records, not what the group wants of the application."""
        self._check_open()
        mono_ms = self._ports.clock.mono_ms
        deadline = mono_ms() + timeout_ms
        await group.turn()
        await asyncio.sleep(0)  # as above
        if group.due:  # what came in this moment has woken nobody
            await group.turn()
        while not (records := self._take(most)) and (left := deadline - mono_ms()) > 0:
            try:
                async with asyncio.timeout(left / 1000):
                    await self._arrived(group)
            except TimeoutError:
                return []
            if group.due:
                await group.turn()
        return records

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord[K, V]:
        for record in self._fetcher.flow:
            return record
        return await self._next()

    async def _next(self) -> ConsumerRecord[K, V]:
        """The next record, when there is something else to look at before it."""
        fetcher, group = self._fetcher, self._group
        if group is not None:
            group.touched = True
        if fetcher.breathe:
            fetcher.breathe = False
            await asyncio.sleep(0)
        if group is not None and group.due:  # last: what comes before somebody waits wakes nobody
            await group.turn()
        while (record := fetcher.next()) is None:
            self._check_open()
            await self._arrived(group)
            if group is not None and group.due:
                await group.turn()
        return record

    async def _arrived(self, group: Group | None) -> None:
        """Until there is something new; the group knows that the application waits for it."""
        if group is None:
            await self._fetcher.arrived.wait()
            return
        group.waiting += 1
        try:
            await self._fetcher.arrived.wait()
        finally:
            group.waiting -= 1

    # -- life ------------------------------------------------------------------------------------

    async def close(self, timeout_ms: int = 30_000, *, commit: bool = True) -> None:
        """Gives up the partitions, leaves the group and ends all connections. With automatic
        commits the positions are committed first, unless `commit` is false; then no listener
        commits them either. Commits, listeners (but not within a plain function) and the farewell
        are given up when the time is over. Whoever calls it once more waits for the same end."""
        if self._group is not None:
            self._group.refuse_listener("close")
        if self._closing:
            await self._cluster.ended(timeout_ms)
            return
        self._closing = True
        try:
            if self._group is not None and self._started:
                await self._group.leave("the consumer was closed", timeout_ms, commit)
        finally:
            self._closed = True
            self._fetcher.close()
            self._fetcher.arrived.wake()
            await self._cluster.close()

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        # Nobody knows whether the last records were worked on: they are read again.
        await self.close(commit=error is None)

    def _start(self) -> None:
        self._check_open()
        if not self._started:
            self._started = True
            self._cluster.start()
            self._fetcher.start()
            if self._group is not None:
                self._group.offsets.start()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the consumer was closed")

    def _take(self, most: int) -> list[ConsumerRecord[K, V]]:
        self._check_open()
        subscribed = self._group is not None and self._group.subscription is not None
        if not self._positions.assigned and not subscribed:
            raise ClientError(
                "nothing to read: no partition is assigned",
                fix="call consumer.assign() or subscribe() first",
            )
        return self._fetcher.take(most)

    def _limit(self, timeout_ms: int | None) -> int:
        return self.settings.default_api_timeout_ms if timeout_ms is None else timeout_ms

    def _assigned(self, partition: tuple[str, int]) -> AssignedPartition:
        self._check_open()
        found = self._positions.assigned.get(TopicPartition(*partition))
        if found is None:
            raise ValueError(f"{partition} is not assigned to this consumer")
        return found

    def _chosen(self, partitions: tuple[tuple[str, int], ...]) -> list[AssignedPartition]:
        if not partitions:
            self._check_open()
            return list(self._positions.assigned.values())
        return [self._assigned(where) for where in partitions]

    def _look_for(self, target: int, partitions: tuple[tuple[str, int], ...]) -> None:
        for assigned in self._chosen(partitions):
            assigned.look_for(target)
        self._fetcher.poke()

    async def _named_offsets(
        self, partitions: Iterable[tuple[str, int]], spec: OffsetSpec, timeout_ms: int | None
    ) -> dict[TopicPartition, int]:
        self._start()
        wanted = {TopicPartition(*where): int(spec) for where in partitions}
        found = await list_offsets(self._cluster, wanted, self._isolation, self._limit(timeout_ms))
        return {where: place.offset for where, place in found.items() if place is not None}
