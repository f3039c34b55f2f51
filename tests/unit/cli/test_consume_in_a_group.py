"""`scriba consume --group --exit` while others go on writing, on simulated time."""

import asyncio

from scriba.cli.records.consume import Output, _read_share
from scriba.client import Consumer, Producer
from scriba.client.consuming.record import ConsumerRecord
from scriba.testing.sim.world.world import ProcessWorld
from tests.unit.client.groups import AT, in_a_group


def test_it_ends_at_the_ends_of_that_moment_however_much_is_written() -> None:
    read: list[bytes] = []

    def render(record: ConsumerRecord[bytes, bytes]) -> bytes:
        read.append(record.value or b"")
        return b""

    async def write(world: ProcessWorld) -> None:
        async with Producer(AT, _ports=world) as p:
            while True:
                await p.send("t", b"more")

    async def work(c: Consumer[bytes, bytes], world: ProcessWorld) -> None:
        joined = asyncio.Event()
        c.subscribe("t", on_assigned=lambda _: joined.set())
        writing = asyncio.create_task(write(world))
        await asyncio.sleep(1)
        async with asyncio.timeout(30):
            await _read_share(c, joined, None, Output(render))
        assert not writing.done()
        writing.cancel()

    in_a_group(work)
    assert read[:10] == [b"%d" % n for n in range(10)]
