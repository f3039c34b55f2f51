"""Two services, each in a group of its own, over one topic of three partitions.

The order service runs in two processes, of which one is killed midway: the other takes over its
partitions when the group has missed it for six seconds. The notification service runs in four, one
more than there are partitions: one is idle, and ready. At the end both have seen placed, shipped
and delivered of every order, in that order.

    python demo.py localhost:9092
"""

import asyncio
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from events import LIFE, create_topic, tell

HERE = Path(__file__).parent
ORDERS = range(1, 21)
MIDWAY = 10
PATIENCE_SECONDS = 120


@dataclass
class Member:
    """A process of a service, and what it said."""

    service: str
    name: str
    process: asyncio.subprocess.Process
    seen: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    events: int = 0
    partitions: str = ""
    wrong: list[str] = field(default_factory=list)

    async def listen(self, heard: asyncio.Event) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            text = line.decode().strip()
            if text.startswith("has "):
                self.partitions = text.removeprefix("has ")
            else:
                order, event = text.partition(":")[0].split()
                self.seen[order].append(event)
                self.events += 1
                if "OUT OF ORDER" in text:
                    self.wrong.append(text)
            print(f"{self.name:10} {text}", flush=True)
            heard.set()


async def start(service: str, name: str, bootstrap: str) -> Member:
    script = str(HERE / f"{service}.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable, script, bootstrap, name, stdout=asyncio.subprocess.PIPE
    )
    return Member(service, name, process)


def settled(members: list[Member]) -> bool:
    """Whether every partition of each service has its reader, and one member none."""
    shares = sorted(member.partitions for member in members)
    return all(shares) and shares.count("nothing") == 1 and len(" ".join(shares).split()) == 7


def finished(members: list[Member], service: str) -> bool:
    """Whether the processes of a service together have seen every event of every order."""
    seen: dict[str, set[str]] = defaultdict(set)
    for member in members:
        if member.service == service:
            for order, events in member.seen.items():
                seen[order].update(events)
    return all(len(seen[f"order-{number}"]) == len(LIFE) for number in ORDERS)


def in_order(member: Member) -> bool:
    """Whether events came in order; what was done again after a crash begins with an old one."""
    return not member.wrong and all(
        events == sorted(events, key=LIFE.index) for events in member.seen.values()
    )


async def main(bootstrap: str) -> int:
    await create_topic(bootstrap)
    members = [await start("order_service", f"orders-{n}", bootstrap) for n in (1, 2)]
    members += [await start("notification_service", f"notify-{n}", bootstrap) for n in range(1, 5)]
    heard = asyncio.Event()
    listening = [asyncio.ensure_future(member.listen(heard)) for member in members]
    victim = members[0]

    async def until(holds: Callable[[], bool]) -> None:
        while not holds():
            heard.clear()
            await heard.wait()

    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await until(lambda: settled(members))
            await tell(bootstrap, ORDERS)
            await until(lambda: victim.events >= MIDWAY)
            victim.process.kill()
            print(f"{victim.name:10} was killed after {victim.events} events", flush=True)
            await until(lambda: all(finished(members, m.service) for m in members))
    finally:
        for member in members:
            if member.process.returncode is None:
                member.process.kill()
            await member.process.wait()
        await asyncio.gather(*listening)
    idle = [member.name for member in members if member.partitions == "nothing"]
    fine = all(in_order(member) for member in members)
    print(f"all seen by both services, {'in order' if fine else 'OUT OF ORDER'}; idle: {idle}")
    return 0 if fine and len(idle) == 1 else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
