"""A cluster to talk to from plain code: Spark calls readers and writers outside any event loop.

A Python worker of Spark lives through many tasks, so the connections stay with the process and the
next task finds them open. The loop runs only while somebody waits for an answer; what arrives in
between waits in the socket, and a connection that was closed meanwhile is made anew.
"""

import asyncio
import os
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from scriba.client.cluster import Cluster
from scriba.client.ports import real_ports
from scriba.client.settings import ClientSettings
from scriba.runtime.loop import loop_factory

T = TypeVar("T")


class Link:
    def __init__(self, settings: ClientSettings) -> None:
        self._runner = asyncio.Runner(loop_factory=loop_factory(), debug=False)

        async def made() -> Cluster:
            cluster = Cluster(real_ports(), settings)
            cluster.start()
            return cluster

        self.cluster = self._runner.run(made())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def close(self) -> None:
        self._runner.run(self.cluster.close())
        self._runner.close()


_links: dict[tuple[int, type[ClientSettings], frozenset[tuple[str, str]]], Link] = {}


def link(client: Mapping[str, str], kind: type[ClientSettings]) -> Link:
    """This process's link with these settings; a forked process does not share its parent's."""
    key = (os.getpid(), kind, frozenset(client.items()))
    found = _links.get(key)
    if found is None:
        found = _links[key] = Link(kind.build(client, {}))
    return found
