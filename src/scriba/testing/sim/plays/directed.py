"""A cluster under faults that come at the moment at which they do most harm.

Faults at any time bring these about too seldom (`cluster` plays those). Here a scene is one such
situation, played several times; who is struck how, and when exactly, is the seed's. `electing` does
the same to a quorum of controllers.

    diverging  A leader falls while the replica that is elected lacks its last records and the
               other one has them: that one truncates, on a disk that may be slow, and meanwhile
               loses its power or its new leader as well.
    truncating The same where power goes just after a truncation, again and again.
    joining    A leader falls while one replica lacks its last records. That one is out of sync, or
               is started anew, and asks the new leader, which has them and has yet to learn what
               of them is committed, and whose answers are slow to arrive.
    reborn     A replica catches up, and loses its power while the word that it has is on its way to
               the controller. It is back, with less, before the word arrives.
    observed   A voter falls out of sync while an observer, behind a slow link, has all that the
               leader has. The leader falls, and the voter leads.
    markers    A transaction is decided, and the leader of its partition falls with the marker that
               nobody has fetched.

One controller rules, to which nothing happens. Everything stays within the budget of faults
(`losses`), so nothing is ever lost. After each time all heals, and within a bound the cluster is
whole again and no transaction is open.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar, Final

from scriba.broker.partitions.partition import Partition
from scriba.client import Admin, NewTopic, Producer
from scriba.controller.image import PartitionImage
from scriba.peers.ports import Ports
from scriba.testing.history import History
from scriba.testing.sim.actors.cast import SINK, SOURCE, Actor, Books, Feeder, commit_patiently
from scriba.testing.sim.checks.losses import Losses
from scriba.testing.sim.checks.witness import Witness
from scriba.testing.sim.cluster import SimCluster
from scriba.testing.sim.plays.cluster_stage import PACE, STEP_S, ClusterStage, Report
from scriba.testing.sim.world.net import Path
from scriba.testing.sim.world.volume import DiskFaults
from scriba.testing.sim.world.world import ProcessWorld, SimWorld

MIN_ISR: Final = 2
CONTROLLER: Final = 1
ENDED_S: Final = 15
"""Virtual time in which a transaction has to end after all has healed."""
TXN_STATE: Final = "__transaction_state"
TRUNCATING: Final = "truncating"
"""The state of a follower that does."""


def run(seed: int, scene: str) -> Report:
    """Plays one seed of a scene. Equal seeds give equal digests."""
    played = SCENES[scene](seed)
    books = played.books
    return played.report(
        played.play,
        {
            "acknowledged": lambda: books.records.acked,
            "transactions": lambda: len(books.transactions.told),
            "moments": lambda: played.moments,
        },
    )


class Directed(ClusterStage):
    brokers_wanted = 3
    times = 3
    more: ClassVar[Mapping[str, str]] = {}
    """Settings beside those of all scenes."""
    racks: ClassVar[Mapping[int, str]] = {}

    def __init__(self, seed: int) -> None:
        draw = SimWorld(seed).rng.fork("scene")
        sim = SimWorld(
            seed, disk_faults=DiskFaults(sync_ms=((0.05, 1.0), (0.5, 8.0))[draw.below(2)])
        )
        self.synced = draw.chance(0.5) or self.more.get("log.flush.interval.messages") == "1"
        flush = {"log.flush.interval.messages": "1" if self.synced else "4"}
        books = Books(History(synced_only=True))
        settings = {
            **PACE,
            "default.replication.factor": "3",
            "min.insync.replicas": str(MIN_ISR),
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.min.isr": str(MIN_ISR),
            **(flush if self.synced or draw.chance(0.5) else {}),
            "replica.fetch.max.bytes": ("1", "1048576")[draw.below(2)],
            **self.more,
        }
        cluster = SimCluster(
            sim,
            1,
            self.brokers_wanted,
            settings,
            books.records.violation,
            dedicated=True,
            racks=self.racks,
        )
        super().__init__(cluster, books, 1, draw, Witness(cluster))
        self.losses = Losses(self.witness, MIN_ISR, self.synced)
        self.moments = 0
        """How often the situation came about that the scene is for."""

    async def play(self) -> None:
        async with self.watched():
            await self.cluster.start()
            await self.as_client(self.set_up)
            for actor in self.actors:
                self.enter(actor)
            await asyncio.sleep(0.5)
            for _ in range(self.times):
                await self.strike()
                self.heal()
                await self.become_whole()
                await self.settle()
            await self.stop(Actor)
            await self.become_whole()
            await self.settle()
        self.witness.compare_replicas()
        await self.as_client(self.check)
        for node in self.cluster.nodes.values():
            node.note_failure()

    async def strike(self) -> None:
        """The scene itself, once."""
        raise AssertionError("a scene has something to show")

    async def settle(self) -> None:
        """What else has to be well again."""

    async def set_up(self, world: ProcessWorld) -> None:
        async with Admin({"bootstrap.servers": self.bootstrap}, _ports=world) as admin:
            await admin.create_topics([NewTopic(SOURCE, 1, 3)])

    async def check(self, world: ProcessWorld) -> None:
        logs = await self.verdict.logs(SOURCE, world)
        self.books.records.check({where[1]: log for where, log in logs.items()})

    # ---- what a scene sees ----

    def now(self, topic: str = SOURCE) -> PartitionImage:
        """The only partition of a topic, as the newest metadata has it."""
        image = self.witness.newest_image()
        assert image is not None
        return image.topics_by_name[topic].partitions[0]

    def replica(self, at: int, topic: str = SOURCE) -> Partition | None:
        for node_id, node in self.cluster.running():
            if node_id == at:
                replicas: Iterable[Partition] = getattr(node, "replicas", ())
                for partition in replicas:
                    if partition.topic == topic:
                        return partition
        return None

    def end(self, at: int, topic: str = SOURCE) -> int:
        replica = self.replica(at, topic)
        return -1 if replica is None else replica.log.end_offset

    async def watch_closely(self, seconds: float) -> None:
        """Meanwhile logs are held against each other more often than otherwise."""
        end = self.sim.loop.true_time() + seconds
        while self.sim.loop.true_time() < end:
            self.witness.read()
            await asyncio.sleep(0.05)

    # ---- what it does ----

    def name(self, at: int) -> str:
        return self.cluster.name(at)

    def one_of(self, *kinds: str) -> str:
        return kinds[self.draw.below(len(kinds))]

    def fell(self, at: int, quickly: bool = False) -> None:
        """A broker falls, in some way that the budget allows; `heal` brings it back."""
        kinds = ["kill", "kill"]
        if not quickly:
            kinds += ["hold", "isolate"]
            if self.losses.allow(at):
                kinds.append("power")
        kind = kinds[self.draw.below(len(kinds))]
        if kind == "power":
            self.cut_power(at)
            return
        self.tell(kind, self.name(at))
        node = self.cluster.nodes[at]
        if kind == "hold":
            node.process.pause()
        elif kind == "isolate":
            for other in self.cluster.names:
                if other != self.name(at):
                    self.sim.network.cut(self.name(at), other)
        else:
            node.process.kill()

    def cut_power(self, at: int) -> None:
        self.tell("power", self.name(at))
        self.losses.note(at)
        self.cluster.hosts[at].power_cut()

    def slow_disk(self, at: int) -> None:
        self.tell("slow disk", self.name(at))
        self.cluster.hosts[at].disk_faults.sync_ms = (50, 250)

    @contextmanager
    def changed_disk(self, at: int) -> Iterator[None]:
        """Afterwards it is as it was."""
        faults = self.cluster.hosts[at].disk_faults
        before = faults.sync_ms
        yield
        faults.sync_ms = before


class Fed(Directed):
    """With two producers, whose records and retries mix."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.feeders = [
            Feeder(
                name=name,
                books=self.books,
                rng=self.sim.rng.fork(f"actor/{name}"),
                partitions=1,
                bootstrap=self.bootstrap,
            )
            for name in ("feeder1", "feeder2")
        ]
        self.actors = [*self.feeders]

    def hush(self, quiet: bool) -> None:
        for feeder in self.feeders:
            feeder.quiet = quiet


