"""Copies of replicas that move give way to clients, and never below the floor."""

from scriba.replication.giving_way import CEILING, FORGOTTEN_MS, LOOK_MS, START, Busy, GivingWay
from scriba.replication.throttle import UNLIMITED

FLOOR = 1_000_000


class Node:
    """What a look sees: sums that only grow."""

    def __init__(self) -> None:
        self.busy = Busy(0, 0.0, 0)
        self.giving = GivingWay(lambda: self.busy, lambda: FLOOR)
        self.now_ms = 1_000
        self.giving.rate(self.now_ms)

    def passes(self, late_ms: float, client_bytes: int, looks: int = 1) -> int:
        for _ in range(looks):
            self.now_ms += LOOK_MS
            before = self.busy
            self.busy = Busy(
                before.client_bytes + client_bytes, before.late_ms + 10 * late_ms, before.beats + 10
            )
            rate = self.giving.rate(self.now_ms)
        return rate


def test_a_copy_begins_slowly_and_takes_all_where_nobody_waits() -> None:
    node = Node()
    assert node.giving.rate(node.now_ms) == START
    assert node.passes(0, 1000) == START * 3 // 2
    assert node.passes(0, 1000, looks=10) == UNLIMITED


def test_it_is_halved_while_clients_wait_down_to_the_floor() -> None:
    node = Node()
    node.passes(0, 0, looks=20)
    assert node.passes(20, 1000) == CEILING // 2
    assert node.passes(20, 1000) == CEILING // 4
    assert node.passes(20, 1000, looks=20) == FLOOR
    assert node.passes(0, 1000) == FLOOR * 3 // 2


def test_a_late_loop_without_clients_is_nobodys_concern() -> None:
    node = Node()
    assert node.passes(50, 0, looks=20) == UNLIMITED


def test_after_a_pause_a_copy_begins_anew() -> None:
    node = Node()
    node.passes(0, 0, looks=20)
    node.now_ms += FORGOTTEN_MS + 1
    assert node.giving.rate(node.now_ms) == START
