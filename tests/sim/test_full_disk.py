"""A device without room: what waits for it goes on when there is room again."""

import asyncio
from collections.abc import Awaitable, Callable

from scriba.records.batch import EndTxnMarker, end_txn_batch, read_header
from scriba.settings import TopicSettings
from scriba.storage.log import Log
from scriba.storage.logdir import LogDir
from scriba.testing.sim.compacting import append
from scriba.testing.sim.world import ProcessWorld, SimWorld


def with_a_log(story: Callable[[SimWorld, ProcessWorld, Log], Awaitable[None]]) -> None:
    sim = SimWorld(1)
    host = sim.host("broker")

    async def main(world: ProcessWorld) -> None:
        home = LogDir.open(world.disk, "/data", world.offload)
        await home.adopt("cluster", 1, bytes(16))
        await home.start()
        log = await home.open_log("t", 0, b"i" * 16, TopicSettings(), world.clock.now())
        await story(sim, world, log)
        await home.close()

    async def play() -> None:
        await host.start(main).task

    sim.run(play())


def abort(log: Log, world: ProcessWorld) -> None:
    now = world.clock.now()
    append(
        log, [("k", "v")], now,
        producer_id=5, producer_epoch=0, base_sequence=0, transactional=True,
    )  # fmt: skip
    marker = end_txn_batch(5, 0, EndTxnMarker(False, 0), now.wall_ms)
    log.append(memoryview(marker), read_header(marker), 0, now)


def test_a_flush_waits_for_room_for_the_transaction_index_and_takes_nothing_offline() -> None:
    async def story(sim: SimWorld, world: ProcessWorld, log: Log) -> None:
        abort(log, world)
        sim.disk_faults.capacity = sim.host("broker").volume.used + 10
        flushing = asyncio.ensure_future(log.flush())
        await asyncio.sleep(5)
        assert log.failure is None
        assert log.flushed_offset == 0
        sim.disk_faults.capacity = 1 << 40
        await asyncio.wait_for(flushing, 5)
        assert log.flushed_offset == log.end_offset == 2
        assert world.disk.size("/data/t-0/00000000000000000000.txnindex") == 34

    with_a_log(story)
