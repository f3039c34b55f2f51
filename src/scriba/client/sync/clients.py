"""The clients for code that has no event loop: every call waits for its result.

    with SyncProducer(bootstrap_servers="localhost:9092") as producer:
        producer.send("orders", b"first")                   # waits until it is written
        delivery = producer.send_nowait("orders", b"second")
        delivery.result()

    with SyncConsumer(bootstrap_servers="localhost:9092") as consumer:
        consumer.assign(consumer.partitions("orders"))
        for record in consumer:
            print(record.value)

These are the same objects as the asynchronous clients, on an event loop of their own: a call runs
the method of the same name there. The loop runs in a thread, so that batches leave, records arrive
and heartbeats go out between calls. Callbacks run in the thread that called.
"""

import contextlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar, Unpack, overload

from scriba.client.admin.admin import Admin
from scriba.client.consuming.consumer import Consumer
from scriba.client.consuming.record import ConsumerRecord
from scriba.client.consuming.subscription import Told
from scriba.client.group.offsets import Done, Offsets
from scriba.client.keywords import AdminKeywords, ConsumerKeywords
from scriba.client.model import (
    K,
    OffsetAndMetadata,
    TopicPartition,
    V,
)
from scriba.client.settings import AdminSettings, ConsumerSettings
from scriba.client.sync.host import Sync, calls, waits
from scriba.client.sync.producer import SyncDelivery, SyncProducer, SyncTransaction
from scriba.peers.errors import ClientError

__all__ = ["SyncAdmin", "SyncConsumer", "SyncDelivery", "SyncProducer", "SyncTransaction"]

T = TypeVar("T")
U = TypeVar("U")

Heard = Callable[[Sequence[TopicPartition]], object]
"""A callback of a subscription; it runs in the thread that polls."""

_READ_AHEAD: Final = 2_000
"""Records that iterating takes from the event loop at once, when no group waits meanwhile."""


