"""Python's garbage collector in a process that serves: no pause grows with what the process keeps.

A node keeps some sixty objects for each partition, and a full collection walks all of them: with
twelve thousand partitions it held the loop for 0.3 to 0.5 s. It is not needed for what a node
does, whose connections, partitions and requests are in no cycles and go by their reference counts.
What is in one, an exception with its traceback for example, goes while it is young.

So the collector looks at what is new since the last freeze and at nothing else: what has outlasted
two collections gathers in the oldest generation, and once that has some ten thousand objects, it is
looked at a last time and frozen, never to be walked again. It is not frozen earlier: an exception
that somebody keeps while he waits to try again is garbage a second later, and with a node that is
away there are dozens of them a minute. Where many are made at once they are frozen unseen.

A cycle that ends after that is garbage nobody finds. What such garbage may come to is bounded by
memory: when a process has grown by half of what it may have, everything is looked at once.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

from scriba.runtime.memory import private_bytes

COLLECT_AFTER: Final = (5_000, 4, 500)
"""How often the collector runs, by its three generations. At its defaults a request that makes
hundreds of thousands of objects has all of them walked again and again; they are not garbage, and
what is goes by its reference count. The second generation is looked at before it has more objects
than a few milliseconds are enough for, and the third by `collect_young`."""

BEAT_S: Final = 0.1
LASTING: Final = 10_000
"""Objects that have lasted, with which it is time to freeze them."""
OLDER_EVERY: Final = 5
GROWTH_EVERY: Final = 100
"""Beats between two looks at the second generation, and between two at the memory."""

log = logging.getLogger(__name__)


@contextmanager
def without_collections() -> Iterator[None]:
    """For imports in a program of somebody else: what they make, it keeps."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def hold_collector() -> None:
    """Until `freeze` nothing is collected: what a start makes, it keeps."""
    gc.disable()


def freeze() -> None:
    """Takes all that start-up made out of the collector's sight, and from now on what lasts.

    Called once when a node serves. A collection here would hold the loop for some three thousand
    small objects that are garbage: they stay.
    """
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    gc.callbacks.append(_freeze_what_is_left)
    gc.enable()


def _freeze_what_is_left(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and (info["generation"] == 2 or (info["generation"] == 1 and _many_last())):
        gc.freeze()


def _many_last() -> bool:
    return len(gc.get_objects(2)) > 2 * LASTING


def collect_young(older: bool) -> None:
    """Looks at what is new; a while later, and if that is little, at what has lasted since the last
    freeze, too."""
    gc.collect(1 if older else 0)
    if older and len(gc.get_objects(2)) > LASTING:
        gc.collect()


def collect_all() -> int:
    """Looks at everything, frozen or not; how many objects were garbage."""
    gc.unfreeze()
    # Which freezes what is left, as any other does.
    return gc.collect()


async def collect_as_it_grows(memory_bytes: int, beat_s: float = BEAT_S) -> None:
    """Has the collector look at what is young ten times a second; and at everything where the
    process has grown by half of the memory it may have, and so again from there.

    By itself it counts what was made less what was freed, of any age. While as many old objects
    go, where topics are deleted for example, it does not come, and walks all the new ones later.
    """
    least = private_bytes()
    for beat in count(1):
        await asyncio.sleep(beat_s)
        collect_young(older=beat % OLDER_EVERY == 0)
        if beat % GROWTH_EVERY:
            continue
        now = private_bytes()
        least = min(least, now)
        if now - least >= memory_bytes // 2:
            _collect_grown(now)
            least = private_bytes()


def _collect_grown(size: int) -> None:
    began = time.perf_counter()
    found = collect_all()
    log.info(
        "the process has grown to %d MB: all objects were looked at in %d ms, %d were garbage",
        size >> 20,
        (time.perf_counter() - began) * 1000,
        found,
    )
