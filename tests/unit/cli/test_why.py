"""What `scriba topic why` says, state by state, from facts alone."""

from typing import Any

import pytest

from scriba.client.admin.model import PartitionDescription, Reassignment
from scriba.client.diagnosis.explain import (
    CLOSED,
    NOT_PREFERRED,
    OFFLINE,
    SILENT,
    UNDER_MIN_ISR,
    UNDER_REPLICATED,
    WAITING,
    WELL,
    explain,
    is_well,
)
from scriba.client.diagnosis.facts import BrokerFacts, EventFacts, Facts, Held, LogDirFacts
from scriba.client.diagnosis.page import WHOLE, page, pages
from scriba.client.producing.explanations import say_where_nodes_start

NOW = 1_800_000_000_000
UP = BrokerFacts("localhost:9092", fenced=False, answers=True)
FENCED = BrokerFacts("localhost:9092", fenced=True, answers=False)
MUTE = BrokerFacts("localhost:9092", fenced=False, answers=False)
GONE = BrokerFacts(None, fenced=True, answers=False)


def facts(
    leader: int | None = 1,
    isr: tuple[int, ...] = (1, 2, 3),
    eligible: tuple[int, ...] = (),
    last: tuple[int, ...] = (),
    brokers: dict[int, BrokerFacts] | None = None,
    held: dict[int, Held] | None = None,
    events: tuple[EventFacts, ...] = (),
    replicas: tuple[int, ...] = (1, 2, 3),
    **more: Any,
) -> Facts:
    partition = PartitionDescription(0, leader, 7, replicas, isr, (), eligible, last)
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


@pytest.mark.parametrize(
    ("address", "command"),
    [
        ("127.0.0.1:9093", "scriba node start 2"),
        ("[::1]:9093", "scriba node start 2"),
        ("kafka-2.example:9092", None),
        ("192.0.2.7:9092", None),
        (None, None),
    ],
)
def test_a_node_of_another_machine_is_not_started_by_a_command_here(
    address: str | None, command: str | None
) -> None:
    gone = BrokerFacts(address, fenced=True, answers=False)
    first, *_ = choices(explain(facts(isr=(1,), brokers={2: gone})))
    assert first == (
        f"start broker 2{f' at {address}' if address else ''} again",
        "nothing",
        0,
        command,
    )


def test_an_error_says_where_the_command_that_starts_a_node_works() -> None:
    """Whoever produces may be in any folder, and the node may be run by anything."""
    document = explain(facts(isr=(1,), brokers={2: FENCED}, held={3: Held(0, 40, 40)}))
    say_where_nodes_start(document["choices"])
    assert choices(document)[:2] == [
        (
            "start broker 2 at localhost:9092 again "
            "(if scriba up --nodes runs it, in the folder of that)",
            "nothing",
            0,
            "scriba node start 2",
        ),
        ("wait for broker 3", "nothing", 0, None),
    ]


def test_too_few_in_sync_may_wait_or_be_taken_for_enough() -> None:
    document = explain(facts(isr=(1,), brokers={2: FENCED}, held={3: Held(0, 40, 40)}))
    assert choices(document) == [
        ("start broker 2 at localhost:9092 again", "nothing", 0, "scriba node start 2"),
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
        ("start broker 2 at localhost:9092 again", "nothing", 0, "scriba node start 2"),
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
        "  start broker 2 at localhost:9092 again; loses nothing\n"
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
        ({"isr": (1, 2)}, None),
    ],
)
def test_what_a_silent_replica_had_is_told_as_far_as_others_know(
    given: dict[str, Any], had: str | None
) -> None:
    document = explain(facts(brokers={3: FENCED}, **given))
    assert document["silent"] == [{"broker": 3, "had": had}]


def test_of_many_partitions_the_worst_get_a_page_and_the_others_a_line() -> None:
    documents = [
        explain(facts(isr=(1, 2), brokers={3: FENCED})) | {"partition": at} for at in range(7)
    ]
    documents[6] = explain(facts(leader=None, isr=(3,), brokers={3: FENCED})) | {"partition": 6}
    told = pages(documents, NOW)
    assert told.startswith("orders-6 is offline: ")
    assert told.count("REPLICA  BROKER") == WHOLE
    assert [line.split()[0] for line in told.rpartition("\n\n")[2].splitlines()] == [
        "orders-4",
        "orders-5",
    ]
    assert pages(documents[:2], NOW).count("REPLICA  BROKER") == 2


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


