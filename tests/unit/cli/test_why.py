"""What `scriba topic why` says, state by state, from facts alone."""

from typing import Any

import pytest

from scriba.client.admin.model import PartitionDescription
from scriba.client.diagnosis.explain import (
    NOT_PREFERRED,
    OFFLINE,
    UNDER_MIN_ISR,
    UNDER_REPLICATED,
    WELL,
    BrokerFacts,
    EventFacts,
    Facts,
    Held,
    explain,
    page,
)

NOW = 1_800_000_000_000
UP = BrokerFacts("host:9092", fenced=False, answers=True)
FENCED = BrokerFacts("host:9092", fenced=True, answers=False)
MUTE = BrokerFacts("host:9092", fenced=False, answers=False)
GONE = BrokerFacts(None, fenced=True, answers=False)


def facts(
    leader: int | None = 1,
    isr: tuple[int, ...] = (1, 2, 3),
    eligible: tuple[int, ...] = (),
    last: tuple[int, ...] = (),
    brokers: dict[int, BrokerFacts] | None = None,
    held: dict[int, Held] | None = None,
    events: tuple[EventFacts, ...] = (),
    **more: Any,
) -> Facts:
    partition = PartitionDescription(0, leader, 7, (1, 2, 3), isr, (), eligible, last)
    known = {1: UP, 2: UP, 3: UP} | (brokers or {})
    ends = {b: Held(0, 100, 100) for b in known if known[b].answers} | (held or {})
    given: dict[str, Any] = {"min_insync": 2, "unheard": {}, "now_ms": NOW}
    return Facts("orders", partition, known, ends, events=events, **(given | more))


def choices(document: dict[str, Any]) -> list[tuple[str, str, int | None, str | None]]:
    return [(c["choice"], c["loses"], c["records"], c["command"]) for c in document["choices"]]


@pytest.mark.parametrize(
    ("given", "state", "awaited"),
    [
        ({}, WELL, []),
        ({"leader": 2}, NOT_PREFERRED, []),
        ({"isr": (1, 2)}, UNDER_REPLICATED, [3]),
        ({"isr": (1,)}, UNDER_MIN_ISR, [2, 3]),
        ({"isr": (1,), "min_insync": 1}, UNDER_REPLICATED, [2, 3]),
        ({"leader": None, "isr": (2,)}, OFFLINE, [2]),
        ({"leader": None, "isr": (), "eligible": (2, 3)}, OFFLINE, [2, 3]),
        ({"leader": None, "isr": (), "last": (3,)}, OFFLINE, [3]),
        ({"leader": None, "isr": ()}, OFFLINE, []),
    ],
)
def test_the_state_and_who_is_awaited(
    given: dict[str, Any], state: str, awaited: list[int]
) -> None:
    document = explain(facts(**given))
    assert document["state"] == state
    assert [each["broker"] for each in document["awaited"]] == awaited


def test_a_partition_that_is_well_needs_nothing() -> None:
    assert choices(explain(facts())) == []
    assert choices(explain(facts(leader=2))) == [
        ("let broker 1 lead", "nothing", 0, "scriba cluster elect orders:0")
    ]


@pytest.mark.parametrize(
    ("broker", "held", "why"),
    [
        (FENCED, None, "broker 3 is fenced: it does not run, or reaches no controller"),
        (MUTE, None, "broker 3 is registered, and does not answer"),
        (GONE, None, "broker 3 is not registered: it was taken out of the cluster"),
        (UP, Held(0, 40, 40), "broker 3 is up, and catches up: it has 40 of 100"),
        (UP, Held(0, 100, 90), "broker 3 is up, and has everything: it is let in within moments"),
        (
            UP,
            Held(-1, -1, None, "KAFKA_STORAGE_ERROR"),
            "broker 3 is up, and cannot use its replica: KAFKA_STORAGE_ERROR",
        ),
    ],
)
def test_why_a_replica_is_missed(broker: BrokerFacts, held: Held | None, why: str) -> None:
    found = {} if held is None else {3: held}
    (awaited,) = explain(facts(isr=(1, 2), brokers={3: broker}, held=found))["awaited"]
    assert awaited["why"] == why


