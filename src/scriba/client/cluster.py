"""What a client knows of the cluster: its brokers, who leads what, and a connection to each.

The picture is fetched from any broker, first from the bootstrap servers, and again when it is too
old or someone found it wrong (`stale`). It covers only the topics somebody `want`ed. A partition's
leader never goes back to an older leader epoch: a broker that lags behind would send the client to
a leader that has been replaced (KIP-320).

A broker that is cut off from the others does not know what it missed, and answers as if nothing had
happened. So a broker whose word did not help is in `doubt`, and others are asked first, until all
of them are. A picture that has grown old is fetched from another broker than the last one, too:
nobody notices by a failure that a leader without followers has nothing new to tell.

One task keeps the picture; everyone else reads it without waiting, or awaits `next_update`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from scriba.client.model import TopicPartition, is_topic_name
from scriba.client.settings import ClientSettings
from scriba.errors import ErrorCode, error_code
from scriba.peers.addresses import format_address
from scriba.peers.connection import Connection
from scriba.peers.connection_pool import BrokerAddress, ConnectionPool
from scriba.peers.errors import (
    FIXES,
    BrokerError,
    ClientError,
    Closed,
    NetworkError,
    NotKafka,
    TimedOut,
)
from scriba.peers.ports import Backoff, Ports
from scriba.runtime.loop.tasks import Tasks
from scriba.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from scriba.wire.uuids import ZERO

log = logging.getLogger(__name__)

T = TypeVar("T")

NO_NODE: Final = -1

WORTH_TELLING_MS: Final = 1_000
"""How long something is wrong with a topic before it is told."""

_ANOTHER_MS: Final = 1_000
"""How long a connection to another broker may take while there is one to a broker in doubt."""

_ANSWER_MS: Final = 3_000
"""How long a broker may take to tell of the cluster before another is asked; it doubles."""

TOPIC_IDLE_MS: Final = 300_000
"""After this time a topic that was asked for once has left the picture."""

HOPELESS: Final = frozenset(
    {
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""What a broker says of a topic for which waiting does not help."""


class Node(NamedTuple):
    id: int
    host: str
    port: int
    rack: str | None = None


class Partition(NamedTuple):
    leader: int
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline: Sequence[int]


@dataclass(slots=True)
class Topic:
    name: str
    id: bytes
    internal: bool
    partitions: dict[int, Partition] = field(default_factory=dict)


