"""One who makes topics, lets them grow, has leaders elected, and removes what it made."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scriba.client import Admin, NewTopic
from scriba.peers.ports import Ports
from scriba.testing.sim.actors.cast import PATIENCE, Actor


@dataclass(slots=True)
class Administrator(Actor):
    """Here `partitions` is the number of replicas that its topics have."""

    strangers: Callable[[str], Sequence[int]] = lambda topic: ()
    """Brokers that should know a topic which was just made, and do not."""
    topics: dict[str, bool] = field(default_factory=dict)
    """Those whose making (True) or removal (False) was the last thing heard of them."""

    async def live(self, ports: Ports) -> None:
        config = {
            "bootstrap.servers": self.bootstrap,
            "client.id": self.name,
            **PATIENCE,
            "default.api.timeout.ms": 5_000,
        }
        async with Admin(config, _ports=ports) as admin:
            while not self.stopping:
                await asyncio.sleep(self.rng.between(0.2, 1.5))
                name = f"made-{self.lives}-{self.steps}"
                self.steps += 1
                await self._play(admin, name)

    async def _play(self, admin: Admin, name: str) -> None:
        await admin.create_topics([NewTopic(name, 1 + self.rng.below(3), self.partitions)])
        self.topics[name] = True
        if missing := self.strangers(name):
            self.books.records.violation(
                f"{name} was made, and brokers {list(missing)} do not know of it"
            )
        if self.rng.chance(0.4):
            await admin.create_partitions({name: 4})
        if self.rng.chance(0.7):
            await asyncio.sleep(self.rng.between(0, 0.5))
            del self.topics[name]
            await admin.delete_topics([name])
            self.topics[name] = False