# ---- a leader that is gone ----


@pytest.mark.parametrize("broker", [MUTE, FENCED, GONE])
def test_a_partition_whose_leader_does_not_answer_cannot_be_written(broker: BrokerFacts) -> None:
    document = explain(facts(isr=(1, 2), brokers={1: broker, 3: FENCED}))
    assert document["state"] == SILENT
    assert "neither written nor read" in document["means"]
    assert [each["broker"] for each in document["awaited"]] == [1, 3]
    first = "scriba node start 1" if broker is not GONE else None  # nobody knows where it was
    assert [each[3] for each in choices(document)] == [first, "scriba node start 3"]
    assert not is_well(document)


def test_a_follower_that_is_in_sync_and_does_not_answer_is_waited_for() -> None:
    document = explain(facts(isr=(1, 2), brokers={2: MUTE, 3: FENCED}))
    assert document["state"] == WAITING
    assert document["means"].startswith("nobody reaches broker 2 from here")
    assert [each["broker"] for each in document["awaited"]] == [2, 3]
    assert explain(facts(isr=(1,), brokers={2: MUTE}))["state"] == UNDER_MIN_ISR


def test_without_a_controller_a_majority_of_them_comes_first() -> None:
    document = explain(facts(leader=None, isr=(2,), brokers={2: MUTE}, controlled=False))
    assert [each[0] for each in choices(document)][:2] == [
        "start controllers until a majority of them is up",
        "start broker 2 at localhost:9092 again",
    ]
    assert "no active controller answers" in page(document, NOW)
    assert "no active controller" not in page(explain(facts()), NOW)


# ---- log directories ----

GB = 1 << 30
ROOMY = LogDirFacts("/a", None, 100 * GB, 50 * GB, watermark=0.9)
NEARLY = LogDirFacts("/a", None, 100 * GB, 7 * GB, cordoned=True, watermark=0.9)
FULL = LogDirFacts("/a", None, 100 * GB, 1000)
DEAD = LogDirFacts("/a", "KAFKA_STORAGE_ERROR")


def lying(
    first: LogDirFacts, second: LogDirFacts = ROOMY, third: LogDirFacts = ROOMY, **more: Any
) -> Facts:
    """A partition whose replicas are in /a of brokers 1, 2 and 3, and led by the first."""
    dirs = {1: [first], 2: [second], 3: [third], **more.pop("others", {})}
    return facts(log_dirs=dirs, lies={1: "/a", 2: "/a", 3: "/a"}, **more)


@pytest.mark.parametrize(
    ("directory", "state"),
    [
        (ROOMY, WELL),
        (NEARLY, CLOSED),
        (NEARLY._replace(cordoned=False), CLOSED),
        (NEARLY._replace(usable_bytes=11 * GB), CLOSED),
        (NEARLY._replace(usable_bytes=11 * GB, named=True), WELL),
        (NEARLY._replace(usable_bytes=None, total_bytes=None), CLOSED),
        (NEARLY._replace(watermark=0.0), WELL),
        (FULL, CLOSED),
        (DEAD, CLOSED),
        (LogDirFacts("/a"), WELL),
    ],
    ids=[
        "room",
        "above the mark",
        "about to be closed",
        "not yet opened",
        "cordoned by its setting",
        "tells no room",
        "no mark",
        "full",
        "offline",
        "tells nothing",
    ],
)
def test_a_partition_is_closed_where_its_leaders_directory_is(
    directory: LogDirFacts, state: str
) -> None:
    assert explain(lying(directory))["state"] == state
    assert explain(lying(ROOMY, second=directory))["state"] == WELL, "a follower's takes records"


def test_offsets_of_groups_are_written_into_a_directory_that_is_nearly_full() -> None:
    assert explain(lying(NEARLY, internal=True))["state"] == WELL
    assert explain(lying(FULL, internal=True))["state"] == CLOSED