class Cluster:
    def __init__(
        self,
        ports: Ports,
        settings: ClientSettings,
        *,
        auto_create: bool = False,
        topic_idle_ms: int | None = None,
    ) -> None:
        self.ports = ports
        self.settings = settings
        self.id: str | None = None
        self.controller = NO_NODE
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, Topic] = {}
        self.names: dict[bytes, str] = {}
        """Name of each known topic by its id."""
        self.errors: dict[str, ErrorCode] = {}
        """What is wrong with a wanted topic that is not in `topics`."""
        self._troubled: dict[str, int | None] = {}
        """Since when that is so; None when it was told."""
        self.tasks = Tasks()
        self._auto_create = auto_create
        self._topic_idle_ms = topic_idle_ms
        self._connections = ConnectionPool(ports, settings)
        self._doubted: set[str] = set()
        """Addresses of brokers whose word did not help; never those of all known brokers."""
        self._asked = ""
        """The broker that was asked last of those that may be asked anything."""
        self._source = ""
        """The broker from which the picture is."""
        self._unanswered = 0
        """How many requests for the picture in a row had no answer in time."""
        self._wanted: dict[str, int] = {}
        """When each topic of the picture was asked for last."""
        self._kept: set[str] = set()
        """Those of them that do not expire."""
        self._match: Callable[[str, bool], bool] | None = None
        self._stale = asyncio.Event()
        self._hurry = False
        self._updated: asyncio.Future[None] | None = None
        self._last_update = 0
        self._failure: ClientError | None = None
        self._refusal: ClientError | None = None
        """Why a request is tried again, though brokers may answer others."""
        self.hopeless: ClientError | None = None
        """Why nothing will come of waiting for the picture: no bootstrap server is a broker."""
        self._closed = False
        self._ended = asyncio.Event()
        """Set once nothing of it runs any more."""

    def start(self) -> None:
        """Begins to keep the picture; does nothing when it was begun before."""
        if self._closed:
            raise Closed("the client was closed")
        if self._updated is None:
            self._updated = asyncio.get_running_loop().create_future()
            self._stale.set()
            self.tasks.spawn(self._keep(), name="scriba-metadata")

    async def close(self) -> None:
        self._closed = True
        try:
            await self.tasks.stop()
        finally:
            self._connections.close()
            self._ended.set()
        if self._updated is not None and not self._updated.done():
            self._updated.set_exception(Closed("the client was closed"))
            self._updated.exception()  # there may be nobody who waits

    async def ended(self, timeout_ms: int | None) -> None:
        """Waits for the end of a close that another one has called, as long as there is time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._ended.wait()

    @property
    def trouble(self) -> ClientError | None:
        """The failure after which something is being tried again; None when nothing is."""
        return self._failure or self._refusal

    # -- the picture -----------------------------------------------------------------------------

    def want(self, topic: str) -> None:
        """Has a topic in the picture, from the next update until it was not used for long.

        A name that no request can hold is not asked for: the others would not be answered either.
        """
        if topic not in self._wanted:
            if not is_topic_name(topic):
                self.errors[topic] = ErrorCode.INVALID_TOPIC_EXCEPTION
            self._hurry = True
            self._stale.set()
        self._wanted[topic] = self.ports.clock.mono_ms()

    def keep(self, topic: str) -> None:
        """Has it there until it is forgotten, used or not."""
        self.want(topic)
        self._kept.add(topic)

    def want_matching(self, match: Callable[[str, bool], bool] | None) -> None:
        """Keeps all topics for whose name, and whether it is internal, `match` is true."""
        if match is None and self._match is None:
            return
        self._match = match
        self._hurry = True
        self._stale.set()

    def forget(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._wanted.pop(topic, None)
            self._kept.discard(topic)
            self._drop(topic)
            self.errors.pop(topic, None)
            self._troubled.pop(topic, None)

    def stale(self) -> None:
        """The picture was found wrong: it is fetched again soon, from another broker."""
        self.doubt(self._source)
        self._stale.set()

    def doubt(self, address: str) -> None:
        """What the broker said did not help: others are asked first from now on."""
        if address:
            self._doubted.add(address)

    def next_update(self) -> Awaitable[None]:
        """Done when the picture has been fetched the next time."""
        assert self._updated is not None, "not started"
        return asyncio.shield(self._updated)

    def partition(self, where: TopicPartition) -> Partition | None:
        topic = self.topics.get(where.topic)
        return None if topic is None else topic.partitions.get(where.partition)

    def leader(self, where: TopicPartition) -> int:
        """The leader's id; NO_NODE when there is none, or it is not known."""
        partition = self.partition(where)
        return NO_NODE if partition is None else partition.leader

    def learn_leader(
        self, where: TopicPartition, leader: int, epoch: int, nodes: Iterable[Node]
    ) -> bool:
        """Takes a broker's word on who leads now (KIP-951); whether that was news."""
        known = self.partition(where)
        if known is None or leader < 0 or epoch <= known.leader_epoch:
            return False
        for node in nodes:
            self._add_node(node)
        if leader not in self.nodes:
            return False
        moved = known._replace(leader=leader, leader_epoch=epoch)
        self.topics[where.topic].partitions[where.partition] = moved
        return True

    def is_behind(self, where: TopicPartition, epoch: int) -> bool:
        """Whether a broker that tells of this leader epoch has yet to hear of the present one."""
        known = self.partition(where)
        return known is not None and 0 <= epoch < known.leader_epoch

    async def topic(self, name: str, timeout_ms: float) -> Topic:
        """A topic of the picture; waits until it is in it. TimedOut names what stood in the way."""
        self.start()
        self.want(name)

        async def look() -> Topic:
            refresh = self._stale.set
            while (found := self.topics.get(name)) is None:
                self._check_hope()
                self.want(name)  # again: while it is waited for, it does not count as unused
                error = self.errors.get(name)
                if error in HOPELESS:
                    assert error is not None
                    told = name if is_topic_name(name) else ascii(name)[:100]
                    raise BrokerError(error, about=f"topic {told}")
                refresh()
                await self.next_update()
                refresh = self.stale  # another broker may know of it
            return found

        return await self.within(look(), timeout_ms, f"the metadata of topic {name}", name)

    async def ready(self, timeout_ms: float) -> None:
        """Waits until the brokers are known."""
        self.start()

        async def look() -> None:
            while not self.nodes:
                self._check_hope()
                self._stale.set()
                await self.next_update()

        await self.within(look(), timeout_ms, "the cluster's brokers")

    def _check_hope(self) -> None:
        if self.hopeless is not None:
            raise self.hopeless.anew()

    async def within(self, work: Awaitable[T], timeout_ms: float, what: str, topic: str = "") -> T:
        """`work`, or TimedOut after this time, with the latest failure as its cause."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await work
        except TimeoutError:
            cause = self.trouble
            if cause is None and topic in self.errors:
                cause = BrokerError(self.errors[topic], about=f"topic {topic}")
            because = f": {cause}" if cause else ""
            raise TimedOut(
                f"{what} did not come within {timeout_ms:.0f} ms{because}", cause=cause
            ) from cause

    # -- connections -----------------------------------------------------------------------------

    async def connect(self, node_id: int, purpose: str = "") -> Connection:
        """The connection to a broker, made if need be, with its back-off after failures.

        Requests that a broker may hold (Fetch) get a connection of their own by a `purpose`, so
        that others do not wait behind them.
        """
        node = self.nodes.get(node_id)
        if node is None:
            self.stale()
            raise NetworkError(f"no broker has the id {node_id}")
        try:
            return await self._connections.connect(node_id, node.host, node.port, purpose)
        except NetworkError as failure:
            self._failure = failure
            self.stale()
            raise

    async def connect_to(self, node_id: int, host: str, port: int) -> Connection:
        """A connection to a node that is no broker of the picture, such as a controller."""
        return await self._connections.connect(node_id, host, port, "elsewhere")

    def living(self, node_id: int) -> Connection | None:
        """The connection to a broker, if there is one at this moment."""
        return self._connections.living(node_id)

    async def any_connection(self) -> Connection:
        """The least busy connection; a new one, first to known brokers, when there is none.

        Connections to brokers in doubt count for nothing while another broker can be reached.
        """
        connection = await self._any_connection()
        self._asked = connection.address
        return connection

    async def _any_connection(self) -> Connection:
        known = [(node.id, node.host, node.port) for node in self.nodes.values()]
        others = [at for at in known if format_address(*at[1:]) not in self._doubted]
        if not others:
            self._doubted.clear()  # the round begins again
        if found := self._connections.least_busy(but=self._doubted):
            return found
        if fallback := self._connections.least_busy():
            return await self._another(others) or fallback
        return await self._new_connection(known)

    async def _another(self, others: Sequence[BrokerAddress]) -> Connection | None:
        """A new connection to one of these brokers, if that takes no long time."""
        try:
            async with asyncio.timeout(_ANOTHER_MS / 1000):
                for at in self._connections.least_failed_first(others):
                    try:
                        return await self._connections.connect(*at)
                    except NetworkError as refused:
                        log.debug("another broker is looked for: %s", refused)
        except TimeoutError:
            pass
        self._doubted.clear()
        return None

    async def _new_connection(self, known: Sequence[BrokerAddress]) -> Connection:
        failures: list[NetworkError] = []
        rebootstrap = self.settings.metadata_recovery_strategy == "rebootstrap"
        first = self._connections.least_failed_first(known, later=self._doubted)
        then = self._connections.bootstrap() if rebootstrap or not known else []
        for node_id, host, port in [*first, *then]:
            try:
                return await self._connections.connect(node_id, host, port)
            except NetworkError as refused:
                failures.append(refused)
        if not failures:
            raise NetworkError("no broker is known")
        if not known and all(isinstance(failure, NotKafka) for failure in failures):
            failures[-1].retriable = False
        # What may pass tells more than that another address is no broker's.
        raise min(failures, key=lambda failure: isinstance(failure, NotKafka))

    async def retry(self, attempt: Callable[[], Awaitable[T]], timeout_ms: float, what: str) -> T:
        """Tries until it works, the failure is no longer retriable, or the time is over."""
        settings = self.settings
        backoff = Backoff(self.ports.rng, settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self.start()

        mine: ClientError | None = None

        async def keep_trying() -> T:
            nonlocal mine
            while True:
                try:
                    return await attempt()
                except ClientError as failure:
                    if not failure.retriable:
                        raise
                    mine = self._refusal = failure
                    self.doubt(self._asked)
                    log.debug("%s: trying again after %s", what, failure)
                await asyncio.sleep(backoff.next_ms() / 1000)

        try:
            return await self.within(keep_trying(), timeout_ms, what)
        finally:
            if self._refusal is mine:
                self._refusal = None

    # -- keeping it ------------------------------------------------------------------------------

    async def _keep(self) -> None:
        clock, settings = self.ports.clock, self.settings
        backoff = Backoff(self.ports.rng, settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        while True:
            age = clock.mono_ms() - self._last_update
            left = settings.metadata_max_age_ms - age
            if self._troubled:
                left = min(left, WORTH_TELLING_MS - age)  # it may have been made meanwhile
            try:
                async with asyncio.timeout(max(0, left) / 1000):
                    await self._stale.wait()
            except TimeoutError:
                self.doubt(self._source)
            pause = self._last_update + settings.retry_backoff_ms - clock.mono_ms()
            if pause > 0 and self._last_update and not self._hurry:
                await asyncio.sleep(pause / 1000)
            self._stale.clear()
            self._hurry = False
            try:
                await self._update()
            except Exception as failure:
                self._not_updated(failure)
                await asyncio.sleep(backoff.next_ms() / 1000)
            else:
                backoff.reset()

    def _not_updated(self, wrong: Exception) -> None:
        """Has the picture fetched again, or those who wait for it be told that it is in vain. A
        mistake of ours must not leave them waiting for a task that has ended."""
        failure = wrong
        if not isinstance(failure, ClientError):
            failure = ClientError(f"the cluster cannot be asked about: {wrong!r}", cause=wrong)
        if self._failure is None:
            mistake = None if failure is wrong else wrong
            log.warning("no metadata yet: %s", failure, exc_info=mistake)
        self._failure = failure
        self._stale.set()
        self._recover()
        if not failure.retriable and (failure is not wrong or not self.nodes):
            self.hopeless = failure
            self._wake()

    def _recover(self) -> None:
        """Forgets all brokers when none of them has told of the cluster for too long (KIP-1102)."""
        settings, now = self.settings, self.ports.clock.mono_ms()
        if settings.metadata_recovery_strategy != "rebootstrap" or not self.nodes:
            return
        if now - self._last_update >= settings.metadata_recovery_rebootstrap_trigger_ms:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """The bootstrap servers are asked next."""
        self.nodes.clear()
        self._doubted.clear()
        self._connections.drop_all()

    def _wake(self) -> None:
        """Has all who wait for an update look again."""
        assert self._updated is not None
        done, self._updated = self._updated, asyncio.get_running_loop().create_future()
        done.set_result(None)

    async def _update(self) -> None:
        connection = await self.any_connection()
        self._expire_topics()
        asked = [name for name in self._wanted if is_topic_name(name)]
        version = connection.version(MetadataRequest)
        everything = self._match is not None
        request = MetadataRequest(
            topics=None if everything else [MetadataRequestTopic(name=name) for name in asked],
            allow_auto_topic_creation=self._auto_create or version < 4,
        )
        answer = await self._answer(connection, request, version)
        if answer.error_code:
            refusal = BrokerError(error_code(answer.error_code), about="metadata")
            if answer.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
                self._begin_anew()
                refusal.retriable = True  # the bootstrap servers may answer
            raise refusal
        self._source = connection.address
        self._apply(answer, everything)
        self._failure = self.hopeless = None
        self._last_update = self.ports.clock.mono_ms()
        self._wake()

    async def _answer(
        self, connection: Connection, request: MetadataRequest, version: int
    ) -> MetadataResponse:
        """The answer, unless the broker takes so long that another should be asked."""
        limit_ms = min(_ANSWER_MS << min(self._unanswered, 10), self.settings.request_timeout_ms)
        try:
            async with asyncio.timeout(limit_ms / 1000):
                answer = await connection.request(request, MetadataResponse, version=version)
        except (TimeoutError, ClientError) as failure:
            self.doubt(connection.address)
            if isinstance(failure, ClientError):
                raise
            self._unanswered += 1
            told = f"{connection.address} did not tell of the cluster within {limit_ms} ms"
            raise TimedOut(told) from failure
        self._unanswered = 0
        return answer

    def _apply(self, answer: MetadataResponse, everything: bool) -> None:
        self.id = answer.cluster_id
        self.controller = answer.controller_id
        seen = {broker.node_id for broker in answer.brokers}
        for gone in [node_id for node_id in self.nodes if node_id not in seen]:
            del self.nodes[gone]
            self._connections.drop(gone)
        for broker in answer.brokers:
            self._add_node(Node(broker.node_id, broker.host, broker.port, broker.rack))
        for topic in answer.topics:
            if topic.name is not None:
                self._apply_topic(topic, topic.name)
        if everything:
            told = {topic.name for topic in answer.topics}
            for missing in [name for name in self.topics if name not in told]:
                self._drop(missing)
            for missing in [n for n in self._wanted if n not in told and is_topic_name(n)]:
                self._trouble(missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _add_node(self, node: Node) -> None:
        known = self.nodes.get(node.id)
        if known is not None and (known.host, known.port) != (node.host, node.port):
            self._connections.drop(node.id)
        self.nodes[node.id] = node
        self._connections.adopt(node.id, node.host, node.port)

    def _apply_topic(self, topic: MetadataResponseTopic, name: str) -> None:
        matching = self._match is not None and self._match(name, topic.is_internal)
        if name not in self._wanted and not matching:
            self._drop(name)
            return
        if topic.error_code:
            self._trouble(name, error_code(topic.error_code))
            if topic.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
                self._drop(name)
            return
        self._untroubled(name)
        old = self.topics.get(name)
        before = old.partitions if old is not None and old.id == topic.topic_id else {}
        fresh = Topic(name, topic.topic_id, topic.is_internal)
        for p in sorted(topic.partitions, key=lambda p: p.partition_index):
            known = before.get(p.partition_index)
            if known is not None and p.leader_epoch < known.leader_epoch and p.leader_epoch >= 0:
                fresh.partitions[p.partition_index] = known
                continue
            fresh.partitions[p.partition_index] = Partition(
                p.leader_id,
                p.leader_epoch,
                p.replica_nodes,
                p.isr_nodes,
                p.offline_replicas,
            )
        self._drop(name)
        self.topics[name] = fresh
        if fresh.id != ZERO:
            self.names[fresh.id] = name

    def _trouble(self, name: str, error: ErrorCode) -> None:
        """Takes down what is wrong with a topic. A topic that is being made passes through such
        states, so it is told when it lasts."""
        self.errors[name] = error
        now = self.ports.clock.mono_ms()
        since = self._troubled.setdefault(name, now)
        if since is not None and now - since >= WORTH_TELLING_MS:
            self._troubled[name] = None
            fix = FIXES.get(error)
            log.warning("topic %s: %s%s", name, error.text, f" (fix: {fix})" if fix else "")

    def _untroubled(self, name: str) -> None:
        self.errors.pop(name, None)
        if self._troubled.pop(name, 0) is None:
            log.info("topic %s is there now", name)

    def _drop(self, topic: str) -> None:
        known = self.topics.pop(topic, None)
        if known is not None:
            self.names.pop(known.id, None)

    def _expire_topics(self) -> None:
        if self._topic_idle_ms is None:
            return
        oldest = self.ports.clock.mono_ms() - self._topic_idle_ms
        idle = [name for name, used in self._wanted.items() if used < oldest]
        self.forget([name for name in idle if name not in self._kept])
