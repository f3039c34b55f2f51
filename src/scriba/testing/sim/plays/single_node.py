"""One whole node under a seed's mix of faults, with scripted clients and a check of every promise.

The seed decides the topic's flush policy, the sizes of segments, how disk and network behave, and
what happens to the node: connections reset, hosts cut off, the process killed, the power cut (now
and then in the middle of a restart), the wall clock moved, or a clean stop. Then everything heals,
the clients finish, and the whole log is read back through the protocol.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from scriba.errors import ErrorCode, KafkaError, error_code
from scriba.settings import NodeSettings
from scriba.testing.history import History
from scriba.testing.sim.actors.workload import (
    Client,
    consume,
    produce,
    produce_idempotently,
    read_all,
)
from scriba.testing.sim.node import START_TIMEOUT_S, SimNode, storage_lost
from scriba.testing.sim.world.net import NetFaults
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.synced import synced_records
from scriba.testing.sim.world.volume import DiskFaults
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from scriba.wire.messages.admin import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

TOPIC: Final = "records"
PARTITIONS: Final = 2
ADDRESS: Final = ("broker", 9092)
DATA: Final = "/data"
DAY_MS: Final = 86_400_000
MISFORTUNES: Final = ("reset", "cut", "kill", "power", "power", "full", "sick", "clock", "stop")


@dataclass(frozen=True, slots=True)
class Report:
    seed: int
    violations: tuple[str, ...]
    digest: str
    trace: tuple[str, ...]
    acked: int
    seen: int

    @property
    def counts(self) -> dict[str, int]:
        return {"acknowledged": self.acked, "read": self.seen}


def run(seed: int) -> Report:
    """Plays one seed. Equal seeds give equal digests."""
    scene = _Scene(seed)
    try:
        scene.sim.run(scene.play())
    except Exception as failure:
        scene.history.violation(f"the run broke: {failure!r}")
    history = scene.history
    for error in scene.sim.loop.unseen:
        if not isinstance(error, OSError | KafkaError):
            history.violation(f"nobody looked at {error!r}")
    trace = scene.sim.trace
    return Report(
        seed,
        tuple(history.violations),
        trace.digest(),
        tuple(trace.last),
        history.acked,
        history.seen,
    )


class _Scene:
    def __init__(self, seed: int) -> None:
        draw = self.draw = SimWorld(seed).rng.fork("scene")
        self.sim = SimWorld(
            seed,
            disk_faults=DiskFaults(
                sync_ms=((0.05, 1.0), (0.5, 20.0))[draw.below(2)],
                stall=(0.0, 0.02)[draw.below(2)],
                cold=(0.0, 0.05)[draw.below(2)],
            ),
            net_faults=NetFaults(
                spike=(0.0, 0.01)[draw.below(2)],
                short=(0.0, 0.1)[draw.below(2)],
                window=(4_096, 65_536)[draw.below(2)],
            ),
        )
        self.host = self.sim.host(ADDRESS[0])
        self.history = History(synced_only=draw.chance(0.6))
        self.segment_bytes = (3_000, 25_000, 1 << 20)[draw.below(3)]
        self.node = SimNode(self.host, node_settings, self.history.violation)

    def topic_settings(self) -> dict[str, str]:
        draw = self.draw
        chosen = {
            "retention.ms": "-1",
            "message.timestamp.after.max.ms": str(10 * DAY_MS),
            "internal.segment.bytes": str(self.segment_bytes),
            "index.interval.bytes": str((1, 500, 4096)[draw.below(3)]),
        }
        if self.history.synced_only:
            chosen["flush.messages"] = "1"
        elif draw.chance(0.5):
            chosen["flush.messages"] = str(2 + draw.below(30))
        return chosen

    # ---- the play ----

    async def play(self) -> None:
        await self.node.start()
        await self.in_a_process("setup", self.create_topic)
        clients = [self.client(name) for name in ("plain", "idempotent", "consumer")]
        works = (produce, produce_idempotently, consume)
        running = [
            self.sim.host("clients").start(_calling(work, client)).task
            for work, client in zip(works, clients, strict=True)
        ]
        for _ in range(2 + self.draw.below(4)):
            await asyncio.sleep(self.draw.between(0.1, 2.5))
            await self.misfortune()
        self.sim.network.heal()
        self.host.disk_faults.stall = 0
        await asyncio.sleep(1)
        for client in clients:
            client.stopping = True
        done, late = await asyncio.wait(running, timeout=120)
        if late:
            self.history.violation(f"{len(late)} clients got no answers after all had healed")
        for task in running:
            if task in done:
                task.result()
        await self.in_a_process("reader", self.check)
        self.node.note_failure()

    async def misfortune(self) -> None:
        """One thing that goes wrong, and what is needed to go on."""
        draw, network = self.draw, self.sim.network
        kind = MISFORTUNES[draw.below(len(MISFORTUNES))]
        self.sim.trace.add("misfortune", kind)
        if kind == "reset":
            network.reset_some(ADDRESS[0], 0.7)
        elif kind == "cut":
            network.cut(ADDRESS[0], "clients")
            await asyncio.sleep(draw.between(0.1, 4))
            network.heal()
        elif kind == "full":
            await self.fill_the_disk()
        elif kind == "sick":
            await self.sicken_the_disk()
        elif kind == "clock":
            self.host.clock.jump(int(draw.between(-7_200_000, 7_200_000)))
        elif kind == "stop":
            await self.node.stop()
            self.history.clean_stop()
            await self.node.start()
        else:
            self.fell(kind)
            while draw.chance(0.25):  # again, somewhere on the way up
                self.node.boot()
                await asyncio.sleep(draw.between(0, 0.2))
                self.fell(("kill", "power")[draw.below(2)])
            await asyncio.sleep(draw.between(0, 2))
            await self.node.start()

    async def fill_the_disk(self) -> None:
        """A node that cannot write goes on serving; with room again it writes again."""
        faults, process = self.host.disk_faults, self.node.process
        before, faults.capacity = faults.capacity, self.host.volume.used + self.draw.below(5_000)
        await asyncio.wait([process.task], timeout=self.draw.between(0.1, 3))
        faults.capacity = before
        self.node.note_failure()

    async def sicken_the_disk(self) -> None:
        """Syncs fail for a while. Nothing may be acknowledged by them, then or later: what the
        page cache still shows may never have arrived, so the host is started anew."""
        faults, process = self.host.disk_faults, self.node.process
        faults.fail_sync = self.draw.between(0.1, 1)
        await asyncio.wait([process.task], timeout=self.draw.between(0.1, 3))
        faults.fail_sync = 0.0
        self.node.note_failure(excused=storage_lost)
        self.lose_power()
        await self.node.start()

    def fell(self, kind: str) -> None:
        self.node.note_failure()
        if kind == "kill":
            self.node.process.kill()
        else:
            self.lose_power()

    def lose_power(self) -> None:
        files = self.host.volume.synced()
        self.history.power_cut(
            {at: synced_records(files, f"{DATA}/{TOPIC}-{at}") for at in range(PARTITIONS)}
        )
        self.host.power_cut()

    # ---- clients ----

    def client(self, name: str) -> Client:
        world = ProcessWorld(self.sim.host("clients"), 0)
        return Client(
            name=name,
            net=world.net,
            clock=world.clock,
            rng=self.sim.rng.fork(f"client/{name}"),
            history=self.history,
            topic=TOPIC,
            partitions=PARTITIONS,
            address=ADDRESS,
            large_value=400 if name == "idempotent" and self.segment_bytes < 25_000 else 5_000,
        )

    async def in_a_process(
        self, name: str, work: Callable[[Client], Coroutine[Any, Any, None]]
    ) -> None:
        task = self.sim.host("clients").start(_calling(work, self.client(name))).task
        await asyncio.wait_for(task, START_TIMEOUT_S)

    async def create_topic(self, client: Client) -> None:
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=TOPIC,
                    num_partitions=PARTITIONS,
                    replication_factor=1,
                    configs=[
                        CreatableTopicConfig(name=name, value=value)
                        for name, value in self.topic_settings().items()
                    ],
                )
            ]
        )

        async def work(peer: Peer) -> None:
            answer = (await peer.call(request, 7, CreateTopicsResponse)).topics[0]
            assert answer.error_code == ErrorCode.NONE, (
                error_code(answer.error_code).name,
                answer.error_message,
            )

        await client.persist(work)

    async def check(self, client: Client) -> None:
        self.history.check(await read_all(client))


def _calling(
    work: Callable[[Client], Coroutine[Any, Any, None]], client: Client
) -> Callable[[ProcessWorld], Coroutine[Any, Any, None]]:
    async def main(world: ProcessWorld) -> None:
        client.net = world.net
        await work(client)

    return main


def node_settings() -> NodeSettings:
    return NodeSettings.parse(
        {
            "listeners": f"PLAINTEXT://{ADDRESS[0]}:{ADDRESS[1]}",
            "scriba.allow.insecure.bind": "true",
            "log.dirs": DATA,
        }
    )