class Diverging(Fed):
    times = 4
    meanwhiles: tuple[str, ...] = ("nothing", "power", "leader", "leader")
    """What happens while it truncates."""
    least = 0
    """How many records the one has beyond the other, at least."""

    async def strike(self) -> None:
        led = self.now()
        leader = led.leader
        behind, ahead = (at for at in led.replicas if at != leader)
        self.tell(f"diverging: {leader} leads, {behind} will lack what {ahead} has")
        self.sim.network.cut(self.name(leader), self.name(behind))
        lead = self.least + self.draw.below(6)
        await self.until(lambda: self.end(ahead) > self.end(behind) + lead, 1.0)
        then = self.one_of(*self.meanwhiles)
        with self.changed_disk(ahead):
            if then != "power":
                self.slow_disk(ahead)
            self.fell(leader)
            await self.until(lambda: self.now().leader == behind, 5.0)
            if await self.until(lambda: self.truncates(ahead), 2.0):
                self.moments += 1
                await self.meanwhile(then, behind, ahead)
            await self.watch_closely(self.draw.between(0.5, 1.5))

    def is_ahead(self, at: int, leader: int) -> bool:
        """Whether a replica has something of an epoch that its leader has less of."""
        ours, theirs = self.replica(at), self.replica(leader)
        if ours is None or theirs is None:
            return False
        epoch = ours.log.epochs.latest
        return ours.own_epoch_end(epoch) > theirs.own_epoch_end(epoch)

    def truncates(self, at: int) -> bool:
        replica = self.replica(at)
        follower = None if replica is None else replica.follower
        return follower is not None and follower.state.value == TRUNCATING

    async def meanwhile(self, then: str, leader: int, ahead: int) -> None:
        if then == "leader":
            # What was truncated leads before producers have sent again what is gone from it.
            await asyncio.sleep(self.draw.between(0, 0.02))
            self.fell(leader, quickly=True)
            await self.until(lambda: self.now().leader == ahead, 4.0)
        elif then == "power" and self.losses.allow(ahead):
            if self.draw.chance(0.8):
                # When the first records of the new epoch have taken the place of the old ones.
                await self.until(lambda: not self.is_ahead(ahead, leader), 1.0)
                self.slow_disk(ahead)
                end = self.end(ahead)
                await self.until(lambda: self.end(ahead) > end, 1.0)
                await asyncio.sleep(self.draw.between(0, 0.001))
            self.cut_power(ahead)
            await asyncio.sleep(self.draw.between(0, 0.5))
            self.cluster.nodes[ahead].boot()
        else:
            await self.watch_closely(0.5)


