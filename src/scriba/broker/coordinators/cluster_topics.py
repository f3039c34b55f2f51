"""The cluster's topics as the group coordinators see them, and the search for those that match."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, Protocol

from scriba.broker.ports import BackgroundTasks, MetadataView, Timekeeping
from scriba.errors import KafkaError
from scriba.groups.facts import TopicFacts
from scriba.groups.regex.search import Search
from scriba.groups.regex.syntax import Expression
from scriba.outcome import Sees
from scriba.runtime.loop.pace import Pace

if TYPE_CHECKING:
    from scriba.controller.image import TopicImage

SLICE_VISITS: Final = 20_000
SLICE_TOPICS: Final = 2_000
"""What is matched against an expression at a time: some milliseconds."""
KEPT_FOR_S: Final = 60.0
"""How long topics that were found are told, as long as there are no others. A group asks for those
of all its expressions together, and comes again until it has them all."""


class TopicSource(BackgroundTasks, MetadataView, Timekeeping, Protocol):
    """What looking for topics takes: the image, and time to go through it."""


class TopicSearch:
    """The topics that a regular expression names and its subscriber sees, found in slices."""

    def __init__(self, node: MetadataView, expression: str, sees: Sees | None) -> None:
        self.key = (expression, sees)
        self.shape = node.shape
        self.done = False
        self._search = Search(Expression(expression), tuple(node.image.topics_by_name))
        self._unseen: Iterator[str] | None = None
        self._seen: list[str] = []
        self._sees = sees
        self._failure: KafkaError | None = None

    def advance(self) -> bool:
        """Does a slice of it; whether there is an end."""
        if not self.done:
            try:
                self.done = self._slice()
            except KafkaError as error:  # told to whoever asks for the topics
                self._failure, self.done = error, True
        return self.done

    def _slice(self) -> bool:
        if self._unseen is None:
            if not self._search.advance(SLICE_VISITS):
                return False
            self._unseen = iter(sorted(self._search.found()))
        if self._sees is None:
            self._seen += self._unseen
            return True
        for name in islice(self._unseen, SLICE_TOPICS):
            if self._sees(name):
                self._seen.append(name)
        more = next(self._unseen, None)
        if more is None:
            return True
        self._unseen = chain((more,), self._unseen)
        return False

    def found(self) -> frozenset[str]:
        if self._failure is not None:
            raise self._failure
        return frozenset(self._seen)


class ClusterTopics:
    """The topics of the image as the group coordinators see them: `groups.facts.Topics`.

    What was told of a topic is kept until the cluster's shape changes, whoever leads meanwhile or
    is in sync: a commit asks for it each time, and with racks it takes as long as the topic has
    partitions.
    """

    def __init__(self, node: TopicSource) -> None:
        self._node = node
        self._searches: dict[tuple[str, Sees | None], TopicSearch] = {}
        """Under way, or done a short while ago."""
        self._known: dict[bytes, TopicFacts] = {}
        self._known_at = -1

    def get(self, name: str) -> TopicFacts | None:
        topic = self._node.image.topics_by_name.get(name)
        return None if topic is None else self._facts(topic)

    def by_id(self, id: bytes) -> TopicFacts | None:
        topic = self._node.image.topics_by_id.get(id)
        return None if topic is None else self._facts(topic)

    def names(self) -> Iterable[str]:
        return self._node.image.topics_by_name

    def matching(self, expression: str, sees: Sees | None) -> frozenset[str] | None:
        search = self._searches.get((expression, sees))
        if search is None or search.shape != self._node.shape:
            search = TopicSearch(self._node, expression, sees)
        elif not search.done:
            return None
        if search.advance():
            return search.found()
        self._searches[expression, sees] = search
        self._node.tasks.spawn(self._go_on(search), name="matches topics")
        return None

    async def _go_on(self, search: TopicSearch) -> None:
        pace = Pace(self._node.world.clock)
        while not search.advance():
            await pace()
        await asyncio.sleep(KEPT_FOR_S)
        if self._searches.get(search.key) is search:
            del self._searches[search.key]

    def _facts(self, topic: TopicImage) -> TopicFacts:
        if self._known_at != self._node.shape:
            self._known.clear()
            self._known_at = self._node.shape
        known = self._known.get(topic.id)
        if known is None:
            racks = self._racks(topic)
            known = TopicFacts(topic.name, topic.id, len(topic.partitions), racks)
            self._known[topic.id] = known
        return known

    def _racks(self, topic: TopicImage) -> tuple[frozenset[str], ...]:
        brokers = self._node.image.brokers.values()
        racks = {broker.id: broker.rack for broker in brokers if broker.rack}
        if not racks:
            return ()
        return tuple(
            frozenset(racks[each] for each in partition.replicas if each in racks)
            for _, partition in sorted(topic.partitions.items())
        )
