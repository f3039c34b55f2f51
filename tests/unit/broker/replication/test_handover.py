"""Who leads instead of a broker that hands over, and how the order of replicas comes back."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.broker.partitions.replication import handover
from scriba.broker.partitions.replication.handover import carry_out, decide, put_back, reordered
from scriba.controller.image import BrokerImage, PartitionImage
from tests.unit.broker.brokers import Brokers, play


def directory(broker: int) -> bytes:
    return bytes([broker]) * 16


def broker(at: int, *, full: bool = False, fenced: bool = False) -> BrokerImage:
    cordoned = (directory(at),) if full else ()
    return BrokerImage(at, 1, bytes(16), (), {}, None, fenced, False, (directory(at),), cordoned, 0)


def partition(*replicas: int, leader: int = 0, isr: tuple[int, ...] = ()) -> PartitionImage:
    directories = tuple(map(directory, replicas))
    return PartitionImage(replicas, directories, isr or replicas, leader or replicas[0], 0, 0)


@pytest.mark.parametrize(
    ("replicas", "isr", "full", "fenced", "order", "known"),
    [
        ((2, 3, 1), (), (), (), (3, 1, 2), (2, 3, 1)),
        ((2, 3, 1), (), (2, 3), (), (1, 3, 2), (2, 3, 1)),
        ((2, 1, 3), (), (2, 3), (), (1, 2, 3), (2, 1)),
        ((2, 3, 1), (2, 1), (), (), (1, 3, 2), (2, 3, 1)),
        ((2, 3, 1), (), (), (3,), (1, 3, 2), (2, 3, 1)),
        ((2, 3, 1, 4), (), (2, 3, 4), (), (1, 3, 2, 4), (2, 3, 1)),
    ],
)
def test_in_sync_replicas_with_room_come_first(
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    full: tuple[int, ...],
    fenced: tuple[int, ...],
    order: tuple[int, ...],
    known: tuple[int, ...],
) -> None:
    brokers = {at: broker(at, full=at in full, fenced=at in fenced) for at in replicas}
    for even_cordoned in (False, True):
        assert decide(partition(*replicas, isr=isr), brokers, even_cordoned) == (order, known)


def test_a_broker_without_room_gives_nothing_to_another_one_but_one_that_is_cut_off_does() -> None:
    brokers = {at: broker(at, full=True) for at in (2, 3, 1)}
    assert decide(partition(2, 3, 1), brokers, even_cordoned=False) is None
    cut_off = decide(partition(2, 3, 1), brokers, even_cordoned=True)
    assert cut_off == ((3, 1, 2), (2, 3, 1))
    assert decide(partition(2, 3, 1, isr=(2,)), brokers, even_cordoned=True) is None


def test_nothing_is_handed_over_of_a_partition_that_moves() -> None:
    brokers = {at: broker(at) for at in (2, 3, 1)}
    moving = partition(2, 3, 1)._replace(adding_replicas=(1,))
    assert decide(moving, brokers, even_cordoned=True) is None


def test_a_hand_over_does_not_undo_a_reassignment_since_it_was_planned() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3))
        node = brokers.nodes[2]
        place = (node.image.topics_by_name["t"].id, 0)
        await brokers.reassign("t", (2, 1))
        await brokers.until(lambda: brokers.image("t").replicas == (2, 1))
        await brokers.until(lambda: node.image.topics_by_name["t"].partitions[0].isr == (2, 1))
        await carry_out(node, {place: (3, 2)})
        assert brokers.image("t").replicas == (2, 1)
        assert brokers.image("t").target == (2, 1)
        await carry_out(node, {place: (1, 2)})
        await brokers.until(lambda: brokers.image("t").leader == 1)

    play(script)


def test_an_order_is_kept_for_a_partition_that_begins_to_move_while_others_are_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def script(brokers: Brokers) -> None:
        for topic in ("t", "u"):
            await brokers.create(topic, (2, 3))
        node = brokers.nodes[3]
        first, second = ((node.image.topics_by_name[each].id, 0) for each in ("t", "u"))
        monkeypatch.setattr(handover, "AT_ONCE", 1)
        ask = node.controller.call
        moved = False

        async def meanwhile(request: Any, **how: Any) -> Any:
            nonlocal moved
            if not moved:
                moved = True
                image = node.image.topics_by_name["u"]
                still = image.partitions[0]
                image.partitions[0] = still._replace(replicas=(1, 2, 3), adding_replicas=(1,))
            return await ask(request, **how)

        monkeypatch.setattr(node.controller, "call", meanwhile)
        later = await put_back(node, {first: (3, 2), second: (3, 2)})
        assert later == {second: (3, 2)}
        assert brokers.image("t").replicas == (3, 2)

    play(script)


def test_an_order_is_kept_for_a_partition_that_has_moved_before_the_image_shows_it() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3))
        node = brokers.nodes[3]
        place = (node.image.topics_by_name["t"].id, 0)

        def shown() -> PartitionImage:
            return node.image.topics_by_name["t"].partitions[0]

        old = shown()
        await brokers.reassign("t", (2, 3, 1))
        await brokers.until(lambda: brokers.image("t").isr == (2, 3, 1))
        await brokers.until(lambda: shown() == brokers.image("t"))
        moved = shown()
        node.image.topics_by_name["t"].partitions[0] = old
        orders = await put_back(node, {place: (3, 2)})
        node.image.topics_by_name["t"].partitions[0] = moved
        assert orders == {place: (3, 2)}
        assert await put_back(node, orders) == {}
        await brokers.until(lambda: shown().replicas == (3, 2, 1))
        assert await put_back(node, {place: (3, 4)}) == {}, "it fits no longer"

    play(script)


def test_what_somebody_has_put_in_order_is_left_alone() -> None:
    assert reordered((2, 3, 1), (3, 1), 3) == (2, 3, 1)
    assert reordered((1, 3, 2), (2, 3, 1), 2) == (2, 3, 1)
    assert reordered((2, 1, 3), (3, 1), 3) == (2, 3, 1)


@dataclass
class Full:
    """Brokers with replicas of one partition whose volumes fill up and empty again."""

    now: PartitionImage
    full: set[int] = field(default_factory=set)
    kept: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def turn(self, at: int) -> None:
        """A volume fills up, or is given room."""
        self.full ^= {at}
        if at not in self.full:
            self.put_back(at)
        self.hand_over()

    def hand_over(self) -> None:
        leader = self.now.leader
        brokers = {at: broker(at, full=at in self.full) for at in self.now.replicas}
        if leader in self.full and (found := decide(self.now, brokers, False)) is not None:
            if found.known[-1] != leader:
                self.kept.setdefault(leader, found.known)
            self.place(found.order, found.order[0])

    def put_back(self, at: int) -> None:
        if known := self.kept.pop(at, None):
            self.place(reordered(self.now.replicas, known, at), self.now.leader)

    def elect_preferred(self) -> None:
        self.now = self.now._replace(leader=self.now.replicas[0])
        self.hand_over()

    def place(self, order: tuple[int, ...], leader: int) -> None:
        self.now = partition(*order, leader=leader)


@given(
    closed=st.lists(st.sampled_from((1, 2, 3)), unique=True),
    opened=st.permutations((1, 2, 3)),
    elected=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_brokers_that_fill_up_and_empty_in_any_order_leave_the_order_as_it_was(
    closed: list[int], opened: list[int], elected: list[bool]
) -> None:
    model = Full(partition(2, 3, 1))
    turns = [*closed, *(at for at in opened if at in closed)]
    for at, elects in zip(turns, elected, strict=False):
        model.turn(at)
        if elects:
            model.elect_preferred()
    assert model.now.replicas == (2, 3, 1)
