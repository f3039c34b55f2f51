"""Says what a node noticed to somebody: the log, a counter, and a ring that the console reads.

One place decides how loud an event is (`EventKind.level`) and how often it is said. All are
counted. Kinds that repeat are told once a minute about the same thing, with how many there were
since; and no kind gets more than `LINES_PER_MINUTE` lines of the log. What was held back is said as
a number when the minute is over (`flush`), so nothing is dropped in silence.

Routine events (`INFO`) have a ring of their own: a thousand rebalances do not push out the disk
that failed. Numbers go up by one and begin again with each start of the node.
"""

from __future__ import annotations

import logging
from collections import deque
from heapq import merge
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from scriba.events import EventKind
from scriba.runtime.ports import Clock

log = logging.getLogger("scriba.events")

KEPT: Final = 1024
"""Events of each ring."""
TOLD_EVERY_MS: Final = 60_000
LINES_PER_MINUTE: Final = 20
"""Most lines of the log for one kind."""
MOST_REPEATING: Final = 1024
"""Things about which repeating events are told apart; the rest share one place."""
MOST_TEXT: Final = 2000
"""Characters; what is longer is cut."""
_OTHERS: Final = "others"


class Note(Protocol):
    """How the parts of a node tell of an event."""

    def __call__(
        self, kind: EventKind, about: str, text: str, failure: BaseException | None = None
    ) -> None: ...


class Noted(NamedTuple):
    """An event as it was told."""

    number: int
    wall_ms: int
    kind: EventKind
    about: str
    text: str

    def as_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "time_ms": self.wall_ms,
            "kind": self.kind.label,
            "level": logging.getLevelName(self.kind.level).lower(),
            "about": self.about,
            "text": self.text,
            "remedy": self.kind.remedy,
        }


class Page(NamedTuple):
    """Events after a number, for a reader who comes again."""

    events: list[Noted]
    next: int
    """What to ask with the next time."""
    lost: int
    """Events in between that are not kept any more."""


class _Repeating:
    """Events of one kind about one thing."""

    __slots__ = ("again_ms", "held", "text")

    def __init__(self, now_ms: int) -> None:
        self.again_ms = now_ms + TOLD_EVERY_MS
        self.held = 0
        self.text = ""
        """Of the last one that was held back."""


class _Lines:
    """Lines of the log for one kind within a minute."""

    __slots__ = ("ends_ms", "held", "logged")

    def __init__(self, now_ms: int) -> None:
        self.ends_ms = now_ms + TOLD_EVERY_MS
        self.logged = 0
        self.held = 0


class Events:
    def __init__(self, clock: Clock) -> None:
        self.counts = dict.fromkeys(EventKind, 0)
        self._clock = clock
        self._important: deque[Noted] = deque(maxlen=KEPT)
        self._routine: deque[Noted] = deque(maxlen=KEPT)
        self._last = 0
        self._repeating: dict[tuple[EventKind, str], _Repeating] = {}
        self._lines: dict[EventKind, _Lines] = {}

    # ---- saying ----

    def note(
        self, kind: EventKind, about: str, text: str, failure: BaseException | None = None
    ) -> None:
        """Tells of an event; of a `failure` that nobody expected the log has the trace."""
        self.counts[kind] += 1
        if kind.repeats:
            now_ms = self._clock.mono_ms()
            about = self._place_of(kind, about)
            known = self._repeating.get((kind, about))
            if known is not None and now_ms < known.again_ms:
                known.held += 1
                known.text = text
                return
            self._repeating[kind, about] = _Repeating(now_ms)
            if known is not None and known.held:
                text = f"{text} ({known.held} more since this was last told)"
        self._tell(kind, about, text, failure)

    def flush(self) -> None:
        """Says what was held back and is due; a pass of every few seconds."""
        now_ms = self._clock.mono_ms()
        for (kind, about), known in tuple(self._repeating.items()):
            if now_ms < known.again_ms:
                continue
            if known.held:
                self._repeating[kind, about] = _Repeating(now_ms)
                self._tell(kind, about, f"{known.text} ({known.held} since this was last told)")
            else:
                del self._repeating[kind, about]
        for kind, lines in tuple(self._lines.items()):
            if now_ms >= lines.ends_ms:
                del self._lines[kind]
                if lines.held:
                    log.log(
                        kind.level, "%s: %d more, not logged one by one", kind.label, lines.held
                    )

    def _place_of(self, kind: EventKind, about: str) -> str:
        if len(self._repeating) < MOST_REPEATING or (kind, about) in self._repeating:
            return about
        return _OTHERS

    def _tell(
        self, kind: EventKind, about: str, text: str, failure: BaseException | None = None
    ) -> None:
        self._last += 1
        noted = Noted(self._last, self._clock.wall_ms(), kind, about[:MOST_TEXT], text[:MOST_TEXT])
        (self._routine if kind.level < logging.WARNING else self._important).append(noted)
        if not log.isEnabledFor(kind.level):
            return
        lines = self._lines.get(kind)
        if lines is None or self._clock.mono_ms() >= lines.ends_ms:
            held = lines.held if lines is not None else 0
            lines = self._lines[kind] = _Lines(self._clock.mono_ms())
            _say_held(kind, held)
        if lines.logged == LINES_PER_MINUTE:
            lines.held += 1
            return
        lines.logged += 1
        log.log(kind.level, "%s: %s: %s", kind.label, noted.about, noted.text, exc_info=failure)

    # ---- reading ----

    def since(self, number: int = 0) -> list[Noted]:
        """Events after `number` that are kept, oldest first."""
        return [event for event in merge(self._routine, self._important) if event.number > number]

    def page(self, number: int, limit: int) -> Page:
        """As `since`, at most `limit` of them. A reader that knows more than there ever was has
        read an earlier run of the node: it begins again."""
        after = number if number <= self._last else 0
        found = list(islice(self.since(after), limit))
        reached = found[-1].number if found else self._last
        return Page(found, reached, reached - after - len(found))


def _say_held(kind: EventKind, lines: int) -> None:
    if lines:
        log.log(kind.level, "%s: %d more, not logged one by one", kind.label, lines)