def test_a_mark_that_a_broker_has_of_its_own_is_raised_for_that_broker() -> None:
    """One for all brokers would change nothing."""
    document = explain(lying(NEARLY._replace(own_mark=True)))
    what, *_, raised = choices(document)[-1]
    assert what == "raise the mark to 0.96, for broker 1"
    assert raised == "scriba config set --broker 1 scriba.log.dirs.write.watermark=0.96"


def test_a_device_that_refused_a_write_just_now_is_full_whatever_room_it_tells() -> None:
    refused = EventFacts(1, NOW - 30_000, "write_refused", "/a", "takes no writes: ENOSPC")
    document = explain(lying(ROOMY, events=(refused,)))
    assert document["state"] == CLOSED
    assert "takes no writes: ENOSPC" in document["log_dirs"][0]["why"]
    for other in (
        refused._replace(time_ms=NOW - 300_000),
        refused._replace(node=2),
        refused._replace(about="/b"),
    ):
        assert explain(lying(ROOMY, events=(other,)))["state"] == WELL


REACHED = EventFacts(
    1, NOW - 60_000, "write_watermark_reached", "/a", "takes no more records of clients: 93.0%"
)


def test_a_directory_that_is_nearly_full_is_the_cause_and_the_ways_out_are_told() -> None:
    free = {4: [ROOMY], 5: [ROOMY._replace(usable_bytes=90 * GB)], 6: [NEARLY]}
    elsewhere = REACHED._replace(about="/b")
    others = (elsewhere, REACHED._replace(node=4))
    document = explain(lying(NEARLY, second=NEARLY, others=free, events=(REACHED, *others)))
    assert document["since_ms"] == REACHED.time_ms
    assert [each["time_ms"] for each in document["events"]] == [REACHED.time_ms]
    assert document["means"] == (
        "its leader, broker 1, takes no records, since /a is nearly full; it can be read"
    )
    assert choices(document) == [
        (
            "make room on the volume of /a: delete topics, or lower retention",
            "what is deleted",
            None,
            None,
        ),
        (
            "let broker 3 lead, which has room",
            "nothing",
            0,
            "scriba cluster reassign orders:0 --to 3,1,2 && scriba cluster elect orders:0",
        ),
        (
            "move it from broker 1 to broker 5",
            "nothing",
            0,
            "scriba cluster reassign orders:0 --to 5,2,3",
        ),
        (
            "raise the mark to 0.96, for all brokers",
            "nothing; less room is kept for deleting, compacting and metadata",
            0,
            "scriba config set --cluster scriba.log.dirs.write.watermark=0.96",
        ),
    ]
    text = page(document, NOW)
    assert text.startswith("orders-0 is closed to producers since 2027-01-15T07:59:00Z (1 minute")
    assert (
        "/a of broker 1 is nearly full: 93.0% of its volume in use, "
        "scriba.log.dirs.write.watermark is 0.9" in text
    )


def test_another_directory_of_the_same_broker_is_a_way_out() -> None:
    given = lying(NEARLY, NEARLY, NEARLY)
    two = given._replace(log_dirs={**given.log_dirs, 1: [NEARLY, ROOMY._replace(path="/b")]})
    assert [each[3] for each in choices(explain(two))][1:2] == [
        "scriba cluster reassign orders:0 --dir 1:/b"
    ]


def test_a_volume_without_a_higher_mark_has_to_be_given_room() -> None:
    document = explain(lying(NEARLY._replace(usable_bytes=2 * GB), NEARLY, NEARLY))
    assert [each[0][:9] for each in choices(document)] == ["make room"]


def test_a_closed_partition_that_has_too_few_in_sync_needs_both() -> None:
    document = explain(lying(NEARLY, isr=(1,), brokers={2: FENCED, 3: FENCED}))
    assert document["state"] == CLOSED
    assert document["means"].endswith("Beside that only 1 replica in sync, 2 needed")
    commands = [each[3] for each in choices(document)]
    assert "scriba node start 2" in commands
    assert "scriba config set --topic orders min.insync.replicas=1" in commands


