"""A service of the inventory: reads for itself, writes when it is chosen, forwards when it is not.

Any number of them may run; each has its own folder. All parts run on one event loop, and a part
that fails unexpectedly ends the service: another one takes over.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from scriba.client import Admin, ClientError, TopicPartition
from scriba.client.producing.partitioner import by_key
from scriba.pipelines.inventory.decide import Accepted, Decision
from scriba.pipelines.inventory.follower import Faulty, Follower
from scriba.pipelines.inventory.http.asking import NoAnswer, forward
from scriba.pipelines.inventory.lead import Directory, Lead
from scriba.pipelines.inventory.model import Command, Event, Kind
from scriba.pipelines.inventory.store import Store
from scriba.pipelines.inventory.topics import Names, WeakSettings, prepare
from scriba.pipelines.inventory.writer import Unavailable, Watch, Writer

log = logging.getLogger(__name__)

FORWARD_SECONDS: Final = 40.0
FRESH_SECONDS: Final = 5.0


class NotCaughtUp(Exception):
    """The service may not show what it has."""


@dataclass(frozen=True)
class ServiceSettings:
    client: Mapping[str, Any]
    """Settings that all clients take; `bootstrap.servers` is one of them."""
    folder: Path
    url: str
    """Where the others reach this service."""
    names: Names = field(default_factory=Names)
    partitions: int = 3
    allow_single_node: bool = False
    writes: bool = True
    """Whether it takes part in the choice of the active writer."""
    session_timeout_ms: int = 10_000
    max_staleness: float = 10.0
    """Seconds for which what was verified may be shown."""


class Service:
    """Made by `open`; `run` keeps it up to date until it is cancelled."""

    def __init__(
        self, settings: ServiceSettings, store: Store, partitions: int, watch: Watch
    ) -> None:
        self.settings = settings
        self.names = names = settings.names
        self.store = store
        self.partitions = partitions
        self.outcomes: Counter[tuple[Kind, str]] = Counter()
        """Commands that were answered here, whoever decided them."""
        places = [
            TopicPartition(topic, n)
            for topic in (names.events, names.audit)
            for n in range(partitions)
        ]
        self.follower = Follower(settings.client, store, places, names.audit)
        self.directory = Directory(settings.client, names)
        self.lead: Lead | None = None
        if settings.writes:
            self.lead = Lead(
                settings.client,
                names,
                settings.url,
                settings.session_timeout_ms,
                lambda: Writer(settings.client, names, store, self.follower, watch),
            )

    @classmethod
    async def open(cls, settings: ServiceSettings, watch: Watch = lambda step: None) -> Self:
        """Checks the topics, creates what is missing, and opens the local store."""
        names = settings.names
        async with Admin(settings.client) as admin:
            cluster = (await admin.describe_cluster()).id
            topics = await prepare(admin, names, settings.partitions, settings.allow_single_node)
        count = len(topics[names.events].partitions)
        identity = {
            "cluster": cluster,
            names.events: topics[names.events].id,
            names.audit: topics[names.audit].id,
            "partitions": str(count),
        }
        store = Store(settings.folder, names)
        try:
            _check_partitions(store.facts(), identity)
            if not store.belongs_to(identity):
                log.warning("%s was of other topics; it is read anew", settings.folder)
        except BaseException:
            store.close()
            raise
        return cls(settings, store, count, watch)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.directory.run())
                following = tasks.create_task(self.follower.run())
                if self.lead is not None:
                    leading = tasks.create_task(self._lead(self.lead))
                    # It ends only when the books are damaged: such a service must not be chosen.
                    following.add_done_callback(lambda _: leading.cancel())
        finally:
            self.store.close()

    async def _lead(self, lead: Lead) -> None:
        """Stands for election once it has read the books: who is chosen keeps others waiting."""
        await self.follower.caught_up.wait()
        await lead.run()

    # -- reading ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises unless what the store has may be shown."""
        if self.follower.fault is not None:
            raise NotCaughtUp(f"the books cannot be trusted: {self.follower.fault}")
        ago = self.follower.verified_ago()
        if ago is None:
            raise NotCaughtUp(f"not caught up yet: {self.follower.lag()} records to go")
        if ago > self.settings.max_staleness:
            raise NotCaughtUp(f"no news of the cluster for {ago:.0f} s")

    async def refresh(self) -> None:
        """Everything that is committed now will be shown."""
        try:
            await self.follower.catch_up(FRESH_SECONDS)
        except (Faulty, ClientError) as failure:
            self.check()
            raise NotCaughtUp(f"not caught up: {failure}") from failure
        except TimeoutError as late:
            raise NotCaughtUp(f"not caught up within {FRESH_SECONDS:.0f} s") from late

    def place(self, topic: str, item: str) -> TopicPartition:
        return TopicPartition(topic, by_key(item.encode(), self.partitions))

    # -- writing ---------------------------------------------------------------------------------

    @property
    def writer(self) -> Writer | None:
        return self.lead.writer if self.lead is not None else None

    async def decide(self, command: Command) -> Decision:
        """By the writer here; Unavailable when it is elsewhere."""
        writer = self.writer
        if writer is None:
            raise Unavailable("the active writer is not here")
        return await writer.ask(command)

    async def forward(self, kind: Kind, document: Any) -> tuple[int, dict[str, Any]]:
        """The answer of the active writer's service."""
        url = self.directory.url
        if url is None or url == self.settings.url:
            raise Unavailable("no writer is active at the moment")
        asking = asyncio.ensure_future(forward(url, f"/{kind}", document))
        leaving = asyncio.ensure_future(self.directory.left(url))
        try:
            await asyncio.wait(
                [asking, leaving], timeout=FORWARD_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if not asking.done():
                raise NoAnswer("the active writer did not answer, or is another one by now")
            return asking.result()
        finally:
            asking.cancel()
            leaving.cancel()


def _check_partitions(found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Refuses topics that grew: items would be elsewhere than their past."""
    if {**found, "partitions": ""} == {**found, **wanted, "partitions": ""}:
        before = found.get("partitions", wanted["partitions"])
        if before != wanted["partitions"]:
            raise WeakSettings(
                f"the topics had {before} partitions and have {wanted['partitions']} now, so items "
                "moved away from their past; copy the books to topics of another --name"
            )


def told(event: Event) -> dict[str, Any]:
    """An event as services show it."""
    return {
        "type": event.type,
        "item": event.item,
        "change": event.change,
        "stock": event.stock,
        "version": event.version,
        "command": event.command,
        "sequence": event.sequence,
        "line": event.line,
        "lines": event.lines,
        "at": event.at,
        "reason": event.reason,
    }


def outcome_of(command: Command, decision: Decision) -> dict[str, Any]:
    """A decision as services answer it."""
    if isinstance(decision, Accepted):
        return {
            "outcome": "accepted",
            "command": command.id,
            "repeated": decision.repeated,
            "sequence": decision.events[0].sequence,
            "events": [told(event) for event in decision.events],
        }
    return {
        "outcome": "refused",
        "command": command.id,
        "why": decision.why,
        "shortages": [
            {"item": short.item, "stock": short.stock, "change": short.change}
            for short in decision.shortages
        ],
    }
