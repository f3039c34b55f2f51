"""Why a partition is as it is, and what can be done: from facts to a document.

Nothing is asked here: whoever gathers the facts (`client.diagnosis.gather`) hands them over, and
what could not be found out is missing in them. The document is what `scriba topic why --json`
prints; the page (`client.diagnosis.page`) tells the same, on a terminal and in the error of a
producer.

What a choice would lose is judged by what is known of the replicas that answer. A replica that is
away may have more, so that it is said which ones nobody could ask.
"""

import re
from collections.abc import Collection, Sequence
from typing import Any, Final

from scriba.client.admin.model import PartitionDescription
from scriba.client.diagnosis.facts import BrokerFacts, EventFacts, Facts
from scriba.client.diagnosis.log_dirs import (
    ABOUT_DIRS,
    FULL,
    NEARLY_FULL,
    closed_by,
    condition,
    is_about,
    log_dir_of,
    troubled,
    ways_out,
)
from scriba.client.diagnosis.times import ago
from scriba.text import counted

STATES: Final = (
    "well",
    "well, but not led by its first replica",
    "under-replicated",
    "waiting for an in-sync replica",
    "under min.insync.replicas",
    "closed to producers",
    "led by a broker that does not answer",
    "offline",
)
"""From the best to the worst."""
WELL, NOT_PREFERRED, UNDER_REPLICATED, WAITING, UNDER_MIN_ISR, CLOSED, SILENT, OFFLINE = STATES

SHOWN: Final = 10
"""Events that are told, the latest ones."""

_ABOUT_BROKERS: Final = frozenset(
    {"broker_lost", "broker_fenced", "broker_stopped", "broker_unfenced", "fetch_failed"}
)
_ABOUT_ALL: Final = frozenset({"partitions_leaderless", "unclean_election"})


_LEFT: Final = ("isr_shrunk", "replica_stopped")
"""Of a replica that left the in-sync set."""
_GONE: Final = ("broker_lost", "broker_fenced", "broker_stopped")

_ENDED: Final = re.compile(r"its log ended at (\d+)")


def state(facts: Facts) -> str:
    if facts.partition.leader is None:
        return OFFLINE
    if _broker_state(facts.brokers.get(facts.partition.leader)) != "up":
        return SILENT
    return _replication(facts) if closed_by(facts) is None else CLOSED


def _replication(facts: Facts) -> str:
    """The state of a partition that has a leader, by its in-sync replicas."""
    partition = facts.partition
    if len(partition.isr) < min(facts.min_insync, len(partition.replicas)):
        return UNDER_MIN_ISR
    if _silent_in_sync(facts):
        return WAITING
    if is_under_replicated(partition, {*facts.observers, *facts.adding}):
        return UNDER_REPLICATED
    first = partition.replicas[0]
    return WELL if partition.leader == first or first in facts.adding else NOT_PREFERRED


def _silent_in_sync(facts: Facts) -> list[int]:
    """Followers that count for acks=all, and do not answer."""
    return [
        each
        for each in facts.partition.isr
        if each != facts.partition.leader and _broker_state(facts.brokers.get(each)) != "up"
    ]


def is_under_replicated(partition: PartitionDescription, beside: Collection[int] = ()) -> bool:
    """Whether fewer are in sync than should be, as the metric counts. `beside` are those that
    nobody misses: observers, and replicas that a reassignment adds."""
    return len(partition.isr) < sum(each not in beside for each in partition.replicas)


def is_well(document: dict[str, Any]) -> bool:
    """Whether there is nothing to tell of a partition that was not asked for by its number."""
    copies = [] if document["move"] is None else document["move"]["copies"]
    stuck = any(each["stuck"] for each in copies)
    return document["state"] in (WELL, NOT_PREFERRED) and not stuck