class Truncating(Diverging):
    """Its log is on the device when it truncates, and the new one comes batch by batch."""

    more: ClassVar[Mapping[str, str]] = {
        "log.flush.interval.messages": "1",
        "replica.fetch.max.bytes": "1",
    }
    meanwhiles = ("power",)
    least = 2


class Joining(Fed):
    more: ClassVar[Mapping[str, str]] = {"replica.lag.time.max.ms": "3000"}

    async def strike(self) -> None:
        led = self.now()
        leader = led.leader
        heir, late = (at for at in led.replicas if at != leader)
        self.tell(f"joining: {leader} leads, {heir} is next, {late} is to come late")
        if self.draw.chance(0.5):
            await self.out_of_sync(leader, heir, late)
        else:
            await self.restarted(leader, heir, late)
        await self.watch_closely(self.draw.between(0.5, 1.5))

    async def out_of_sync(self, leader: int, heir: int, late: int) -> None:
        """What it lacks was committed without it."""
        self.hush(True)
        await self.until(lambda: self.know_all_of(leader), 3.0)
        self.sim.network.cut(self.name(leader), self.name(late))
        await self.until(lambda: late not in self.now().isr, 8.0)
        await self.succeed(leader, heir, late)

    async def restarted(self, leader: int, heir: int, late: int) -> None:
        """It was in sync a moment ago, and lacks what was not committed."""
        self.sim.network.cut(self.name(leader), self.name(late))
        await self.succeed(leader, heir, late)
        self.tell("kill", self.name(late))
        self.cluster.nodes[late].process.kill()
        await asyncio.sleep(self.draw.between(0, 0.1))
        self.cluster.nodes[late].boot()

    async def succeed(self, leader: int, heir: int, late: int) -> None:
        """The leader falls when the next one has something new."""
        slow = Path(delay_ms=(100, 400))
        self.sim.network.worsen(self.name(heir), self.name(late), slow)
        end = self.end(late)
        self.hush(False)
        await self.until(lambda: self.end(heir) > end, 1.0)
        await asyncio.sleep(self.draw.between(0, 0.002))
        self.fell(leader, quickly=True)
        if await self.until(lambda: self.now().leader == heir, 5.0):
            self.moments += self.end(heir) > self.end(late)

    def know_all_of(self, leader: int) -> bool:
        """Whether nothing is under way: all have all, and know that it is committed."""
        replicas = [self.replica(at) for at in self.now().replicas]
        return all(
            each is not None and each.high_watermark.value == self.end(leader) for each in replicas
        )


