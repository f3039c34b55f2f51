"""What `scriba topic why` says, state by state, from facts alone."""

import io
import json
from typing import Any, cast

import pytest

from scriba.cli.topics.explain import (
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
from scriba.cli.topics.why import read_events
from scriba.client.admin.model import PartitionDescription

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
    ("held", "loses", "records"),
    [
        (
            {1: Held(0, 95, 90), 3: Held(0, 97, 97)},
            "2 records, offsets 95 to 96, and whatever only broker 2 had from offset 97 on",
            None,
        ),
        (
            {1: Held(0, 95, 95), 3: Held(0, 90, 90)},
            "whatever only broker 2 had from offset 95 on",
            None,
        ),
    ],
)
def test_an_unclean_election_is_told_with_what_it_loses(
    held: dict[int, Held], loses: str, records: int | None
) -> None:
    document = explain(facts(leader=None, isr=(), eligible=(2,), brokers={2: FENCED}, held=held))
    assert choices(document) == [
        ("start broker 2 at host:9092 again", "nothing", 0, "scriba node start 2"),
        (
            "let broker 1 lead as it is",
            loses,
            records,
            "scriba cluster elect orders:0 --unclean",
        ),
    ]


def test_the_loss_is_exact_where_every_replica_tells_what_it_has() -> None:
    """Nobody is left to be waited for: each of them crashed and is back."""
    held = {1: Held(0, 95, 90), 2: Held(0, 99, 98), 3: Held(0, 97, 97)}
    (choice,) = choices(explain(facts(leader=None, isr=(), held=held)))
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
        "waits for:\n"
        "  broker 2 is fenced: it does not run, or reaches no controller\n"
        "\n"
        "what can be done:\n"
        "  start broker 2 at host:9092 again; loses nothing\n"
        "    scriba node start 2\n"
        "  let broker 1 lead as it is; loses 2 records, offsets 95 to 96, and whatever only "
        "broker 2 had from offset 97 on\n"
        "    scriba cluster elect orders:0 --unclean\n"
        "\n"
        "what its brokers told:\n"
        "  2027-01-15T07:59:00Z  broker 2  partitions_leaderless: cluster: 2 without a leader: "
        "a-0, orders-0\n"
        "  no events of broker 1: it has no scriba.metrics.listener"
    )


def test_events_are_read_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [
        {"number": n, "time_ms": n, "kind": "isr_shrunk", "about": "t-0", "text": str(n)}
        for n in range(1, 6)
    ]
    asked = []

    def urlopen(address: str, timeout: float) -> io.BytesIO:
        asked.append(address)
        since = int(address.partition("since=")[2])
        page = [each for each in kept if cast(int, each["number"]) > since][:2]
        told = {"events": page, "next": page[-1]["number"] if page else since, "lost": 0}
        return io.BytesIO(json.dumps(told).encode())

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    found = read_events("http://b1:9404/events", 1, 3.0)
    assert [each.text for each in found] == ["1", "2", "3", "4", "5"]
    assert {each.node for each in found} == {1}
    assert len(asked) == 4
