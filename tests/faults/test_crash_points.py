"""A broker's process that is killed at chosen system calls, under the whole cast.

The kernel kills it as it begins its n-th write to a chosen file, or its n-th rename: in a
rebalance, in an offset commit, in each phase of a transaction, in the swap of a compacted segment.
Then it starts again on what is there, and the cast goes on. In the end everything is caught up
with, and the histories are held against what is left.
"""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from scriba.testing.sim.actors.cast import SINK
from tests.faults.cast_play import SETTINGS, Play
from tools.kafka.brokers import ScribaBroker, TraceableBroker

WRITES = "pwritev,pwritev2,pwrite64"
RENAMES = "rename,renameat,renameat2"
TRACER_S = 10


class Point(NamedTuple):
    """The n-th of some system calls, of those that touch a partition's log if one is named."""

    partition: str
    calls: str
    when: int


POINTS = (
    *(Point("__consumer_offsets-0", WRITES, when) for when in (1, 2, 4)),
    *(Point("__transaction_state-0", WRITES, when) for when in (1, 2, 3)),
    *(Point(f"{SINK}-0", WRITES, when) for when in (1, 2)),
    *(Point("", RENAMES, when) for when in (1, 2, 3)),
)
MORE_RENAMES = (4, 6, 8, 10, 12, 14, 20, 30, 40)
"""Which renames come first, checkpoints or a swap, is up to the clock: deaths go on until one of a
swap is among them."""


@contextlib.asynccontextmanager
async def fatal(broker: ScribaBroker, point: Point, seen: Path) -> AsyncIterator[None]:
    """`seen` has the calls, the fatal one last."""
    command = ["strace", "-f", "-p", str(broker.pid), "-s", "300", "-o", str(seen)]
    if point.partition:
        command += ["-P", str(broker.log_dir / point.partition / f"{0:020}.log")]
    command += ["-e", f"trace={point.calls}"]
    command += ["-e", f"inject={point.calls}:signal=SIGKILL:when={point.when}"]
    tracer = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    try:
        assert tracer.stderr is not None
        told = b""
        while b"attached" not in told:
            told = await tracer.stderr.readline()
            assert told, "strace cannot attach"
        yield
    finally:
        # It ends with what it traces. Told to end at that very moment it may wait for ever: for a
        # process of which it would have to let go of the last thread first.
        try:
            async with asyncio.timeout(TRACER_S):
                await tracer.wait()
        except TimeoutError:
            tracer.kill()
            await tracer.wait()


class DeadlyPlay(Play):
    def __init__(self, broker: ScribaBroker) -> None:
        super().__init__(broker.bootstrap)
        self.broker = broker
        self.seen = ""

    async def die_at(self, point: Point) -> None:
        """One member leaves and comes back meanwhile, so that there is always a rebalance."""
        member = self.any_member()
        seen = self.broker.data / "calls"
        async with fatal(self.broker, point, seen):
            member.stopping = True
            await self.until(self.broker.ended)
        self.seen += seen.read_text()
        self.broker.kill()
        await asyncio.to_thread(self.broker.start)
        await self.leave(member)
        self.enter(member)

    def swaps(self) -> list[str]:
        """Renames of a swap among the calls before a death."""
        return [line for line in self.seen.splitlines() if ".swap" in line and "rename" in line]


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
async def test_whatever_call_the_broker_dies_in_every_promise_holds_after_it(
    tmp_path: Path,
) -> None:
    broker = TraceableBroker(tmp_path, SETTINGS)
    await asyncio.to_thread(broker.start)
    play = DeadlyPlay(broker)
    try:
        async with play.on_stage():
            await play.set_up()
            for point in POINTS:
                await play.die_at(point)
            for when in MORE_RENAMES:
                if not play.swaps():
                    await play.die_at(Point("", RENAMES, when))
            await play.come_to_rest()
    finally:
        broker.kill()
    assert not play.books.violations, play.books.violations
    assert play.books.groups.accepted > len(POINTS)
    assert play.swaps(), "no death came near the swap of a segment"
