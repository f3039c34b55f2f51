"""One transaction for each batch, and in it the batch's name.

The sink's transactional id fences: whoever asks for it last gets the next epoch, and nobody can
write or commit under an older one. Beginning a run therefore is: (1) take the id, which also ends
what an earlier run left open; (2) only then read the marker, the committed offset of the sink's own
group whose metadata names the query and batch of the last commit; it cannot change any more, except
by our own hand.

The marker is committed by the same transaction as the rows, so the end of the transaction is the
one point at which a batch exists: rows and marker are both there, or neither. A batch that Spark
repeats, because it crashed before it had noted the end of the batch, finds its name in the marker
and is left out.

Every transaction has an epoch of its own, and so counts its rows from zero in every partition:
tasks need to know nothing of earlier batches, and what a task of an earlier batch or attempt might
still send is refused. Brokers of the second generation raise the epoch at each end (KIP-890); with
others we ask for it.
"""

import json
import logging
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from scriba.client.coordinator import Coordinator, CoordinatorKind
from scriba.client.group.commits import CommittedOffsets
from scriba.client.model import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from scriba.client.settings import ProducerSettings
from scriba.client.transactions.machine import State, Transactions
from scriba.client.transactions.requests import TransactionCalls
from scriba.spark.link import Link
from scriba.spark.writing.task_writer import Identity

log = logging.getLogger(__name__)

PREFIX: Final = "scriba-sink-"


class Marker(NamedTuple):
    """The last batch that was committed."""

    query: str
    batch: int


class SinkTransactions:
    """The transactions of one sink, in one run of its query."""

    def __init__(
        self, link: Link, settings: ProducerSettings, sink_id: str, place: TopicPartition
    ) -> None:
        self._link = link
        self._settings = settings
        self._id = PREFIX + sink_id
        self._place = place
        self._group = ConsumerGroupMetadata(PREFIX + sink_id)
        self._machine = Transactions(self._id)
        self._calls = TransactionCalls(link.cluster, settings, self._machine)

    def take_over(self) -> Marker | None:
        """Fences earlier runs; the last batch that was committed by any of them."""
        self._machine.initialize()
        self._machine.initialized(self._link.run(self._calls.initialize()))
        return self._link.run(self._read_marker())

    def begin(self, targets: Iterable[TopicPartition]) -> Identity:
        """Opens a transaction; what tasks write under."""
        machine = self._machine
        machine.begin(self._calls.implicit)
        wanted = list(targets)
        for where in wanted:
            machine.admits(where)
        if not machine.implicit:
            machine.telling()
            self._link.run(self._calls.add_partitions(wanted))
            machine.told(wanted)
        assert machine.identity is not None
        return Identity(*machine.identity, self._id, machine.implicit)

    def mark(self, marker: Marker) -> None:
        """Puts the batch's name into the transaction."""
        metadata = json.dumps({"query": marker.query, "batch": marker.batch})
        offsets = {self._place: OffsetAndMetadata(marker.batch, metadata)}
        self._link.run(self._calls.send_offsets(offsets, self._group))

    def commit(self) -> None:
        """Rows and marker come to be, together. TimedOut leaves open whether they have."""
        self._machine.commit()
        self._finish(self._link.run(self._calls.end(commit=True)))

    def abort(self) -> None:
        """Nothing of the transaction stays. ProducerFenced when another run has taken over."""
        if self._machine.state is State.FATAL:
            assert self._machine.error is not None
            raise self._machine.error
        self._machine.abort()
        self._finish(self._link.run(self._calls.end(commit=False)))

    def _finish(self, identity: tuple[int, int] | None) -> None:
        if identity is None or identity == self._machine.identity:
            identity = self._link.run(self._calls.initialize())
        self._machine.ended(identity)

    async def _read_marker(self) -> Marker | None:
        cluster, limit = self._link.cluster, self._settings.max_block_ms
        home = Coordinator(cluster, CoordinatorKind.GROUP, self._group.group_id)
        offsets = CommittedOffsets(cluster, home)
        await cluster.topic(self._place.topic, limit)
        found = await cluster.retry(
            lambda: offsets.fetch(self._group, [self._place]), limit, "the marker of the sink"
        )
        said = found[self._place]
        return None if said is None else _read(said.metadata)


def _read(metadata: str) -> Marker | None:
    """None for an offset that somebody else committed."""
    try:
        document: Any = json.loads(metadata)
        return Marker(str(document["query"]), int(document["batch"]))
    except (ValueError, KeyError, TypeError):
        log.warning("the sink's group holds an offset without a batch's name: %r", metadata)
        return None
