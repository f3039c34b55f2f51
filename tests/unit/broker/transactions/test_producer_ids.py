"""Producer ids come from blocks; many may wait for the next one, and come at any moment."""

import asyncio

import pytest

from scriba.broker.coordinators.producer_ids import Block, ProducerIds


class Counted(ProducerIds):
    """Tells one who asks for a block without end, which nothing else could interrupt."""

    asked = 0

    async def _refill(self) -> None:
        self.asked += 1
        assert self.asked < 10, "it asks again and again, and the loop does nothing else"
        await super()._refill()


async def test_who_comes_in_the_turn_in_which_a_block_arrives_gets_an_id_of_it() -> None:
    block: asyncio.Future[Block] = asyncio.get_running_loop().create_future()

    async def allocate() -> Block:
        return await block

    ids = Counted(allocate)
    first = asyncio.create_task(ids.next())
    for _ in range(3):
        await asyncio.sleep(0)
    block.set_result((1000, 10))
    late = asyncio.create_task(ids.next())
    assert sorted(await asyncio.gather(first, late)) == [1000, 1001]


async def test_a_block_that_was_refused_is_asked_for_again() -> None:
    answers: list[Block | None] = [None, (5, 1), (20, 1)]

    async def allocate() -> Block:
        await asyncio.sleep(0)
        found = answers.pop(0)
        if found is None:
            raise ConnectionError("there is no controller")
        return found

    ids = Counted(allocate)
    with pytest.raises(ConnectionError):
        await ids.next()
    assert [await ids.next(), await ids.next()] == [5, 20]