class Reborn(Fed):
    more: ClassVar[Mapping[str, str]] = {
        "broker.heartbeat.interval.ms": "100",
        "broker.session.timeout.ms": "4000",
        "replica.lag.time.max.ms": "4000",
        "controller.quorum.fetch.timeout.ms": "4000",
        "controller.quorum.request.timeout.ms": "3000",
    }
    """All are patient with the leader's slow way to the controller."""

    async def strike(self) -> None:
        led, network = self.now(), self.sim.network
        leader = led.leader
        others = [at for at in led.replicas if at != leader]
        late = others[self.draw.below(2)]
        node = self.cluster.nodes[late]
        self.tell(f"reborn: {leader} leads, {late} is started anew")
        if not self.losses.allow(late):
            return
        await node.stop()
        await asyncio.sleep(self.draw.between(0.2, 0.8))
        way = Path(delay_ms=(1_000, 1_300))
        network.worsen(self.name(leader), self.name(CONTROLLER), way)
        await node.start()
        if not await self.until(lambda: self.is_proposed(leader, late), 8.0):
            return
        self.moments += 1
        network.cut(self.name(leader), self.name(late))
        # Its process dies first, and with it its connections: the controller need not wait for
        # its session to end.
        node.process.kill()
        await asyncio.sleep(self.draw.between(0.002, 0.05))
        self.cut_power(late)
        node.boot()
        await self.watch_closely(self.draw.between(1.5, 2.5))

    def is_proposed(self, leader: int, late: int) -> bool:
        replica = self.replica(leader)
        state = None if replica is None else replica.leader
        return state is not None and state.pending is not None and late in state.pending.joined


class Observed(Fed):
    racks: ClassVar[Mapping[int, str]] = {2: "near", 3: "near", 4: "far"}
    observer = 4
    slow: ClassVar[tuple[Path, ...]] = (
        Path(delay_ms=(150, 250)),
        Path(delay_ms=(50, 100), loss=0.2),
    )

    async def set_up(self, world: ProcessWorld) -> None:
        configs = {"scriba.replica.placement": "voters=2@near;observers=1@far"}
        async with Admin({"bootstrap.servers": self.bootstrap}, _ports=world) as admin:
            await admin.create_topics([NewTopic(SOURCE, 1, configs=configs)])

    async def strike(self) -> None:
        led = self.now()
        leader = led.leader
        (voter,) = (at for at in led.isr if at != leader)
        self.tell(f"observed: {leader} leads, {voter} votes, {self.observer} observes")
        self.worsen_observer()
        await self.goes_on(leader)
        self.sim.network.cut(self.name(leader), self.name(voter))
        if not await self.until(lambda: self.now().isr == (leader,), 8.0):
            return
        end = self.end(leader)
        await self.until(lambda: self.end(self.observer) > end, 3.0)
        self.moments += 1
        # Nothing is committed meanwhile, whatever the observer has.
        await self.watch_closely(self.draw.between(0.3, 0.6))
        self.fell(leader, quickly=True)
        self.sim.network.heal(self.name(leader), self.name(voter))
        await self.until(lambda: self.now().leader == voter, 5.0)
        await self.watch_closely(self.draw.between(0.5, 1.5))

    def worsen_observer(self) -> None:
        path = self.slow[self.draw.below(len(self.slow))]
        for other in self.cluster.names:
            if other != self.name(self.observer):
                self.sim.network.worsen(other, self.name(self.observer), path)
                self.sim.network.worsen(self.name(self.observer), other, path)

    async def goes_on(self, leader: int) -> None:
        """Records are committed before an observer behind such a link can have them."""
        replica = self.replica(leader)
        assert replica is not None
        start = replica.high_watermark.value
        ahead = await self.until(
            lambda: replica.high_watermark.value > max(start, self.end(self.observer)), 10.0
        )
        if not ahead:
            self.books.records.violation("what is committed waits for an observer")

    async def settle(self) -> None:
        """The observer comes to have what all have, some time."""
        self.hush(True)
        caught_up = await self.until(
            lambda: self.end(self.observer) == self.end(self.now().leader), ENDED_S, 0.05
        )
        if not caught_up:
            self.books.records.violation(
                f"all had healed, and the observer ends at {self.end(self.observer)}, the leader "
                f"at {self.end(self.now().leader)}"
            )
        self.hush(False)


