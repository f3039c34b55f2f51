"""Requests that wait, but not for ever: what is over is let go of."""

import asyncio

from scriba.broker.handlers.records.acks import SWEEP_FROM, AckDeadlines

WAIT_MS = 600_000


class Waiting:
    due: float

    def __init__(self) -> None:
        self.over = False
        self.expired = False
        self.ended: asyncio.Event | None = None

    def expire(self) -> None:
        self.over = self.expired = True
        if self.ended is not None:
            self.ended.set()


def test_one_that_waits_for_long_keeps_none_that_are_over() -> None:
    async def script() -> None:
        deadlines = AckDeadlines()
        first = Waiting()
        deadlines.add(first, WAIT_MS)
        for _ in range(20 * SWEEP_FROM):
            each = Waiting()
            deadlines.add(each, WAIT_MS)
            each.over = True
        assert len(deadlines) <= SWEEP_FROM + 1

    asyncio.run(script())


def test_those_that_wait_end_in_their_order_however_many_were_over_between_them() -> None:
    async def script() -> None:
        deadlines = AckDeadlines()
        waiting: list[Waiting] = []
        for number in range(4 * SWEEP_FROM):
            each = Waiting()
            deadlines.add(each, 20)
            if number % 3:
                each.over = True
            else:
                waiting.append(each)
        assert len(deadlines) >= len(waiting)
        waiting[-1].ended = asyncio.Event()
        await waiting[-1].ended.wait()
        assert all(each.expired for each in waiting)
        assert not len(deadlines)

    asyncio.run(script())
