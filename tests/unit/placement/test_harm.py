"""Whether a node may go for a moment, and what it would hurt."""

from scriba.placement.harm import Held, harm


def partition(*isr: int, adding: tuple[int, ...] = ()) -> Held:
    return Held("t-0", (1, 2, 3), isr, adding, least=2)


def test_a_voter_may_go_while_a_majority_stays() -> None:
    assert harm(2, {1: 0, 2: 0, 3: 100}, ()) == []
    (told,) = harm(2, {1: 0, 2: 0, 3: 60_000}, ())
    assert told == "the quorum would have 1 of 3 voters, and needs 2"
    assert harm(9, {1: 0, 2: 0, 3: 60_000}, ()) == []
    (alone,) = harm(1, {1: 0}, ())
    assert "only voter" in alone


def test_a_partition_is_hurt_that_would_be_offline_or_below_its_minimum() -> None:
    assert harm(3, {}, [partition(1, 2, 3)]) == []
    assert harm(3, {}, [partition(1, 2)]) == []
    (short,) = harm(2, {}, [partition(1, 2)])
    assert short == "t-0 would take no acks=all: 1 in sync, and min.insync.replicas is 2"
    (offline,) = harm(1, {}, [partition(1)])
    assert offline == "t-0 would be offline: no other replica is in sync"


def test_a_broker_that_is_being_filled_is_told() -> None:
    moving = [partition(1, 2, 3, adding=(4,))] * 4
    assert harm(1, {}, moving) == []
    (told,) = harm(4, {}, moving)
    assert told == "it is being given replicas: t-0, t-0, t-0 and others would take longer"
