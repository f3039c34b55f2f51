"""Brokers that die, come back and lose each other while records are written: nothing is lost.

The controller lives on the first broker, which has no replicas and no accidents. The others have
all of them: kills, power cuts of one at a time, cuts of the network in one or both directions. Then
all heals, and every record that was acknowledged by all is in every replica, at the same offset.
"""

import asyncio
import random

import pytest

from scriba.broker.partitions.partition import Partition
from scriba.errors import ErrorCode
from scriba.records.batch import decode_records, walk
from tests.unit.broker.brokers import Brokers, play

HOSTS = (2, 3, 4)
PARTITIONS = 3
ACCIDENTS = 12


class Storm:
    def __init__(self, brokers: Brokers, seed: int) -> None:
        self.brokers = brokers
        self.rng = random.Random(seed)
        self.acked: list[tuple[int, bytes]] = []
        self.sent = 0
        self.over = False
        self.down: set[int] = set()
        self.watermarks: dict[tuple[int, int, int], int] = {}

    # ---- clients ----

    async def write(self, index: int) -> None:
        """Writes to whoever leads, one record after the other."""
        while not self.over:
            leader = self.brokers.image("t", index).leader
            self.sent += 1
            value = b"%d-%d" % (index, self.sent)
            if leader in HOSTS and leader not in self.down:
                try:
                    acks = -1 if self.rng.randrange(4) else 1
                    code = await self.brokers.produce(
                        leader, "t", value, index=index, acks=acks, timeout_ms=3000
                    )
                    if code is ErrorCode.NONE and acks == -1:
                        self.acked.append((index, value))
                except OSError:
                    pass  # nobody knows whether it was written
            await asyncio.sleep(self.rng.randrange(50) / 1000)

    # ---- accidents ----

    async def rage(self) -> None:
        names = {at: f"b{at}" for at in HOSTS}
        network = self.brokers.sim.network
        for _ in range(ACCIDENTS):
            await asyncio.sleep(self.rng.randrange(3000) / 1000)
            kind = self.rng.randrange(5)
            one = HOSTS[self.rng.randrange(3)]
            other = HOSTS[self.rng.randrange(3)]
            if kind < 2 and one not in self.down and len(self.down) < 2:
                self.down.add(one)
                if kind == 0 and len(self.down) == 1:
                    self.brokers.power_cut(one)
                else:
                    self.brokers.kill(one)
            elif kind == 2 and one in self.down:
                await self.bring_back(one)
            elif kind == 3 and one != other:
                network.cut(names[one], names[other], one_way=bool(self.rng.randrange(2)))
            else:
                network.heal()
        network.heal()
        for one in sorted(self.down):
            await self.bring_back(one)

    async def bring_back(self, one: int) -> None:
        await self.brokers.boot(one)
        self.down.discard(one)

    # ---- what must hold ----

    async def watch(self) -> None:
        """The high watermark of a leadership never goes back, nor passes a member of its ISR."""
        while not self.over:
            for at in HOSTS:
                if at in self.down:
                    continue
                for index in range(PARTITIONS):
                    partition = self.brokers.nodes[at].replicas._partitions.get(("t", index))  # type: ignore[call-overload]
                    if partition is not None and partition.leader is not None:
                        self.look_at(at, index, partition)
            await asyncio.sleep(0.003)

    def look_at(self, at: int, index: int, partition: Partition) -> None:
        leader = partition.leader
        assert leader is not None
        key = (at, index, leader.leader_epoch)
        high_watermark = partition.high_watermark.value
        assert high_watermark >= self.watermarks.get(key, 0)
        assert high_watermark <= partition.log.end_offset
        self.watermarks[key] = high_watermark

    def whole(self) -> bool:
        return all(
            set(self.brokers.image("t", index).isr) == set(HOSTS)
            and len({self.brokers.partition(at, "t", index).log.end_offset for at in HOSTS}) == 1
            for index in range(PARTITIONS)
        )

    def check(self) -> None:
        for index in range(PARTITIONS):
            copies = [self.records(at, index) for at in HOSTS]
            assert copies[0] == copies[1] == copies[2]
            values = {value for _, _, value in copies[0]}
            lost = [value for at, value in self.acked if at == index and value not in values]
            assert not lost, f"{lost} of partition {index} were acknowledged and are gone"

    def records(self, at: int, index: int) -> list[tuple[int, int, bytes]]:
        """Offset, epoch and value of all records of a replica."""
        log = self.brokers.partition(at, "t", index).log
        disk = self.brokers.nodes[at].world.disk
        found = []
        for name in disk.list(log.directory):
            if name.endswith(".log"):
                data = memoryview(disk.read(f"{log.directory}/{name}"))
                for position, header in walk(data):
                    batch = data[position : position + header.size]
                    found += [
                        (record.offset, header.leader_epoch, bytes(record.value or b""))
                        for record in decode_records(batch)
                    ]
        return [each for each in found if each[0] < log.end_offset]


@pytest.mark.parametrize("seed", range(6))
def test_nothing_acknowledged_is_lost_in_a_storm(seed: int) -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create(
            "t", (2, 3, 4), (3, 4, 2), (4, 2, 3), configs={"min.insync.replicas": "2"}
        )
        storm = Storm(brokers, seed)
        writers = [asyncio.ensure_future(storm.write(at)) for at in range(PARTITIONS)]
        watching = asyncio.ensure_future(storm.watch())
        await storm.rage()
        await asyncio.sleep(1)
        storm.over = True
        await asyncio.gather(*writers, watching)
        await brokers.until(storm.whole, 120)
        storm.check()
        assert len(storm.acked) > 50

    play(script, count=4, seed=seed, replica_lag_time_max_ms=1500, broker_session_timeout_ms=1500)