def explain(facts: Facts) -> dict[str, Any]:
    partition = facts.partition
    relevant = _relevant(facts)
    awaited = _awaited(facts)
    return {
        "topic": facts.topic,
        "partition": partition.partition,
        "state": state(facts),
        "means": _meaning(facts),
        "since_ms": _since(facts, relevant, awaited),
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "isr": list(partition.isr),
        "min_insync_replicas": facts.min_insync,
        "eligible": list(partition.eligible_leader_replicas or ()),
        "last_known": list(partition.last_known_elr or ()),
        "replicas": [_replica(facts, broker) for broker in partition.replicas],
        "committed": _committed(facts),
        "controlled": facts.controlled,
        "silent": [
            {"broker": each, "had": _last_word(facts, each, relevant)}
            for each in partition.replicas
            if _end(facts, each) is None and each not in facts.adding
        ],
        "move": _move(facts, relevant),
        "log_dirs": troubled(facts),
        "awaited": [{"broker": each, "why": _absence(facts, each, relevant)} for each in awaited],
        "events": [each._asdict() for each in relevant[-SHOWN:]],
        "unheard": [{"node": node, "why": why} for node, why in sorted(facts.unheard.items())],
        "choices": _choices(facts, awaited),
    }


# -- what is -------------------------------------------------------------------------------------


def _meaning(facts: Facts) -> str:
    partition = facts.partition
    in_sync, count = len(partition.isr), len(facts.voters)
    match state(facts):
        case "offline":
            return "nobody leads it: it can be neither written nor read"
        case "led by a broker that does not answer":
            return (
                f"nobody reaches broker {partition.leader} from here: it can be neither written "
                "nor read until that broker is back or another one leads"
            )
        case "closed to producers":
            return _closed(facts)
        case "under min.insync.replicas":
            return (
                f"{in_sync} of {count} replicas in sync, {facts.min_insync} needed: producers with "
                "acks=all are refused, and consumers see nothing new"
            )
        case "waiting for an in-sync replica":
            missed = _brokers([str(each) for each in _silent_in_sync(facts)])
            return (
                f"nobody reaches {missed} from here, in sync by the metadata: producers with "
                "acks=all wait, and consumers see nothing new, until that is back or left out"
            )
        case "under-replicated":
            return f"{in_sync} of {count} replicas in sync: it can be written and read"
        case "well" if _awaited(facts):
            return f"{in_sync} replicas in sync, as many as before it was moved"
        case "well":
            return f"all {count} replicas in sync" if count > 1 else "its one replica leads it"
        case _:
            return f"all {count} replicas in sync; broker {partition.replicas[0]} should lead"


def _closed(facts: Facts) -> str:
    found = closed_by(facts)
    assert found is not None
    directory, wrong = found
    told = (
        f"its leader, broker {facts.partition.leader}, takes no records, since {directory.path} is "
        f"{wrong}; it can be read"
    )
    if _replication(facts) == UNDER_MIN_ISR:
        count = counted(len(facts.partition.isr), "replica")
        told += f". Beside that only {count} in sync, {facts.min_insync} needed"
    return told


def _awaited(facts: Facts) -> list[int]:
    """Whose return would change something."""
    partition = facts.partition
    if partition.leader is None:
        return waits_for(partition)
    missed = [each for each in facts.voters if each not in partition.isr]
    if state(facts) == SILENT:
        return [partition.leader, *missed]
    return [*_silent_in_sync(facts), *missed]


def _role(facts: Facts, broker: int) -> str:
    partition = facts.partition
    if broker == partition.leader:
        return "leader"
    if broker in partition.isr:
        return "in sync"
    if broker in facts.adding:
        return "being added"
    if broker in (partition.eligible_leader_replicas or ()):
        return "eligible"
    if broker in (partition.last_known_elr or ()):
        return "last leader"
    return "observer" if broker in facts.observers else "out of sync"


def _replica(facts: Facts, broker: int) -> dict[str, Any]:
    held = facts.held.get(broker)
    known = facts.brokers.get(broker)
    known_end = held is not None and held.error is None
    directory = log_dir_of(facts, broker)
    return {
        "broker": broker,
        "address": known.address if known is not None else None,
        "broker_state": _broker_state(known),
        "role": _role(facts, broker),
        "lag": _lag(facts, broker) if broker in facts.observers else None,
        "start_offset": held.start_offset if held is not None and known_end else None,
        "end_offset": held.end_offset if held is not None and known_end else None,
        "epoch": held.epoch if held is not None and known_end and held.epoch >= 0 else None,
        "high_watermark": held.high_watermark if held is not None else None,
        "error": held.error if held is not None else None,
        "log_dir": None if directory is None else directory.path,
    }


