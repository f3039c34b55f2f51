"""A cluster to talk to from plain code: Spark calls readers and writers outside any event loop.

A Python worker of Spark lives through many tasks, so the connections stay with the process and the
next task finds them open. The loop runs only while somebody waits for an answer; what arrives in
between waits in the socket, and a connection that was closed meanwhile is made anew.

Every link is closed when its process ends, whatever ends it but a signal. The end must not hang:
work that is still under way in another thread is cancelled and given a moment, then left behind in
silence. A forked process has its parent's links in memory, but not to use and not to close: the
loops share what the kernel keeps for them.
"""

import asyncio
import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeVar

from scriba.client.cluster import Cluster
from scriba.client.settings import ClientSettings
from scriba.peers.ports import real_ports
from scriba.runtime.loop.loop import loop_factory

T = TypeVar("T")

PATIENCE_S: Final = 2.0
"""How long closing waits, for work in another thread and then for tasks to end."""


class Link:
    def __init__(self, settings: ClientSettings) -> None:
        self._runner = asyncio.Runner(loop_factory=loop_factory(), debug=False)
        self._busy = threading.Lock()
        self._closed = False

        async def made() -> Cluster:
            cluster = Cluster(real_ports(), settings)
            cluster.start()
            return cluster

        self.cluster = self._runner.run(made())
        _open.add(self)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._busy:
            return self._runner.run(work)

    def close(self) -> None:
        """Does nothing when it was closed before."""
        if not self._busy.acquire(blocking=False):
            with contextlib.suppress(RuntimeError):  # it has just been closed
                self._runner.get_loop().call_soon_threadsafe(self._cancel)
            if not self._busy.acquire(timeout=PATIENCE_S):
                self.disown()
                return
        try:
            if self._closed:
                return
            self._closed = True
            _open.discard(self)
            with contextlib.suppress(TimeoutError):
                self._runner.run(asyncio.wait_for(self.cluster.close(), PATIENCE_S))
            self.disown()  # what does not end by then
            with contextlib.suppress(RuntimeError):  # no thread may begin so late
                self._runner.close()
        finally:
            self._busy.release()

    def _cancel(self) -> None:
        for task in asyncio.all_tasks(self._runner.get_loop()):
            task.cancel()

    def disown(self) -> None:
        """Nobody is told any more of tasks that never end."""
        with contextlib.suppress(RuntimeError):
            self._runner.get_loop().set_exception_handler(lambda loop, context: None)


Key = tuple[type[ClientSettings], frozenset[tuple[str, str]]]

_open: set[Link] = set()
_shared: dict[Key, Link] = {}
_spare: dict[Key, list[Link]] = {}
_inherited: list[Link] = []


def link(client: Mapping[str, str], kind: type[ClientSettings]) -> Link:
    """This process's link with these settings."""
    key = (kind, frozenset(client.items()))
    found = _shared.get(key)
    if found is None:
        found = _shared[key] = Link(kind.build(client, {}))
    return found


def own_link(client: Mapping[str, str], kind: type[ClientSettings], owner: object) -> Link:
    """A link that nobody else uses while its owner lives: a loop runs for one thread at a time.

    When the owner is gone the link waits for the next one. It cannot be closed then: the collector
    comes in any thread, also in one where another loop runs.
    """
    key = (kind, frozenset(client.items()))
    spare = _spare.setdefault(key, [])
    try:
        found = spare.pop()
    except IndexError:
        found = Link(kind.build(client, {}))
    weakref.finalize(owner, spare.append, found).atexit = False
    return found


@atexit.register
def close_links() -> None:
    """Closes all that this process has open."""
    for each in list(_open):
        each.close()
    _shared.clear()
    _spare.clear()


def _forked() -> None:
    for each in _open:
        each.disown()
    _inherited.extend(_open)
    _open.clear()
    _shared.clear()
    _spare.clear()


os.register_at_fork(after_in_child=_forked)