def test_a_replica_without_a_directory_that_works_is_missed_for_that() -> None:
    gone = Held(-1, -1, None, "KAFKA_STORAGE_ERROR")
    offline = EventFacts(3, NOW - 1_000, "log_dir_offline", "/a", "Input/output error")
    dirs = {1: [ROOMY], 2: [ROOMY], 3: [DEAD, ROOMY._replace(path="/b")]}
    given = facts(
        isr=(1, 2),
        held={3: gone},
        log_dirs=dirs,
        lies={1: "/a", 2: "/a"},
        events=(offline,),
    )
    document = explain(given)
    (awaited,) = document["awaited"]
    assert awaited["why"].endswith("KAFKA_STORAGE_ERROR; its log directory /a is offline")
    assert [each["why"] for each in document["log_dirs"]] == [
        "/a of broker 3 is offline: Input/output error"
    ]
    assert [each["kind"] for each in document["events"]] == ["log_dir_offline"]
    full = explain(lying(ROOMY, third=FULL, isr=(1, 2), held={3: Held(0, 40, 40)}))
    assert choices(full)[0][0] == "make room on the volume of /a of broker 3"


# ---- moves ----

MOVE = Reassignment((4, 2, 3, 1), (4,), (1,))


def moving(**more: Any) -> Facts:
    """From brokers 1, 2 and 3 to 4, 2 and 3."""
    given: dict[str, Any] = {
        "replicas": MOVE.replicas,
        "move": MOVE,
        "brokers": {4: UP},
        "held": {1: Held(20, 100, 100), 4: Held(20, 50, 50)},
    }
    return facts(**(given | more))


def test_a_partition_that_is_being_moved_misses_nothing() -> None:
    document = explain(moving())
    assert document["state"] == WELL
    assert document["means"] == "all 3 replicas in sync"
    assert document["awaited"] == document["choices"] == []
    assert document["replicas"][0]["role"] == "being added"
    assert document["move"]["copies"] == [
        {
            "broker": 4,
            "stuck": False,
            "records": 30,
            "of": 80,
            "why": "broker 4 has 30 of 80 records",
        }
    ]
    assert is_well(document)
    text = page(document, NOW)
    assert "is being moved to 4,2,3, away from 1:\n  broker 4 has 30 of 80 records" in text


def test_a_replica_that_is_being_added_is_not_let_in_while_nobody_leads() -> None:
    given = moving(leader=None, isr=(), last=(1,), brokers={1: FENCED, 4: UP}, held={})
    (copy,) = explain(given)["move"]["copies"]
    has = "broker 4 is up, and has everything"
    assert copy["why"] == f"{has}: it is let in when the partition has a leader"


@pytest.mark.parametrize(
    ("isr", "state", "awaited"),
    [
        ((1, 2, 3), WELL, []),
        ((1, 2, 3, 4), WELL, []),
        ((1, 2), UNDER_REPLICATED, [3]),
        ((1, 2, 4), WELL, [3]),
    ],
)
def test_a_replica_that_is_being_added_is_not_missed_and_others_are(
    isr: tuple[int, ...], state: str, awaited: list[int]
) -> None:
    document = explain(moving(isr=isr))
    assert document["state"] == state
    assert [each["broker"] for each in document["awaited"]] == awaited


@pytest.mark.parametrize(
    ("given", "why", "choice"),
    [
        (
            {"brokers": {4: FENCED}, "held": {}},
            "broker 4 is fenced: it does not run, or reaches no controller",
            "start broker 4 at localhost:9092 again",
        ),
        (
            {"log_dirs": {4: [FULL]}, "lies": {4: "/a"}},
            "broker 4 is up, and catches up: it has 50 of 100; its log directory /a is full",
            "make room on the volume of /a of broker 4",
        ),
    ],
)
def test_a_move_that_cannot_go_on_can_be_cancelled(
    given: dict[str, Any], why: str, choice: str
) -> None:
    document = explain(moving(**given))
    assert document["state"] == WELL
    assert not is_well(document)
    assert document["move"]["copies"][0]["why"] == why
    assert [each[0] for each in choices(document)] == [choice, "cancel the move"]
    assert choices(document)[-1][3] == "scriba cluster reassign orders:0 --cancel"
