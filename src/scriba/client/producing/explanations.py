"""Why a partition takes no records, for the error that its producer gets.

A producer that waited for minutes and then hears "not delivered" knows nothing. Who leads the
partition, which replicas are missed, since when and what can be done is what `scriba topic why`
tells; so the same page is in the error. It is found out by an admin of its own beside the sending,
and is only ever added to an error that there is anyway: whatever goes wrong here leaves that error
as it was.

No delivery takes longer for it than `delivery.timeout.ms`. Shortly before that is over for a batch,
the question is asked; a batch that fails before (few `retries`) waits for the answer, for
`PATIENCE_MS` at most.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from scriba.client.cluster import Cluster
from scriba.client.model import TopicPartition
from scriba.client.settings import ProducerSettings
from scriba.errors import ErrorCode
from scriba.peers.addresses import format_address
from scriba.peers.errors import BrokerError, ClientError, NetworkError, TimedOut

log = logging.getLogger(__name__)

PATIENCE_MS: Final = 3_000
"""How long the answer may take."""
FRESH_MS: Final = 10_000
"""How long it is true enough for the next error."""
AT_ONCE: Final = 4
"""Partitions that are explained at the same time; for others the error names the command."""
KEPT: Final = 64

EXPLAINED: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""What a broker says where the state of the partition is the cause."""


def explainable(error: ClientError) -> bool:
    if isinstance(error, BrokerError):
        return error.code in EXPLAINED
    return isinstance(error, TimedOut | NetworkError)


def say_where_nodes_start(choices: Iterable[dict[str, Any]]) -> None:
    """Whether `scriba up --nodes` runs a broker of this machine, and in which folder, is not known
    here: `scriba node start` does nothing in another."""
    for choice in choices:
        if (choice["command"] or "").startswith("scriba node start "):
            choice["choice"] += " (if scriba up --nodes runs it, in the folder of that)"


class Explanations:
    def __init__(self, cluster: Cluster, settings: ProducerSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = cluster.ports.clock
        self._known: dict[TopicPartition, tuple[int, str]] = {}
        self._asking: dict[TopicPartition, asyncio.Future[None]] = {}

    def look(self, where: TopicPartition) -> asyncio.Future[None] | None:
        """Begins to find out, unless that is known or under way; what to wait for, if anything."""
        if self.known(where) is not None:
            return None
        if where in self._asking:
            return self._asking[where]
        if len(self._asking) >= AT_ONCE:
            return None
        done = self._asking[where] = asyncio.get_running_loop().create_future()
        self._cluster.tasks.spawn(self._find_out(where, done), name=f"scriba-why-{where}")
        return done

    def known(self, where: TopicPartition) -> str | None:
        """What was found out lately; empty where all is well with the partition."""
        found = self._known.get(where)
        if found is None or self._clock.mono_ms() - found[0] >= FRESH_MS:
            return None
        return found[1]

    def add(
        self, where: TopicPartition, error: ClientError, within_ms: int, then: Callable[[], None]
    ) -> None:
        """Adds what is known to an error, and goes on; what is not known yet is waited for."""
        under_way = self.look(where) if within_ms > 0 else None
        if under_way is None:
            self._tell(where, error)
            then()
            return
        self._cluster.tasks.spawn(
            self._wait(where, error, under_way, min(within_ms, PATIENCE_MS), then),
            name=f"scriba-why-{where}-error",
        )

    async def _wait(
        self,
        where: TopicPartition,
        error: ClientError,
        under_way: asyncio.Future[None],
        limit_ms: int,
        then: Callable[[], None],
    ) -> None:
        try:
            await asyncio.wait([under_way], timeout=limit_ms / 1000)
            self._tell(where, error)
        finally:
            then()

    def _tell(self, where: TopicPartition, error: ClientError) -> None:
        found = self.known(where)
        error.explanation = f"why: scriba topic why {where}" if found is None else found

    async def _find_out(self, where: TopicPartition, done: asyncio.Future[None]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_MS / 1000):
                text = await self._page(where)
            if len(self._known) >= KEPT:
                self._known.pop(next(iter(self._known)))
            self._known[where] = self._clock.mono_ms(), text
        except (ClientError, TimeoutError) as failure:
            log.debug("%s could not be explained: %s", where, failure)
        except Exception:
            # An error is on its way to the application already, and it is that one that counts.
            log.exception("%s could not be explained", where)
        finally:
            self._asking.pop(where, None)
            if not done.done():
                done.set_result(None)

    async def _page(self, where: TopicPartition) -> str:
        # Nobody who sends in peace pays for these.
        from scriba.client.admin.admin import Admin
        from scriba.client.diagnosis.explain import is_well
        from scriba.client.diagnosis.gather import explained
        from scriba.client.diagnosis.page import page

        known = [format_address(node.host, node.port) for node in self._cluster.nodes.values()]
        servers = list(dict.fromkeys([*known, *self._settings.bootstrap_servers]))
        async with Admin(
            bootstrap_servers=servers,
            client_id=self._settings.client_id,
            request_timeout_ms=PATIENCE_MS,
            default_api_timeout_ms=PATIENCE_MS,
            _ports=self._cluster.ports,
        ) as admin:
            topic = (await admin.describe_topics([where.topic]))[where.topic]
            # Brokers are waited for, then controllers; the rest is for what goes before and after.
            limit_ms, now_ms = PATIENCE_MS // 3, self._clock.wall_ms()
            (document,) = await explained(admin, topic, where.partition, limit_ms, now_ms)
        say_where_nodes_start(document["choices"])
        return "" if is_well(document) else page(document, now_ms)