def _lag(facts: Facts, broker: int) -> int | None:
    """Records that an observer lacks of what is committed, as far as that is known."""
    end, committed = _end(facts, broker), _committed(facts)
    return max(committed - end, 0) if end is not None and committed is not None else None


def _broker_state(broker: BrokerFacts | None) -> str:
    if broker is None or broker.address is None:
        return "not registered"
    if broker.fenced:
        return "fenced"
    return "up" if broker.answers else "no answer"


def _end(facts: Facts, broker: int) -> int | None:
    held = facts.held.get(broker)
    return held.end_offset if held is not None and held.error is None else None


def _committed(facts: Facts) -> int | None:
    """What is known to be committed: the greatest high watermark that any replica knows."""
    marks = [held.high_watermark for held in facts.held.values() if held.high_watermark is not None]
    return max(marks, default=None)


def _last_word(facts: Facts, broker: int, relevant: Sequence[EventFacts]) -> str | None:
    """What is known of a replica that does not tell what it has; None if nothing is."""
    partition, committed = facts.partition, _committed(facts)
    trusted = (*partition.isr, *(partition.eligible_leader_replicas or ()))
    if broker in trusted:
        known = f", up to offset {committed:,} at least" if committed is not None else ""
        return f"all that was committed{known}"
    ends = [
        int(found[1])
        for each in relevant
        if each.kind in _LEFT and _names(each, broker)
        if (found := _ENDED.search(each.text)) is not None
    ]
    if ends:
        return f"up to offset {ends[-1]:,} when it left the in-sync set"
    if broker in (partition.last_known_elr or ()):
        return "more than the others, perhaps: it led last"
    return None


def _absence(facts: Facts, broker: int, relevant: Sequence[EventFacts]) -> str:
    """Why a replica is missed."""
    known, held = facts.brokers.get(broker), facts.held.get(broker)
    match _broker_state(known):
        case "not registered":
            why = f"broker {broker} is not registered: it was taken out of the cluster"
        case "fenced":
            why = f"broker {broker} is fenced: it does not run, or reaches no controller"
        case "no answer":
            why = f"broker {broker} is registered, and does not answer"
        case _ if held is not None and held.error is not None:
            why = f"broker {broker} is up, and cannot use its replica: {held.error}"
        case _:
            why = f"broker {broker} is up, and {_behind(facts, broker)}"
    if (unusable := _unusable(facts, broker)) is not None:
        why += f"; its log directory {unusable[0]} is {unusable[1]}"
    named = [each for each in relevant if _names(each, broker)]
    if named:
        last = named[-1]
        why += f" ({last.kind} {ago(facts.now_ms - last.time_ms)}: {last.text})"
    return why


def _behind(facts: Facts, broker: int) -> str:
    end = _end(facts, broker)
    leader = facts.partition.leader
    most = _end(facts, leader) if leader is not None else _committed(facts)
    if end is None or most is None:
        return "does not tell how far it has come"
    if most > end:
        return f"catches up: it has {end:,} of {most:,}"
    if leader is None:
        return "has everything: it is let in when the partition has a leader"
    return "has everything: it is let in within moments"


# -- where to ------------------------------------------------------------------------------------


def _move(facts: Facts, relevant: Sequence[EventFacts]) -> dict[str, Any] | None:
    """How far a reassignment has come."""
    if facts.move is None:
        return None
    leader = facts.partition.leader
    held = facts.held.get(leader) if leader is not None else None
    copies = []
    for broker in facts.move.adding:
        end = _end(facts, broker)
        has = of = None
        if end is not None and held is not None and held.error is None:
            of = held.end_offset - held.start_offset
            has = min(max(end - held.start_offset, 0), of)
        stuck = broker in _stuck(facts)
        if broker in facts.partition.isr:
            why = f"broker {broker} has caught up"
        elif has is not None and not stuck:
            why = f"broker {broker} has {has:,} of {counted(of or 0, 'record')}"
        else:
            why = _absence(facts, broker, relevant)
        copies.append({"broker": broker, "stuck": stuck, "records": has, "of": of, "why": why})
    return {
        "to": list(facts.move.target),
        "adding": list(facts.move.adding),
        "removing": list(facts.move.removing),
        "copies": copies,
    }


def _stuck(facts: Facts) -> list[int]:
    """Brokers that cannot take the replica that a reassignment gives them."""
    return [
        each
        for each in facts.adding
        if each not in facts.partition.isr
        and (_broker_state(facts.brokers.get(each)) != "up" or _unusable(facts, each) is not None)
    ]


