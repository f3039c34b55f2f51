"""Asks `/ready` of a node on a simulated host."""

import json
from typing import Any

from scriba.testing.sim.world.world import ProcessWorld
from tests.sim.broker_stage import Stage
from tests.unit.broker.scraping import WHERE, ask

SETTINGS = {"scriba.metrics.listener": WHERE, "min.insync.replicas": "2"}


async def ready(stage: Stage, at: int, target: str = "/ready") -> tuple[str, Any]:
    """Status and body of what the node at a host answers."""
    found: list[tuple[str, str]] = []

    async def client(world: ProcessWorld) -> None:
        found.append(await ask(world, f"GET {target} HTTP/1.1\r\n\r\n".encode()))

    await stage.cluster.hosts[at].start(client).task
    status, body = found[0]
    return status, json.loads(body) if body.startswith("{") else body
