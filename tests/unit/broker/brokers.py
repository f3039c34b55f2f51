"""Several brokers on simulated hosts, the first of them with the only controller.

So a test of replication does not depend on elections of controllers, and may look into each node.
Their hosts are b1, b2 and so on, each with a disk of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from scriba.broker.node import Node
from scriba.broker.partitions.partition import Partition
from scriba.controller.image import PartitionImage
from scriba.errors import ErrorCode
from scriba.records.batch import Record, encode_batch
from scriba.settings import NodeSettings
from scriba.testing.sim.world.peer import Peer
from scriba.testing.sim.world.world import ProcessWorld, SimProcess, SimWorld
from scriba.wire.messages.admin import (
    AlterPartitionReassignmentsRequest,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from scriba.wire.messages.brokers import BrokerHeartbeatRequest
from scriba.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from scriba.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from scriba.wire.messages.stored import PartitionChangeRecord

PORT = 9092


class Brokers:
    """A cluster of `count` brokers, for scripts that run outside of all of them."""

    def __init__(self, sim: SimWorld, count: int, settings: dict[str, str]) -> None:
        self.sim = sim
        self.nodes: dict[int, Node] = {}
        self.processes: dict[int, SimProcess] = {}
        self._count = count
        self._settings = settings
        self.client: ProcessWorld

    # ---- life ----

    async def start(self) -> None:
        for broker_id in range(1, self._count + 1):
            await self.boot(broker_id)
        ready: asyncio.Future[ProcessWorld] = asyncio.get_running_loop().create_future()

        async def client(world: ProcessWorld) -> None:
            ready.set_result(world)
            await asyncio.Event().wait()

        self.sim.host("client").start(client)
        self.client = await ready

    async def boot(self, broker_id: int) -> None:
        """Starts a broker, and returns when it serves."""
        listeners = f"PLAINTEXT://b{broker_id}:{PORT}"
        first = broker_id == 1
        settings = NodeSettings.parse(
            {
                "node.id": str(broker_id),
                "process.roles": "broker,controller" if first else "broker",
                "listeners": f"{listeners},CONTROLLER://b1:{PORT + 1}" if first else listeners,
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": f"1@b1:{PORT + 1}",
                "log.dirs": "/data",
                "scriba.allow.insecure.bind": "true",
                "broker.session.timeout.ms": "3000",
                "broker.heartbeat.interval.ms": "500",
                **{k: v.replace("{id}", str(broker_id)) for k, v in self._settings.items()},
            }
        )
        up: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def serve(world: ProcessWorld) -> None:
            node = self.nodes[broker_id] = Node(settings, world)
            try:
                await node.start()
            except BaseException as failure:
                up.set_exception(failure)
                raise
            up.set_result(None)
            await node.wait_stopped()

        self.processes[broker_id] = self.sim.host(f"b{broker_id}").start(serve)
        await up

    def kill(self, broker_id: int) -> None:
        self.processes[broker_id].kill()

    def power_cut(self, broker_id: int) -> None:
        """As `kill`, and what was not synced is gone."""
        self.sim.host(f"b{broker_id}").power_cut()

    async def reboot(self, broker_id: int, end: str = "stop") -> None:
        """Ends a broker, by a clean "stop", a "kill" or a "power cut", and starts it again."""
        if end == "stop":
            await self.nodes[broker_id].stop()
        elif end == "kill":
            self.kill(broker_id)
        else:
            self.power_cut(broker_id)
        await self.boot(broker_id)

    # ---- what a test asks for ----

    async def create(
        self, topic: str, *replicas: Iterable[int], configs: dict[str, str] | None = None
    ) -> None:
        """A topic with a partition for each list of replicas; the first of each leads."""
        await self.nodes[1].metadata.call(
            CreateTopicsRequest(
                topics=[
                    CreatableTopic(
                        name=topic,
                        num_partitions=-1,
                        replication_factor=-1,
                        assignments=[
                            CreatableReplicaAssignment(partition_index=at, broker_ids=list(ids))
                            for at, ids in enumerate(replicas)
                        ],
                        configs=[
                            CreatableTopicConfig(name=name, value=value)
                            for name, value in (configs or {}).items()
                        ],
                    )
                ],
                timeout_ms=1000,
            ),
            7,
        )
        await self.until(lambda: all(topic in n.image.topics_by_name for n in self.nodes.values()))

    def image(self, topic: str, index: int = 0) -> PartitionImage:
        return self.nodes[1].image.topics_by_name[topic].partitions[index]

    def partition(self, broker_id: int, topic: str, index: int = 0) -> Partition:
        return self.nodes[broker_id].replicas.find(topic, index)

    def leads(self, broker_id: int, topic: str, index: int = 0) -> bool:
        return self.partition(broker_id, topic, index).leader is not None

    async def until(self, true: Callable[[], Any], seconds: float = 60) -> None:
        """Waits until something holds; what does not come to hold fails."""
        async with asyncio.timeout(seconds):
            while not true():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def dial(self, broker_id: int) -> Peer:
        return await Peer.connect(self.client.net, f"b{broker_id}", PORT)

    def produced(
        self, topic: str, *values: bytes, acks: int = -1, index: int = 0, timeout_ms: int = 30_000
    ) -> ProduceRequest:
        now_ms = self.client.clock.wall_ms()
        batch = encode_batch([Record(at, now_ms, None, value) for at, value in enumerate(values)])
        data = PartitionProduceData(index=index, records=bytes(batch))
        return ProduceRequest(
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=[TopicProduceData(name=topic, partition_data=[data])],
        )

    async def produce(
        self,
        broker_id: int,
        topic: str,
        *values: bytes,
        acks: int = -1,
        index: int = 0,
        timeout_ms: int = 30_000,
    ) -> ErrorCode:
        peer = await self.dial(broker_id)
        request = self.produced(topic, *values, acks=acks, index=index, timeout_ms=timeout_ms)
        response = await peer.call(request, 12, ProduceResponse, timeout_s=60)
        peer.close()
        return ErrorCode(response.responses[0].partition_responses[0].error_code)

    async def consume(self, broker_id: int, topic: str, offset: int = 0, index: int = 0) -> Any:
        """What one fetch of a consumer tells of a partition."""
        peer = await self.dial(broker_id)
        topic_id = self.nodes[1].image.topics_by_name[topic].id
        asked = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        response = await peer.call(
            FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                topics=[FetchTopic(topic_id=topic_id, partitions=[asked])],
            ),
            17,
            FetchResponse,
        )
        peer.close()
        return response.responses[0].partitions[0]

    async def reassign(self, topic: str, to: Iterable[int] | None, index: int = 0) -> None:
        """Begins to move a partition to other brokers; None cancels that."""
        replicas = None if to is None else list(to)
        wanted = ReassignablePartition(partition_index=index, replicas=replicas)
        answer = await self.nodes[1].metadata.call(
            AlterPartitionReassignmentsRequest(
                topics=[ReassignableTopic(name=topic, partitions=[wanted])]
            ),
            1,
        )
        assert answer.responses[0].partitions[0].error_code == 0

    async def elect(self, topic: str, leader: int, index: int = 0) -> None:
        """Has the controller make another member of the ISR the leader."""
        first = self.nodes[1]
        image = self.image(topic, index)
        record = PartitionChangeRecord(
            partition_id=index,
            topic_id=first.image.topics_by_name[topic].id,
            leader=leader,
        )
        assert first.metadata.active is not None
        assert leader in image.isr
        await first.metadata.active.step(lambda machine, now: [record])
        await self.until(lambda: self.image(topic, index).leader == leader)

    async def elect_nobody(self, topic: str, index: int = 0) -> None:
        """Has a partition lose its leader, whose broker stays."""
        first = self.nodes[1]
        record = PartitionChangeRecord(
            partition_id=index,
            topic_id=first.image.topics_by_name[topic].id,
            leader=-1,
        )
        assert first.metadata.active is not None
        await first.metadata.active.step(lambda machine, now: [record])
        await self.until(lambda: self.image(topic, index).leader == -1)

    async def heartbeat(self, broker_id: int) -> None:
        """Makes sure that the controller hears of a broker now."""
        node = self.nodes[broker_id]
        await node.controller.call(
            BrokerHeartbeatRequest(
                broker_id=broker_id,
                broker_epoch=node.broker_epoch,
                current_metadata_offset=node.image.last_offset,
            )
        )


Script = Callable[[Brokers], Awaitable[None]]


def play(script: Script, count: int = 3, seed: int = 1, **settings: Any) -> None:
    """Plays a script with so many brokers; settings by attribute name, `{id}` is each one's own."""
    sim = SimWorld(seed=seed)
    given = {name.replace("_", "."): str(value) for name, value in settings.items()}
    brokers = Brokers(sim, count, given)

    async def main() -> None:
        await brokers.start()
        await script(brokers)
        for broker_id, process in brokers.processes.items():
            if process.alive and process.task.done():
                raise RuntimeError(f"broker {broker_id} has ended") from process.task.exception()

    sim.run(main())