def _unusable(facts: Facts, broker: int) -> tuple[str, str] | None:
    """The log directory of a replica that takes nothing from its leader either, and why."""
    directory = log_dir_of(facts, broker)
    wrong = None if directory is None else condition(facts, broker, directory)
    if directory is None or wrong in (None, NEARLY_FULL):
        return None
    return directory.path, wrong


# -- since when ----------------------------------------------------------------------------------


def _relevant(facts: Facts) -> list[EventFacts]:
    """Events about this partition, about brokers that hold it, or about the log directories in
    which they do, oldest first."""
    name = f"{facts.topic}-{facts.partition.partition}"
    listed = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])")
    holders = {f"broker {each}" for each in facts.partition.replicas}
    found = [
        each
        for each in facts.events
        if each.about == name
        or (each.kind in _ABOUT_ALL and listed.search(each.text))
        or (each.kind in _ABOUT_BROKERS and each.about in holders)
        or is_about(facts, each)
    ]
    return sorted(found, key=lambda each: (each.time_ms, each.node))


def _names(event: EventFacts, broker: int) -> bool:
    if event.kind in (*_LEFT, "isr_expanded"):
        return event.text.startswith(f"replica {broker} ")
    if event.kind in (*_GONE, "broker_unfenced"):
        return event.about == f"broker {broker}"
    return event.node == broker and event.kind not in _ABOUT_BROKERS | _ABOUT_ALL | ABOUT_DIRS


def _since(facts: Facts, relevant: Sequence[EventFacts], awaited: Sequence[int]) -> int | None:
    """When the present state began, as far as events tell."""
    if facts.partition.leader is None:
        told = [each.time_ms for each in relevant if each.kind == "partitions_leaderless"]
        if told:
            return told[-1]
    elif (closed := closed_by(facts)) is not None:
        began = [
            each.time_ms
            for each in relevant
            if each.kind in ("write_watermark_reached", "log_dir_offline")
            and (each.node, each.about) == (facts.partition.leader, closed[0].path)
        ]
        return began[-1] if began and closed[1] != FULL else None
    left = []
    for broker in awaited:
        times = [
            each.time_ms
            for each in relevant
            if each.kind in (*_LEFT, *_GONE) and _names(each, broker)
        ]
        left += times[-1:]
    return min(left, default=None)


# -- what can be done ----------------------------------------------------------------------------


def _choices(facts: Facts, awaited: Sequence[int]) -> list[dict[str, Any]]:
    now = state(facts)
    if now == OFFLINE:
        found = [*_returns(facts, awaited), *_unclean(facts), *_promotion(facts)]
    elif now == SILENT:
        found = _returns(facts, awaited)
    else:
        room = [_choice(*each) for each in ways_out(facts)]
        found = [*room, *_in_sync_again(facts, awaited)]
    if not facts.controlled and now not in (WELL, NOT_PREFERRED):
        what = "start controllers until a majority of them is up"
        found.insert(0, _choice(what, "nothing", 0, None))
    return [*found, *_end_of_move(facts)]


def _in_sync_again(facts: Facts, awaited: Sequence[int]) -> list[dict[str, Any]]:
    match _replication(facts):
        case "well":
            return []
        case "under min.insync.replicas":
            return [*_returns(facts, awaited), _fewer(facts)]
        case "under-replicated" | "waiting for an in-sync replica":
            return _returns(facts, awaited)
        case _:
            first = facts.partition.replicas[0]
            return [_choice(f"let broker {first} lead", "nothing", 0, _elect(facts))]


def _choice(what: str, loses: str, records: int | None, command: str | None) -> dict[str, Any]:
    return {"choice": what, "loses": loses, "records": records, "command": command}


