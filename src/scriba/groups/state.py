"""What every function of the coordinator is handed: settings, topics, the stored state, timers."""

import heapq
from typing import NamedTuple

from scriba.groups.facts import GroupSettings, Topics
from scriba.groups.store import Store
from scriba.instant import ClockWatch
from scriba.outcome import Caller, Outcome


class Timer(NamedTuple):
    """Names a deadline; setting it again moves it. `kind` chooses the function that is called."""

    kind: str
    group_id: str = ""
    member_id: str = ""


class Timers:
    """Deadlines on the monotonic clock. Moved and cancelled ones stay in the heap until they
    surface, so that a heartbeat costs one push; a heap of mostly dead entries is rebuilt."""

    def __init__(self) -> None:
        self._deadlines: dict[Timer, int] = {}
        self._heap: list[tuple[int, Timer]] = []

    def set(self, timer: Timer, deadline_ms: int) -> None:
        if self._deadlines.get(timer) == deadline_ms:
            return
        self._deadlines[timer] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, timer))
        if len(self._heap) > 64 + 4 * len(self._deadlines):
            self._heap = [(deadline, timer) for timer, deadline in self._deadlines.items()]
            heapq.heapify(self._heap)

    def cancel(self, timer: Timer) -> None:
        self._deadlines.pop(timer, None)

    def __contains__(self, timer: Timer) -> bool:
        return timer in self._deadlines

    def next_deadline(self) -> int | None:
        while self._heap:
            deadline, timer = self._heap[0]
            if self._deadlines.get(timer) == deadline:
                return deadline
            heapq.heappop(self._heap)
        return None

    def take_due(self, now_ms: int) -> Timer | None:
        """The earliest timer that is due, which is then no longer set."""
        deadline = self.next_deadline()
        if deadline is None or deadline > now_ms:
            return None
        _, timer = heapq.heappop(self._heap)
        del self._deadlines[timer]
        return timer


class State:
    """`leading` turns true when the shard has loaded; from then on what lives is ahead of what is
    stored, and replay no longer builds it."""

    def __init__(self, settings: GroupSettings, topics: Topics) -> None:
        self.settings = settings
        self.topics = topics
        self.store = Store()
        self.timers = Timers()
        self.leading = False
        self.to_expire: list[str] = []
        """Groups that the expiry pass under way has yet to look at."""
        self.clock_watch: ClockWatch | None = None
        """Whether to believe the wall clock when offsets expire; from the load on."""


def merge(into: Outcome, more: Outcome) -> Outcome:
    """Adds what another step of the same request brought about."""
    into.records += more.records
    into.replies += more.replies
    into.told += more.told
    into.sends += more.sends
    into.events += more.events
    into.work = into.work or more.work
    return into


def fresh_uuid(caller: Caller) -> str:
    """A random UUID in the usual form, made of the request's own bytes."""
    raw = bytearray(caller.fresh)
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def client_host(caller: Caller) -> str:
    """As Kafka stores and shows it, with the slash that Java puts before an address."""
    return f"/{caller.host}"
