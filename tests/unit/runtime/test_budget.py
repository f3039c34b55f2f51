"""Memory that work off the loop shares."""

import asyncio
import threading

from scriba.runtime.work.budget import WORK_BYTES, Budget, run_within
from scriba.runtime.work.offload import ThreadOffload


def test_work_waits_for_its_share_and_large_work_is_not_passed_by() -> None:
    async def main() -> None:
        budget = Budget(100)
        assert await budget.take(60) == 60
        order: list[str] = []

        async def work(name: str, need: int) -> None:
            taken = await budget.take(need)
            order.append(name)
            await asyncio.sleep(0)
            budget.give(taken)

        tasks = [asyncio.create_task(work("large", 70)), asyncio.create_task(work("small", 10))]
        await asyncio.sleep(0)
        assert order == []
        budget.give(60)
        await asyncio.gather(*tasks)
        assert order == ["large", "small"]
        assert budget.held == 0

    asyncio.run(main())


def test_work_that_needs_more_than_there_is_is_done_alone() -> None:
    async def main() -> None:
        budget = Budget(100)
        taken = await budget.take(1000)
        other = asyncio.create_task(budget.take(1))
        await asyncio.sleep(0)
        assert not other.done()
        budget.give(taken)
        assert await other == 1

    asyncio.run(main())


def test_who_stops_waiting_leaves_no_gap() -> None:
    async def main() -> None:
        budget = Budget(100)
        taken = await budget.take(100)
        waiting = [asyncio.create_task(budget.take(need)) for need in (80, 50, 50)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        budget.give(taken)  # cancelled and admitted in the same turn
        await asyncio.gather(*waiting, return_exceptions=True)
        assert waiting[0].cancelled()
        assert budget.held == 100
        budget.give(50)
        budget.give(50)
        assert budget.held == 0

    asyncio.run(main())


def test_memory_is_held_until_work_has_ended_though_its_caller_has_gone() -> None:
    async def main() -> None:
        offload = ThreadOffload(1)
        go_on = threading.Event()
        caller = asyncio.create_task(run_within(offload, 10, go_on.wait, 60))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        assert offload.memory.held == 10
        all_of_it = asyncio.create_task(offload.memory.take(WORK_BYTES))
        await asyncio.sleep(0)
        assert not all_of_it.done()
        go_on.set()
        assert await all_of_it == WORK_BYTES
        offload.close()

    asyncio.run(main())