def _returns(facts: Facts, awaited: Sequence[int]) -> list[dict[str, Any]]:
    """Brokers that should come back, one by one."""
    partition = facts.partition
    safe = {*partition.isr, *(partition.eligible_leader_replicas or ())}
    found = []
    for broker in awaited:
        known = facts.brokers.get(broker)
        leads_with_loss = partition.leader is None and broker not in safe
        loses = "what its device had not taken when it crashed" if leads_with_loss else "nothing"
        records = None if leads_with_loss else 0
        if _broker_state(known) == "up":
            held, unusable = facts.held.get(broker), _unusable(facts, broker)
            if unusable is not None and unusable[1] == FULL:
                what = f"make room on the volume of {unusable[0]} of broker {broker}"
            elif held is not None and held.error is not None:
                what = f"see to the log directory of broker {broker}, and restart it"
            else:
                what = f"wait for broker {broker}"
            found.append(_choice(what, loses, records, None))
        else:
            at = f" at {known.address}" if known is not None and known.address else ""
            what = f"start broker {broker}{at} again"
            here = known is not None and known.on_this_machine
            command = f"scriba node start {broker}" if here else None
            found.append(_choice(what, loses, records, command))
    return found


def _end_of_move(facts: Facts) -> list[dict[str, Any]]:
    """For a move that cannot go on: nobody would wait for it elsewhere."""
    stuck = _stuck(facts)
    if not stuck:
        return []
    name = f"{facts.topic}:{facts.partition.partition}"
    cancel = f"scriba cluster reassign {name} --cancel"
    return [*_returns(facts, stuck), _choice("cancel the move", "nothing", 0, cancel)]


def _unclean(facts: Facts) -> list[dict[str, Any]]:
    """The replica that would lead if records may be lost: the one that has the most, or the first
    that lives where nobody is asked."""
    safe = waits_for(facts.partition)
    lives = [each for each in facts.voters if _end(facts, each) is not None]
    if not lives or any(each in safe for each in lives):
        return []
    chosen = max(lives, key=lambda each: _most(facts, each)) if facts.asks else lives[0]
    what, command = f"let broker {chosen} lead as it is", f"{_elect(facts)} --unclean"
    return [_choice(what, *_lost_with(facts, chosen), command)]


def _promotion(facts: Facts) -> list[dict[str, Any]]:
    """The observer that would lead, where no voter that lives could."""
    if any(_end(facts, each) is not None for each in facts.voters):
        return []
    lives = [each for each in facts.observers if _end(facts, each) is not None]
    if not lives:
        return []
    chosen = max(lives, key=lambda each: _most(facts, each))
    what = f"promote the observer on broker {chosen}"
    command = f"scriba cluster promote {facts.observers[chosen]} --topic {facts.topic} --unclean"
    return [_choice(what, *_lost_with(facts, chosen), command)]


def _lost_with(facts: Facts, chosen: int) -> tuple[str, int | None]:
    """What is lost if this replica leads: in words, and in records where that is known."""
    replicas = facts.partition.replicas
    end = _end(facts, chosen)
    assert end is not None
    most = max([_committed(facts) or 0, *(_end(facts, each) or 0 for each in replicas)])
    lost = max(most - end, 0)
    loses = f"{counted(lost, 'record')}, offsets {end:,} to {most - 1:,}" if lost else ""
    unknown = [str(each) for each in replicas if _end(facts, each) is None]
    if unknown:
        beyond = f"whatever only {_brokers(unknown)} had from offset {most:,} on"
        loses = f"{loses}, and {beyond}" if loses else beyond
    return loses or "nothing", None if unknown else lost


def _most(facts: Facts, broker: int) -> tuple[int, int]:
    held = facts.held[broker]
    return held.epoch, held.end_offset


def waits_for(partition: PartitionDescription) -> list[int]:
    """Who may lead a partition that has no leader, once one of them is back (KIP-966)."""
    if partition.leader is not None:
        return []
    eligible = [*partition.isr, *(partition.eligible_leader_replicas or ())]
    return list(dict.fromkeys(eligible or (partition.last_known_elr or ())))


def _fewer(facts: Facts) -> dict[str, Any]:
    count = len(facts.partition.isr)
    holders = "the leader alone has" if count == 1 else f"only {count} brokers have"
    return _choice(
        f"ask for {count} in sync only, for all of {facts.topic}",
        f"nothing now; from then on what is acknowledged may be what {holders}",
        0,
        f"scriba config set --topic {facts.topic} min.insync.replicas={count}",
    )


def _elect(facts: Facts) -> str:
    return f"scriba cluster elect {facts.topic}:{facts.partition.partition}"


def _brokers(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"broker {names[0]}"
    return f"brokers {', '.join(names[:-1])} and {names[-1]}"
