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
the method of the same name there. The loop runs in a thread, so that batches leave and records
arrive between calls.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from inspect import isawaitable
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from scriba.client.admin import Admin
from scriba.client.batches import Delivery
from scriba.client.consumer import Consumer
from scriba.client.errors import ClientError, Closed, RecordError, TimedOut
from scriba.client.model import ConsumerGroupMetadata, ConsumerRecord, RecordMetadata
from scriba.client.producer import Producer
from scriba.client.transactions_run import OffsetsLike, Transaction
from scriba.runtime.loop import run
from scriba.runtime.threads import start_daemon

C = TypeVar("C", Producer, Consumer, Admin)
T = TypeVar("T")

_HANDED_OVER: Final = 10_000
"""Records that a producer's caller may be ahead of its event loop."""


class _Host:
    """An event loop in a thread of its own, and ways to run something on it from outside."""

    def __init__(self) -> None:
        up: SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = SimpleQueue()
        self._ended: SimpleQueue[None] = SimpleQueue()
        start_daemon(partial(self._main, up), "scriba-client")
        self._loop, self._stop = up.get()

    def _main(self, up: "SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Event]]") -> None:
        async def serve() -> None:
            stop = asyncio.Event()
            up.put((asyncio.get_running_loop(), stop))
            await stop.wait()

        run(serve())
        self._ended.put(None)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def poke(self, call: Callable[[], object]) -> None:
        """Has the loop call something soon."""
        self._loop.call_soon_threadsafe(call)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._ended.get()


class Sync(Generic[C]):
    """A client of which every method waits; attributes are those of the asynchronous one."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._closed = False
        self._host = _Host()

        async def made() -> C:
            return make()

        try:
            self._client: C = self._host.run(made())
        except BaseException:
            self._host.close()
            raise

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        attribute = getattr(self._client, name)
        return partial(self._call, attribute) if callable(attribute) else attribute

    def close(self, *args: Any, **kwargs: Any) -> None:
        if not self._closed:
            try:
                self._call(self._client.close, *args, **kwargs)
            finally:
                self._closed = True
                self._host.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._closed:
            raise Closed("the client was closed")

        async def work() -> Any:
            await self._before()
            result = method(*args, **kwargs)
            return await result if isawaitable(result) else result

        return self._host.run(work())

    async def _before(self) -> None:
        """Runs on the loop before each call."""


class SyncDelivery:
    """The fate of one record that was sent without waiting."""

    __slots__ = ("_delivery", "_error", "_producer")

    def __init__(self, producer: "SyncProducer") -> None:
        self._producer = producer
        self._delivery: Delivery | None = None
        self._error: ClientError | None = None

    def done(self) -> bool:
        return self._error is not None or (self._delivery is not None and self._delivery.done())

    def result(self, timeout_ms: int | None = None) -> RecordMetadata:
        """Where the record was written; waits for it. Raises why it was not."""
        if not self.done():
            self._producer._wait_for(self, timeout_ms)
        if self._error is not None:
            raise self._error
        assert self._delivery is not None
        return self._delivery.result()

    def exception(self, timeout_ms: int | None = None) -> ClientError | None:
        """Why the record was not written, None when it was; waits for it."""
        if not self.done():
            self._producer._wait_for(self, timeout_ms)
        return self._error or (self._delivery.exception() if self._delivery else None)


class SyncTransaction:
    """One transaction as a block: committed at its end, aborted when an exception leaves it."""

    def __init__(self, producer: "SyncProducer") -> None:
        self._producer = producer
        self._inner: Transaction | None = None

    def send_offsets(self, offsets: OffsetsLike, group: ConsumerGroupMetadata | str) -> None:
        """As `Producer.send_offsets_to_transaction`."""
        self._producer.send_offsets_to_transaction(offsets, group)

    def __enter__(self) -> Self:
        self._inner = self._producer._call(self._producer._client.transaction)
        self._producer._call(self._inner.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        assert self._inner is not None
        self._producer._call(self._inner.__aexit__, kind, error, at)


class SyncProducer(Sync[Producer]):
    """`send_nowait` hands records over in bulk, and waits only when the buffer is full."""

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        self._handed: deque[tuple[SyncDelivery, tuple[Any, ...], dict[str, Any]]] = deque()
        self._taking = False
        self._lock = asyncio.Lock()
        super().__init__(partial(Producer, config, **keywords))

    def send_nowait(self, *args: Any, **kwargs: Any) -> SyncDelivery:
        """As `Producer.enqueue`: puts a record on its way and gives a handle to its fate."""
        if self._closed:
            raise Closed("the producer was closed")
        delivery = SyncDelivery(self)
        self._handed.append((delivery, args, kwargs))
        if not self._taking:
            self._taking = True  # before the loop is told, which sets it back when it is done
            self._host.poke(self._take_over)
        if len(self._handed) >= _HANDED_OVER:
            self._call(_nothing)
        return delivery

    enqueue = send_nowait

    def transaction(self) -> SyncTransaction:
        """`with producer.transaction():` commits at its end, aborts when it raises."""
        return SyncTransaction(self)

    def _take_over(self) -> None:
        self._task = asyncio.ensure_future(self._before())

    async def _before(self) -> None:
        """Gives the producer what was handed over, in order, whoever else does the same."""
        async with self._lock:
            while self._handed or self._taking:
                self._taking = False  # from here on, whoever hands over tells again
                while self._handed:
                    delivery, args, kwargs = self._handed.popleft()
                    try:
                        delivery._delivery = await self._client.enqueue(*args, **kwargs)
                    except ClientError as refused:
                        delivery._error = refused
                    except Exception as wrong:
                        delivery._error = RecordError(f"cannot be sent: {wrong!r}", cause=wrong)

    def _wait_for(self, waited: SyncDelivery, timeout_ms: int | None) -> None:
        async def work() -> None:
            if waited._delivery is not None:
                try:
                    async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                        await waited._delivery
                except TimeoutError:
                    raise TimedOut("the record is still on its way") from None
                except ClientError:
                    pass  # the caller asks the delivery itself

        self._call(work)


class SyncConsumer(Sync[Consumer]):
    """Iterating reads ahead; every other call first gives back what was not iterated over."""

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        self._ahead: deque[ConsumerRecord[Any, Any]] = deque()
        super().__init__(partial(Consumer, config, **keywords))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord[Any, Any]:
        while not self._ahead:
            self._ahead.extend(self._call(self._client.poll, 1000))
        return self._ahead.popleft()

    async def _before(self) -> None:
        first: dict[tuple[str, int], int] = {}
        for record in self._ahead:
            first.setdefault((record.topic, record.partition), record.offset)
        self._ahead.clear()
        for where, offset in first.items():
            if where in self._client.assignment():
                self._client.seek(where, offset)


class SyncAdmin(Sync[Admin]):
    """Takes settings by Kafka's names, as `Admin` does."""

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        super().__init__(partial(Admin, config, **keywords))


async def _nothing() -> None:
    pass