class SyncConsumer(Sync[Consumer[K, V]], Generic[K, V]):
    """Iterating reads ahead; every other call first gives back what was not iterated over, and
    what of that no seek leaves behind comes next, without a fetch."""

    @overload
    def __init__(
        self: "SyncConsumer[bytes | None, bytes | None]",
        config: None = None,
        **keywords: Unpack[ConsumerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self: "SyncConsumer[bytes | None, T | None]",
        config: None = None,
        *,
        value_deserializer: Callable[[bytes], T],
        **keywords: Unpack[ConsumerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self: "SyncConsumer[T | None, bytes | None]",
        config: None = None,
        *,
        key_deserializer: Callable[[bytes], T],
        **keywords: Unpack[ConsumerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self: "SyncConsumer[T | None, U | None]",
        config: None = None,
        *,
        key_deserializer: Callable[[bytes], T],
        value_deserializer: Callable[[bytes], U],
        **keywords: Unpack[ConsumerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self: "SyncConsumer[Any, Any]",
        config: Mapping[str, Any] | None,
        *,
        key_deserializer: str | Callable[[bytes], Any] = "bytes",
        value_deserializer: str | Callable[[bytes], Any] = "bytes",
        **keywords: Unpack[ConsumerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self: "SyncConsumer[Any, Any]",
        config: None = None,
        *,
        key_deserializer: str,
        value_deserializer: str | Callable[[bytes], Any] = "bytes",
        **keywords: Unpack[ConsumerKeywords],
    ) -> None: ...

    @overload
    def __init__(
        self: "SyncConsumer[Any, Any]",
        config: None = None,
        *,
        key_deserializer: str | Callable[[bytes], Any] = "bytes",
        value_deserializer: str,
        **keywords: Unpack[ConsumerKeywords],
    ) -> None: ...

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        self._ahead: deque[ConsumerRecord[K, V]] = deque()
        self._committed: deque[Callable[[], object]] = deque()

        def make() -> Consumer[K, V]:
            return Consumer(config, **keywords)

        super().__init__(make)

    assign = calls(Consumer.assign)
    assignment = calls(Consumer.assignment)
    beginning_offsets = waits(Consumer.beginning_offsets)
    commit = waits(Consumer.commit)
    committed = waits(Consumer.committed)
    end_offsets = waits(Consumer.end_offsets)
    group_metadata = calls(Consumer.group_metadata)
    lag = calls(Consumer.lag)
    offsets_for_times = waits(Consumer.offsets_for_times)
    partitions = waits(Consumer.partitions)
    pause = calls(Consumer.pause)
    paused = calls(Consumer.paused)
    position = waits(Consumer.position)
    resume = calls(Consumer.resume)
    seek = calls(Consumer.seek)
    seek_to_beginning = calls(Consumer.seek_to_beginning)
    seek_to_end = calls(Consumer.seek_to_end)
    seek_to_time = calls(Consumer.seek_to_time)
    skip = calls(Consumer.skip)
    subscription = calls(Consumer.subscription)
    unsubscribe = waits(Consumer.unsubscribe)

    @property
    def settings(self) -> ConsumerSettings:
        return self._client.settings

    @property
    def trouble(self) -> ClientError | None:
        """As `Consumer.trouble`."""
        return self._client.trouble

    def close(self, timeout_ms: int = 30_000, *, commit: bool = True) -> None:
        """As `Consumer.close`."""
        if not self._closed and self._client._group is not None:
            self._call(self._client._group.refuse_listener, "close")
        self._end(timeout_ms, commit=commit)

    def _leave(self, error: BaseException | None) -> None:
        self._end(commit=error is None)

    def poll(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> list[ConsumerRecord[K, V]]:
        """As `Consumer.poll`."""

        async def work() -> None:
            await self._before()
            # There the next call finds them, and gives them back, if this one is interrupted.
            self._ahead.extend(await self._client.poll(timeout_ms, max_records))

        self._run(work())
        records = list(self._ahead)
        self._ahead.clear()
        try:
            self._after()
        except BaseException:
            self._ahead.extend(records)
            raise
        return records

    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        on_revoked: Heard | None = None,
        on_assigned: Heard | None = None,
        on_lost: Heard | None = None,
    ) -> None:
        """As `Consumer.subscribe`; the callbacks run in the thread that polls."""
        self._call(
            self._client.subscribe,
            topics,
            pattern=pattern,
            on_revoked=self._in_caller(on_revoked),
            on_assigned=self._in_caller(on_assigned),
            on_lost=self._in_caller(on_lost),
        )

    def _in_caller(self, callback: Heard | None) -> Told | None:
        return None if callback is None else partial(self._host.in_caller, callback)

    def commit_nowait(
        self,
        offsets: Mapping[tuple[str, int], int | OffsetAndMetadata] | None = None,
        done: Done | None = None,
    ) -> None:
        """As `Consumer.commit_nowait`; `done` is called by a later call, in its thread."""

        def later(committed: Offsets, failure: ClientError | None) -> None:
            assert done is not None
            self._committed.append(partial(done, committed, failure))

        self._call(self._client.commit_nowait, offsets, None if done is None else later)

    def _after(self) -> None:
        while self._committed:
            try:
                told = self._committed.popleft()
            except IndexError:
                return  # another thread was quicker
            told()

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        ahead = self._ahead
        while True:
            while ahead:
                yield ahead.popleft()
            self._read_ahead()

    def __next__(self) -> ConsumerRecord[K, V]:
        while not self._ahead:
            self._read_ahead()
        return self._ahead.popleft()

    def _read_ahead(self) -> None:
        """In a group as many as a poll may give: its members have to come back in time."""
        most = self.settings.max_poll_records
        if self.settings.group_id is None:
            most = max(most, _READ_AHEAD)
        self._ahead.extend(self.poll(1000, most))

    async def _before(self) -> None:
        records: list[ConsumerRecord[K, V]] = []
        with contextlib.suppress(IndexError):
            while True:  # one by one: another thread may iterate as this one closes
                records.append(self._ahead.popleft())
        if records:
            self._client._fetcher.give_back(records)


class SyncAdmin(Sync[Admin]):
    """Takes settings by Kafka's names, as `Admin` does."""

    def __init__(
        self, config: Mapping[str, Any] | None = None, **keywords: Unpack[AdminKeywords]
    ) -> None:
        super().__init__(partial(Admin, config, **keywords))

    abort_transaction = waits(Admin.abort_transaction)
    add_raft_voter = waits(Admin.add_raft_voter)
    alter_configs = waits(Admin.alter_configs)
    alter_group_offsets = waits(Admin.alter_group_offsets)
    alter_partition_reassignments = waits(Admin.alter_partition_reassignments)
    alter_replica_log_dirs = waits(Admin.alter_replica_log_dirs)
    create_partitions = waits(Admin.create_partitions)
    create_topics = waits(Admin.create_topics)
    delete_group_offsets = waits(Admin.delete_group_offsets)
    delete_groups = waits(Admin.delete_groups)
    delete_records = waits(Admin.delete_records)
    delete_topics = waits(Admin.delete_topics)
    describe_cluster = waits(Admin.describe_cluster)
    describe_configs = waits(Admin.describe_configs)
    describe_features = waits(Admin.describe_features)
    describe_groups = waits(Admin.describe_groups)
    describe_log_dirs = waits(Admin.describe_log_dirs)
    describe_replicas = waits(Admin.describe_replicas)
    describe_producers = waits(Admin.describe_producers)
    describe_quorum = waits(Admin.describe_quorum)
    describe_controller = waits(Admin.describe_controller)
    describe_topics = waits(Admin.describe_topics)
    describe_transactions = waits(Admin.describe_transactions)
    elect_leaders = waits(Admin.elect_leaders)
    fence_producers = waits(Admin.fence_producers)
    incremental_alter_configs = waits(Admin.incremental_alter_configs)
    list_config_resources = waits(Admin.list_config_resources)
    list_group_offsets = waits(Admin.list_group_offsets)
    list_groups = waits(Admin.list_groups)
    list_offsets = waits(Admin.list_offsets)
    list_partition_reassignments = waits(Admin.list_partition_reassignments)
    list_topics = waits(Admin.list_topics)
    list_transactions = waits(Admin.list_transactions)
    remove_raft_voter = waits(Admin.remove_raft_voter)
    replace_configs = waits(Admin.replace_configs)
    unregister_broker = waits(Admin.unregister_broker)
    update_features = waits(Admin.update_features)

    @property
    def settings(self) -> AdminSettings:
        return self._client.settings

    @property
    def trouble(self) -> ClientError | None:
        """As `Admin.trouble`."""
        return self._client.trouble

    def close(self) -> None:
        """As `Admin.close`."""
        self._end()
