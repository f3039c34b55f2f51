"""Random lives of a classic group: whatever clients do, time does, and crashes undo.

The model knows only what clients were told: which generation a join was answered with, who owns
what since a sync, which commits were accepted. It never looks into the machine.
"""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scriba.errors import ErrorCode
from tests.unit.groups.shard import PENDING, Shard

PARTITIONS = 4
PLACES = [("t", index) for index in range(PARTITIONS)]
DAY = 24 * 3_600_000
FORGOTTEN = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}

clients = st.integers(0, 3)
places = st.sampled_from(PLACES[:2])
offsets = st.integers(0, 1_000)
producers = st.integers(1, 2)


@dataclass
class Client:
    """A consumer that follows the protocol, but may stop, forget and repeat itself."""

    instance: str | None
    member_id: str = ""
    generation: int = -1
    protocol: str = ""
    members: list[str] = field(default_factory=list)
    joining: int | None = None
    syncing: int | None = None
    gone: bool = True
    """Has left, or was told that it is no member."""

    @property
    def name(self) -> str:
        return self.instance or self.member_id


class Lives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.shard = Shard(
            initial_rebalance_delay_ms=1_000, offsets_retention_check_interval_ms=DAY
        )
        self.shard.topics.create("t", PARTITIONS)
        self.clients = [Client(instance) for instance in (None, None, "i", "j")]
        self.generation = -1
        """The last generation that a join was answered with; after a crash, that was assigned."""
        self.assigned = -1
        self.owners: dict[tuple[int, int], str] = {}
        self.committed: dict[tuple[str, int], tuple[int, int]] = {}
        self.pending: dict[int, dict[tuple[str, int], tuple[int, int]]] = {}
        self.order = 0

    # --- what clients hear ---

    def listen(self) -> None:
        for client in self.clients:
            if client.joining is not None and self.shard.answer(client.joining) is not PENDING:
                self.heard_join(client, self.shard.answers.pop(client.joining))
            if client.syncing is not None and self.shard.answer(client.syncing) is not PENDING:
                self.heard_sync(client, self.shard.answers.pop(client.syncing))

    def heard_join(self, client: Client, answer: Any) -> None:
        client.joining = None
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = answer.member_id
        elif answer.error_code in FORGOTTEN:
            self.forget(client)
        elif answer.error_code == 0:
            assert answer.generation_id >= self.generation
            self.generation = answer.generation_id
            client.member_id, client.generation = answer.member_id, answer.generation_id
            client.protocol = answer.protocol_name
            client.members = [m.member_id for m in answer.members]
            client.gone = False
            if client.members and answer.skip_assignment:
                client.members = []

    def heard_sync(self, client: Client, answer: Any) -> None:
        client.syncing = None
        if answer.error_code in FORGOTTEN:
            self.forget(client)
        elif answer.error_code == 0:
            self.assigned = max(self.assigned, client.generation)
            for partition in answer.assignment:
                owner = self.owners.setdefault((client.generation, partition), client.name)
                assert owner == client.name, "two owners of a partition in one generation"

    def forget(self, client: Client) -> None:
        client.member_id, client.generation, client.members = "", -1, []
        client.gone = True

    # --- what clients do ---

    @rule(who=clients, names=st.sampled_from([["range"], ["range", "sticky"], ["sticky", "range"]]))
    def join(self, who: int, names: list[str]) -> None:
        client = self.clients[who]
        for again in (False, True):
            if client.joining is None and not (again and client.generation >= 0):
                request = self.shard.join_request(
                    client.member_id, names=names, group_instance_id=client.instance
                )
                client.joining = self.shard.send(request, client=f"c{who}")
                self.listen()

    @rule(who=clients)
    def restart(self, who: int) -> None:
        """The process dies: its id is lost, what it waited for is heard by nobody."""
        client = self.clients[who]
        client.joining = client.syncing = None
        self.forget(client)

    @rule(who=clients)
    def sync(self, who: int) -> None:
        client = self.clients[who]
        if client.generation < 0 or client.syncing is not None:
            return
        shares = {
            member: bytes(range(place, PARTITIONS, len(client.members)))
            for place, member in enumerate(client.members)
        }
        client.syncing = self.shard.sync(client_as_joined(client), shares)
        self.listen()

    @rule(who=clients)
    def sync_late(self, who: int) -> None:
        client = self.clients[who]
        if client.generation >= 0:
            late = self.shard.sync(client_as_joined(client), generation_id=client.generation - 1)
            assert self.shard.answer(late).error_code, "assigned in another generation"
            self.listen()

    @rule(who=st.sets(clients, min_size=1))
    def settle(self, who: set[int]) -> None:
        """Some follow the protocol for a while: within a rebalance timeout they are answered."""
        for each in sorted(who):
            self.join(each, ["range"])
        for _ in range(60):
            if any(client.joining for client in self.clients):
                self.shard.pass_time(1_000)
                self.listen()
        assert not any(client.joining for client in self.clients)
        for each in sorted(who):
            self.sync(each)

    @rule(who=clients)
    def beat(self, who: int) -> None:
        client = self.clients[who]
        if client.generation >= 0:
            error = self.shard.beat(client_as_joined(client), group_instance_id=client.instance)
            assert error or client.generation == self.generation
            if error in FORGOTTEN:
                self.forget(client)
            self.listen()

    @rule(who=clients)
    def leave(self, who: int) -> None:
        client = self.clients[who]
        if client.member_id:
            self.shard.leave({"member_id": client.member_id, "group_instance_id": client.instance})
            self.listen()
            client.joining = client.syncing = None
            self.forget(client)

    @rule(who=clients)
    def change_of_mind(self, who: int) -> None:
        self.join(who, ["range"])
        self.leave(who)

    @rule(who=clients, others=st.sets(clients), crash=st.booleans())
    def bounce(self, who: int, others: set[int], crash: bool) -> None:
        """A process restarts at once, perhaps together with its coordinator."""
        if others:
            self.settle({who, *others})
        self.restart(who)
        self.join(who, ["range"])
        if crash:
            self.crash()

    # --- offsets ---

    @rule(who=clients, place=places, offset=offsets, stale=st.integers(0, 1))
    def commit(self, who: int, place: tuple[str, int], offset: int, stale: int) -> None:
        client = self.clients[who]
        if client.generation < 0:
            return
        generation = client.generation - stale
        errors = self.shard.commit(
            {place: offset},
            member_id=client.member_id,
            group_instance_id=client.instance,
            generation_id_or_member_epoch=generation,
        )
        self.listen()
        if errors[place] == 0:
            assert generation == self.generation, "accepted from another generation"
            assert not client.gone, "accepted from somebody who is no member"
            self.order += 1
            self.committed[place] = (offset, self.order)

    @rule(place=places, offset=offsets)
    def commit_alone(self, place: tuple[str, int], offset: int) -> None:
        if self.shard.commit({place: offset})[place] == 0:
            assert not any(
                not c.gone and self.shard.beat(client_as_joined(c)) == 0 for c in self.clients
            ), "a simple consumer's commit was accepted while there are members"
            self.order += 1
            self.committed[place] = (offset, self.order)

    @rule(producer=producers, place=places, offset=offsets)
    def commit_in_txn(self, producer: int, place: tuple[str, int], offset: int) -> None:
        if self.shard.commit_in_txn(producer, {place: offset})[place] == 0:
            self.order += 1
            self.pending.setdefault(producer, {})[place] = (offset, self.order)

    @rule(producer=producers, place=places, offset=offsets)
    def commit_both_ways(self, producer: int, place: tuple[str, int], offset: int) -> None:
        self.commit_alone(place, offset)
        self.commit_in_txn(producer, place, offset + 1)

    @rule(producer=producers, commit=st.booleans())
    def end_txn(self, producer: int, commit: bool) -> None:
        self.shard.end_txn(producer, commit)
        for place, (offset, order) in self.pending.pop(producer, {}).items():
            if commit and self.committed.get(place, (0, 0))[1] < order:
                self.committed[place] = (offset, order)

    # --- the world ---

    @rule(ms=st.sampled_from([10, 999, 1_000, 5_000, 10_000, 61_000]))
    def time_passes(self, ms: int) -> None:
        self.shard.pass_time(ms)
        self.listen()

    @rule(ms=st.sampled_from([-DAY, -1_000, 3_600_000]))
    def the_wall_clock_jumps(self, ms: int) -> None:
        before = len(self.shard.log)
        self.shard.now = self.shard.now._replace(wall_ms=self.shard.now.wall_ms + ms)
        self.shard.pass_time(0)
        assert len(self.shard.log) == before

    def well(self) -> list[Client]:
        """Those whose heartbeat is answered without an error."""
        members = [client for client in self.clients if client.generation >= 0]
        return [c for c in members if self.shard.beat(client_as_joined(c)) == 0]

    @rule()
    def crash(self) -> None:
        stable = self.shard.describe().group_state == "Stable"
        before = self.well() if stable else []
        self.shard.crash()
        assert not stable or self.well() == before, "a restart lost members or brought some back"
        self.generation = self.assigned
        for client in self.clients:
            client.joining = client.syncing = None

    @rule()
    def nobody_comes_for_long(self) -> None:
        self.shard.pass_time(40 * DAY)
        self.listen()
        held = {place for places in self.pending.values() for place in places}
        self.committed = {place: c for place, c in self.committed.items() if place in held}
        if not self.committed and not held:
            assert self.shard.group() is None
            self.generation = self.assigned = -1
            self.owners.clear()
            for client in self.clients:
                self.forget(client)

    # --- what always holds ---

    @invariant()
    def a_restart_would_know_the_same(self) -> None:
        assert self.shard.stored() == self.shard.stored(self.shard.reloaded())

    @invariant()
    def the_last_accepted_commit_is_read(self) -> None:
        expected = {place: offset for place, (offset, _) in self.committed.items()}
        found = self.shard.fetch(*PLACES)
        assert found == {place: (expected.get(place, -1), 0) for place in PLACES}
        held = {place for places in self.pending.values() for place in places}
        stable = self.shard.fetch(*PLACES, stable=True)
        assert {place for place, (_, error) in stable.items() if error} == held

    def teardown(self) -> None:
        """Nobody waits for ever: time alone ends every wait."""
        self.shard.pass_time(700_000)
        assert not self.shard.waiting
        assert self.shard.describe().group_state in ("Empty", "Dead")


def client_as_joined(client: Client) -> Any:
    @dataclass
    class Joined:
        member_id: str
        generation_id: int
        protocol_type: str
        protocol_name: str

    return Joined(client.member_id, client.generation, "consumer", client.protocol)


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
