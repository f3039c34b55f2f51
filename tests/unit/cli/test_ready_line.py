"""What `scriba up` says of a node that is ready: where clients reach it."""

import json

from scriba.broker.node import Node
from scriba.cli.node.up import as_json, banner
from scriba.settings import NodeSettings
from scriba.testing.sim.world.world import ProcessWorld, SimWorld

LISTENERS = {
    "listeners": "CLIENTS://broker:9092,INTERNAL://broker:9094",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "scriba.allow.insecure.bind": "true",
    "log.dirs": "/data",
}


def told(settings: dict[str, str]) -> tuple[str, str]:
    said: list[tuple[str, str]] = []

    async def live(world: ProcessWorld) -> None:
        node = Node(NodeSettings.parse(settings), world)
        await node.start()
        said.append((json.loads(as_json(node))["bootstrap_servers"], banner(node)))
        await node.stop()

    sim = SimWorld(1)

    async def main() -> None:
        await sim.host("broker").start(live).task

    sim.run(main())
    return said[0]


def test_listener_of_brokers_is_not_told_to_clients() -> None:
    servers, page = told({**LISTENERS, "inter.broker.listener.name": "internal"})
    assert servers == "broker:9092"
    assert "produce:  echo hello | scriba produce demo -b broker:9092" in page
    assert "listening on broker:9094" in page, "it is there all the same"


def test_only_listener_serves_all() -> None:
    settings = {**LISTENERS, "listeners": "INTERNAL://broker:9094"}
    servers, _ = told({**settings, "inter.broker.listener.name": "INTERNAL"})
    assert servers == "broker:9094"
