"""Preferred leaders come back by themselves: the first replica of a partition, once it is in sync.

Every `leader.imbalance.check.interval.seconds` a round begins. It moves a few leaders a second, so
that clients and coordinators never change over all at once, and those of the coordinators' topics
last. A broker gets none back while a replica of its is out of sync: it is still catching up, and
leads better when it has done. Rounds are soft state, begun anew by each active controller.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from scriba.controller.indexes import Chosen
from scriba.controller.partitions.elections import Election, acceptor, change, rules
from scriba.controller.state import State
from scriba.instant import Instant
from scriba.wire.schema import Message

AT_ONCE: Final = 5
PAUSE_MS: Final = 1000
LOOKED_AT: Final = 2_000
"""Most partitions that one step looks at."""
COORDINATORS: Final = ("__consumer_offsets", "__transaction_state")


class LeaderRebalance:
    def __init__(self, state: State) -> None:
        self._state = state
        self._due_ms: int | None = None

    def begin(self, now: Instant) -> None:
        self._due_ms = now.mono_ms + self._interval_ms

    @property
    def _interval_ms(self) -> int:
        return self._state.settings.leader_imbalance_check_interval_seconds * 1000

    def step(self, now: Instant) -> list[Message]:
        """Leaders that change now; the next step is a moment later, or the next round."""
        if self._due_ms is None or now.mono_ms < self._due_ms:
            return []
        if not self._state.settings.auto_leader_rebalance_enable:
            self.begin(now)
            return []
        records = list(islice(self._elections(), AT_ONCE))
        if records:
            self._due_ms = now.mono_ms + PAUSE_MS
        else:
            self.begin(now)
        return records

    def _elections(self) -> Iterator[Message]:
        state, index = self._state, self._state.partitions
        ready = [b for b in state.image.brokers if state.active(b) and not self._is_behind(b)]
        for last in (False, True):
            chosen = islice(index.displaced(state.image, ready), LOOKED_AT)
            for each in chosen:
                if (each[0].name in COORDINATORS) is last:
                    record = self._election(each)
                    if record is not None:
                        yield record

    def _is_behind(self, broker: int) -> bool:
        """Whether a replica of the broker is out of sync that should not be: observers always
        are."""
        state = self._state
        return any(
            broker not in rules(state, topic.name).observing
            for topic in state.partitions.behind(state.image, broker)
        )

    def _election(self, chosen: Chosen) -> Message | None:
        topic, index, partition = chosen
        if partition.replicas[0] not in partition.isr:
            return None  # it is being added
        return change(
            topic.id,
            index,
            partition,
            acceptor(self._state, partition),
            rules(self._state, topic.name),
            election=Election.PREFERRED,
        )