class Writer(Actor):
    """Writes small transactions; the scene says when one may begin, and when it may end."""

    wait_to: Callable[[str], Awaitable[None]]
    """Returns when the writer may "begin" or "commit"."""

    async def live(self, ports: Ports) -> None:
        more = {"transactional_id": self.transactional_id, "transaction_timeout_ms": 10_000}
        async with self.using(self.producer(ports, **more)) as producer:
            await producer.init_transactions()
            while not self.stopping:
                await asyncio.sleep(self.rng.between(0.02, 0.1))
                await self._transaction(producer)

    async def _transaction(self, producer: Producer) -> None:
        told = self.books.transactions
        self.steps += 1
        name = f"{self.name}.{self.lives}/{self.steps}"
        await self.wait_to("begin")
        await producer.begin_transaction()
        told.begin(name, f"{self.name}.{self.lives}")
        for number in range(1 + self.rng.below(3)):
            value = b"%s:%d" % (name.encode(), number)
            told.write(name, (SINK, 0), value)
            await producer.send(SINK, value, partition=0)
        await self.wait_to("commit")
        told.commit(name)
        await commit_patiently(producer)
        told.committed(name)


class Markers(Directed):
    brokers_wanted = 4

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.writer = Writer(
            name="writer",
            books=self.books,
            rng=self.sim.rng.fork("actor/writer"),
            partitions=1,
            bootstrap=self.bootstrap,
            transactional_id="writer",
        )
        self.writer.wait_to = self.wait_to
        self.actors = [self.writer]
        self.held_back = ""
        """What the writer has to wait for: to begin, or to commit."""
        self.waits = False
        """Whether it does."""

    async def set_up(self, world: ProcessWorld) -> None:
        """The partition's leader has nothing of the coordinator's, all its followers have."""
        more = {"transactional_id": self.writer.transactional_id}
        async with self.writer.using(self.writer.producer(world, **more)) as producer:
            await producer.init_transactions()
        coordinator, *followers = self.now(TXN_STATE).replicas
        (alone,) = set(self.cluster.ids) - {CONTROLLER, coordinator, *followers}
        assigned = {0: [alone, *followers]}
        async with Admin({"bootstrap.servers": self.bootstrap}, _ports=world) as admin:
            await admin.create_topics([NewTopic(SINK, assignments=assigned)])

    async def wait_to(self, what: str) -> None:
        while self.held_back == what:
            self.waits = True
            await asyncio.sleep(10 * STEP_S)
        self.waits = False

    async def strike(self) -> None:
        await self.as_client(self.put_back)
        led, network = self.now(SINK), self.sim.network
        leader, *followers = led.replicas
        if led.leader != leader or self.now(TXN_STATE).leader == leader:
            return
        self.tell(f"markers: {leader} leads, {followers} follow")
        self.held_back = "commit"
        await self.until(lambda: self.waits, 3.0)
        for follower in followers:
            network.cut(self.name(follower), self.name(leader), one_way=True)
        # A fetch that waits is answered, and no other one comes.
        await asyncio.sleep(0.25)
        end = self.end(leader, SINK)
        self.held_back = "begin"
        if await self.until(lambda: self.end(leader, SINK) > end, 0.8):
            self.moments += 1
        await asyncio.sleep(self.draw.between(0, 0.1))
        self.fell(leader)
        await asyncio.sleep(self.draw.between(0.5, 3))

    async def put_back(self, world: ProcessWorld) -> None:
        async with Admin({"bootstrap.servers": self.bootstrap}, _ports=world) as admin:
            await admin.elect_leaders()

    async def settle(self) -> None:
        """All that was decided is done in the partition, too."""
        self.held_back = "begin"
        if not await self.until(self.stable, ENDED_S, step_s=0.05):
            replica = self.replica(self.now(SINK).leader, SINK)
            assert replica is not None
            self.books.transactions.violation(
                f"all had healed, and a transaction is open in {SINK}-0: its last stable offset is "
                f"{replica.stable_offset.value}, its high watermark {replica.high_watermark.value}"
            )
        self.held_back = ""

    def stable(self) -> bool:
        """Whether nothing is open, and all that is written is committed."""
        for topic in (SINK, TXN_STATE):
            replica = self.replica(self.now(topic).leader, topic)
            if replica is None or replica.leader is None:
                return False
            if replica.stable_offset.value != replica.log.end_offset:
                return False
        return True

    async def check(self, world: ProcessWorld) -> None:
        self.books.transactions.check(await self.verdict.logs(SINK, world))


SCENES: Final[dict[str, Callable[[int], Directed]]] = {
    "diverging": Diverging,
    "truncating": Truncating,
    "joining": Joining,
    "reborn": Reborn,
    "observed": Observed,
    "markers": Markers,
}