def test_too_few_in_sync_may_wait_or_be_taken_for_enough() -> None:
    document = explain(facts(isr=(1,), brokers={2: FENCED}, held={3: Held(0, 40, 40)}))
    assert choices(document) == [
        ("start broker 2 at host:9092 again", "nothing", 0, "scriba node start 2"),
        ("wait for broker 3", "nothing", 0, None),
        (
            "ask for 1 in sync only, for all of orders",
            "nothing now; from then on what is acknowledged may be what the leader alone has",
            0,
            "scriba config set --topic orders min.insync.replicas=1",
        ),
    ]


@pytest.mark.parametrize(
    ("asks", "held", "chosen", "loses"),
    [
        (
            False,
            {1: Held(0, 95, 90), 3: Held(0, 97, 97)},
            1,
            "2 records, offsets 95 to 96, and whatever only broker 2 had from offset 97 on",
        ),
        (
            True,
            {1: Held(0, 95, 90), 3: Held(0, 97, 97)},
            3,
            "whatever only broker 2 had from offset 97 on",
        ),
        (
            True,
            {1: Held(0, 95, 95, epoch=4), 3: Held(0, 99, 90, epoch=3)},
            1,
            "4 records, offsets 95 to 98, and whatever only broker 2 had from offset 99 on",
        ),
    ],
    ids=["the first that lives", "the longest", "the longest of the newest epoch"],
)
def test_an_unclean_election_is_told_with_what_it_loses(
    asks: bool, held: dict[int, Held], chosen: int, loses: str
) -> None:
    given = facts(leader=None, isr=(), eligible=(2,), brokers={2: FENCED}, held=held, asks=asks)
    assert choices(explain(given)) == [
        ("start broker 2 at host:9092 again", "nothing", 0, "scriba node start 2"),
        (
            f"let broker {chosen} lead as it is",
            loses,
            None,
            "scriba cluster elect orders:0 --unclean",
        ),
    ]


def test_the_loss_is_exact_where_every_replica_tells_what_it_has() -> None:
    """Nobody is left to be waited for: each of them crashed and is back."""
    held = {1: Held(0, 95, 90), 2: Held(0, 99, 98), 3: Held(0, 97, 97)}
    (choice,) = choices(explain(facts(leader=None, isr=(), held=held, asks=False)))
    assert choice[1:3] == ("4 records, offsets 95 to 98", 4)


def test_a_last_leader_that_returns_may_lack_what_its_device_had_not() -> None:
    brokers = dict.fromkeys((1, 2, 3), FENCED)
    (choice,) = choices(explain(facts(leader=None, isr=(), last=(2,), brokers=brokers)))
    assert choice[0].startswith("start broker 2")
    assert choice[1:3] == ("what its device had not taken when it crashed", None)


SHRUNK = EventFacts(1, NOW - 120_000, "isr_shrunk", "orders-0", "replica 3 left the in-sync set")
LOST = EventFacts(2, NOW - 125_000, "broker_lost", "broker 3", "its address refuses")
DARK = EventFacts(
    2, NOW - 60_000, "partitions_leaderless", "cluster", "2 without a leader: a-0, orders-0"
)
OTHERS = (
    EventFacts(1, NOW - 1, "isr_shrunk", "orders-01", "replica 3 left the in-sync set"),
    EventFacts(1, NOW - 1, "isr_shrunk", "my-orders-0", "replica 3 left the in-sync set"),
    EventFacts(1, NOW - 1, "partitions_leaderless", "cluster", "1 without a leader: orders-01"),
    EventFacts(1, NOW - 1, "broker_lost", "broker 9", "its address refuses"),
)


def test_events_say_since_when_and_why() -> None:
    document = explain(facts(isr=(1, 2), brokers={3: FENCED}, events=(SHRUNK, LOST, *OTHERS)))
    assert document["since_ms"] == SHRUNK.time_ms
    assert [each["kind"] for each in document["events"]] == ["broker_lost", "isr_shrunk"]
    (awaited,) = document["awaited"]
    assert awaited["why"].endswith("(isr_shrunk 2 minutes ago: replica 3 left the in-sync set)")


def test_a_partition_without_a_leader_is_offline_since_the_controller_noticed() -> None:
    document = explain(facts(leader=None, isr=(3,), brokers={3: FENCED}, events=(LOST, DARK)))
    assert document["since_ms"] == DARK.time_ms


def test_the_page_tells_what_the_document_has() -> None:
    given = facts(
        leader=None,
        isr=(),
        eligible=(2,),
        brokers={2: FENCED},
        held={1: Held(0, 95, 90), 3: Held(0, 97, 97)},
        events=(DARK,),
        unheard={1: "it has no scriba.metrics.listener"},
    )
    assert page(explain(given), NOW) == (
        "orders-0 is offline since 2027-01-15T07:59:00Z (1 minute ago): nobody leads it: it can be "
        "neither written nor read\n"
        "\n"
        "REPLICA  BROKER  ROLE         START  END  COMMITTED\n"
        "      1  up      out of sync      0   95         90\n"
        "      2  fenced  eligible         -    -          -\n"
        "      3  up      out of sync      0   97         97\n"
        "\n"
        "broker 2 does not tell: it had all that was committed, up to offset 97 at least\n"
        "\n"
        "waits for:\n"
        "  broker 2 is fenced: it does not run, or reaches no controller\n"
        "\n"
        "what can be done:\n"
        "  start broker 2 at host:9092 again; loses nothing\n"
        "    scriba node start 2\n"
        "  let broker 3 lead as it is; loses whatever only broker 2 had from offset 97 on\n"
        "    scriba cluster elect orders:0 --unclean\n"
        "\n"
        "what the nodes told:\n"
        "  2027-01-15T07:59:00Z  node 2  partitions_leaderless: cluster: 2 without a leader: "
        "a-0, orders-0\n"
        "  no events of node 1: it has no scriba.metrics.listener"
    )


ENDED = EventFacts(
    1,
    NOW - 120_000,
    "isr_shrunk",
    "orders-0",
    "replica 3 left the in-sync set: silent, 4 records and 9000 ms behind, its log ended at 40",
)


@pytest.mark.parametrize(
    ("given", "had"),
    [
        ({"isr": (1, 3)}, "all that was committed, up to offset 100 at least"),
        (
            {"isr": (1, 2), "events": (SHRUNK, ENDED)},
            "up to offset 40 when it left the in-sync set",
        ),
        ({"leader": None, "isr": (), "last": (3,)}, "more than the others, perhaps: it led last"),
        ({"isr": (1, 2)}, "nobody knows what"),
    ],
)
def test_what_a_silent_replica_had_is_told_as_far_as_others_know(
    given: dict[str, Any], had: str
) -> None:
    document = explain(facts(brokers={3: FENCED}, **given))
    assert document["silent"] == [{"broker": 3, "had": had}]


# ---- observers ----


def test_an_observer_is_neither_missed_nor_awaited() -> None:
    given = facts(isr=(1, 2), held={3: Held(0, 60, 100)}, observers={3: "zone-c"})
    document = explain(given)
    assert document["state"] == WELL
    assert document["means"] == "all 2 replicas in sync"
    assert document["awaited"] == []
    assert [each["role"] for each in document["replicas"]] == ["leader", "in sync", "observer"]
    assert [each["lag"] for each in document["replicas"]] == [None, None, 40]
    assert "observer (-40)" in page(document, NOW)


def test_a_partition_without_voters_may_be_led_by_an_observer_that_is_promoted() -> None:
    lost = facts(
        leader=None,
        isr=(1, 2),
        brokers={1: FENCED, 2: FENCED},
        held={3: Held(0, 60, 75)},
        observers={3: "zone-c"},
    )
    document = explain(lost)
    assert [each["broker"] for each in document["awaited"]] == [1, 2]
    assert choices(document)[-1] == (
        "promote the observer on broker 3",
        "15 records, offsets 60 to 74, and whatever only brokers 1 and 2 had from offset 75 on",
        None,
        "scriba cluster promote zone-c --topic orders --unclean",
    )
    assert not any("elect" in (each[3] or "") for each in choices(document)), "it is not elected"


def test_an_observer_is_not_promoted_while_a_voter_lives() -> None:
    lost = facts(
        leader=None,
        isr=(1,),
        brokers={1: FENCED},
        observers={3: "zone-c"},
    )
    assert not any("promote" in each[0] for each in choices(explain(lost)))
