"""Why a partition is as it is, and what can be done: from facts to a document, and to a page.

Nothing is asked here: whoever gathers the facts (`client.diagnosis.gather`) hands them over, and
what could not be found out is missing in them. The document is what `scriba topic why --json`
prints; the page tells the same, on a terminal and in the error of a producer.

What a choice would lose is judged by what is known of the replicas that answer. A replica that is
away may have more, so that it is said which ones nobody could ask.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from scriba.client.admin.model import PartitionDescription
from scriba.client.model import TopicPartition
from scriba.text import counted, table

WELL, NOT_PREFERRED, UNDER_REPLICATED, UNDER_MIN_ISR, OFFLINE = (
    "well",
    "well, but not led by its first replica",
    "under-replicated",
    "under min.insync.replicas",
    "offline",
)

SHOWN: Final = 10
"""Events that are told, the latest ones."""

_ABOUT_BROKERS: Final = frozenset(
    {"broker_lost", "broker_fenced", "broker_unfenced", "fetch_failed"}
)
_ABOUT_ALL: Final = frozenset({"partitions_leaderless", "unclean_election"})


_ENDED: Final = re.compile(r"its log ended at (\d+)")


class BrokerFacts(NamedTuple):
    address: str | None
    """None for one that is not registered."""
    fenced: bool
    answers: bool


class Held(NamedTuple):
    """What a broker says of its replica."""

    start_offset: int
    end_offset: int
    high_watermark: int | None
    error: str | None = None
    epoch: int = -1
    """The newest leader epoch in its log."""


class EventFacts(NamedTuple):
    node: int
    time_ms: int
    kind: str
    about: str
    text: str


class Facts(NamedTuple):
    topic: str
    partition: PartitionDescription
    brokers: Mapping[int, BrokerFacts]
    held: Mapping[int, Held]
    """By broker; of those that did not answer there is nothing."""
    min_insync: int
    events: Sequence[EventFacts]
    unheard: Mapping[int, str]
    """Brokers whose events could not be read, and why."""
    now_ms: int
    asks: bool = True
    """Whether the controller asks replicas what they have before an unclean election."""
    observers: Mapping[int, str] = {}
    """Replicas that observe, each with its rack: nobody waits for them, and none is elected."""

    @property
    def voters(self) -> list[int]:
        return [each for each in self.partition.replicas if each not in self.observers]

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition.partition)


def state(facts: Facts) -> str:
    partition = facts.partition
    if partition.leader is None:
        return OFFLINE
    if len(partition.isr) < min(facts.min_insync, len(partition.replicas)):
        return UNDER_MIN_ISR
    if len(partition.isr) < len(facts.voters):
        return UNDER_REPLICATED
    return WELL if partition.leader == partition.replicas[0] else NOT_PREFERRED


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
        "silent": [
            {"broker": each, "had": _last_word(facts, each, relevant)}
            for each in partition.replicas
            if _end(facts, each) is None
        ],
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
        case "under min.insync.replicas":
            return (
                f"{in_sync} of {count} replicas in sync, {facts.min_insync} needed: producers with "
                "acks=all are refused, and consumers see nothing new"
            )
        case "under-replicated":
            return f"{in_sync} of {count} replicas in sync: it can be written and read"
        case "well":
            return f"all {count} replicas in sync" if count > 1 else "its one replica leads it"
        case _:
            return f"all {count} replicas in sync; broker {partition.replicas[0]} should lead"


def _awaited(facts: Facts) -> list[int]:
    """Whose return would change something."""
    partition = facts.partition
    if partition.leader is None:
        return waits_for(partition)
    return [each for each in facts.voters if each not in partition.isr]


def _role(facts: Facts, broker: int) -> str:
    partition = facts.partition
    if broker == partition.leader:
        return "leader"
    if broker in partition.isr:
        return "in sync"
    if broker in (partition.eligible_leader_replicas or ()):
        return "eligible"
    if broker in (partition.last_known_elr or ()):
        return "last leader"
    return "observer" if broker in facts.observers else "out of sync"


def _replica(facts: Facts, broker: int) -> dict[str, Any]:
    held = facts.held.get(broker)
    known = facts.brokers.get(broker)
    known_end = held is not None and held.error is None
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


def _last_word(facts: Facts, broker: int, relevant: Sequence[EventFacts]) -> str:
    """What is known of a replica that does not tell what it has."""
    partition, committed = facts.partition, _committed(facts)
    trusted = (*partition.isr, *(partition.eligible_leader_replicas or ()))
    if broker in trusted:
        known = f", up to offset {committed:,} at least" if committed is not None else ""
        return f"all that was committed{known}"
    ends = [
        int(found[1])
        for each in relevant
        if each.kind == "isr_shrunk" and _names(each, broker)
        if (found := _ENDED.search(each.text)) is not None
    ]
    if ends:
        return f"up to offset {ends[-1]:,} when it left the in-sync set"
    if broker in (partition.last_known_elr or ()):
        return "more than the others, perhaps: it led last"
    return "nobody knows what"


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
    named = [each for each in relevant if _names(each, broker)]
    if named:
        last = named[-1]
        why += f" ({last.kind} {_ago(facts.now_ms - last.time_ms)}: {last.text})"
    return why


def _behind(facts: Facts, broker: int) -> str:
    end = _end(facts, broker)
    leader = facts.partition.leader
    most = _end(facts, leader) if leader is not None else _committed(facts)
    if end is None or most is None:
        return "does not tell how far it has come"
    if most > end:
        return f"catches up: it has {end:,} of {most:,}"
    return "has everything: it is let in within moments"


# -- since when ----------------------------------------------------------------------------------


def _relevant(facts: Facts) -> list[EventFacts]:
    """Events about this partition, or about brokers that hold it, oldest first."""
    name = f"{facts.topic}-{facts.partition.partition}"
    listed = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])")
    holders = {f"broker {each}" for each in facts.partition.replicas}
    found = [
        each
        for each in facts.events
        if each.about == name
        or (each.kind in _ABOUT_ALL and listed.search(each.text))
        or (each.kind in _ABOUT_BROKERS and each.about in holders)
    ]
    return sorted(found, key=lambda each: (each.time_ms, each.node))


def _names(event: EventFacts, broker: int) -> bool:
    if event.kind in ("isr_shrunk", "isr_expanded"):
        return event.text.startswith(f"replica {broker} ")
    if event.kind in ("broker_lost", "broker_fenced", "broker_unfenced"):
        return event.about == f"broker {broker}"
    return event.node == broker and event.kind not in _ABOUT_BROKERS | _ABOUT_ALL


def _since(facts: Facts, relevant: Sequence[EventFacts], awaited: Sequence[int]) -> int | None:
    """When the present state began, as far as events tell."""
    if facts.partition.leader is None:
        told = [each.time_ms for each in relevant if each.kind == "partitions_leaderless"]
        if told:
            return told[-1]
    left = []
    for broker in awaited:
        times = [
            each.time_ms
            for each in relevant
            if each.kind in ("isr_shrunk", "broker_lost", "broker_fenced") and _names(each, broker)
        ]
        left += times[-1:]
    return min(left, default=None)


# -- what can be done ----------------------------------------------------------------------------


def _choices(facts: Facts, awaited: Sequence[int]) -> list[dict[str, Any]]:
    match state(facts):
        case "well":
            return []
        case "offline":
            return [*_returns(facts, awaited), *_unclean(facts), *_promotion(facts)]
        case "under min.insync.replicas":
            return [*_returns(facts, awaited), _fewer(facts)]
        case "under-replicated":
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
            held = facts.held.get(broker)
            if held is not None and held.error is not None:
                what = f"see to the log directory of broker {broker}, and restart it"
            else:
                what = f"wait for broker {broker}"
            found.append(_choice(what, loses, records, None))
        else:
            at = f" at {known.address}" if known is not None and known.address else ""
            what = f"start broker {broker}{at} again"
            found.append(_choice(what, loses, records, f"scriba node start {broker}"))
    return found


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


# -- the page ------------------------------------------------------------------------------------


def page(document: dict[str, Any], now_ms: int) -> str:
    since = document["since_ms"]
    lasting = f" since {_time(since)} ({_ago(now_ms - since)})" if since is not None else ""
    lines = [
        f"{document['topic']}-{document['partition']} is {document['state']}{lasting}: "
        f"{document['means']}",
        "",
        *table(
            ["REPLICA", "BROKER", "ROLE", "START", "END", "COMMITTED"],
            (
                (
                    each["broker"],
                    each["broker_state"],
                    each["role"] if each["lag"] is None else f"{each['role']} (-{each['lag']:,})",
                    each["start_offset"],
                    each["end_offset"],
                    each["high_watermark"],
                )
                for each in document["replicas"]
            ),
        ),
    ]
    if document["silent"]:
        lines += [
            "",
            *(
                f"broker {each['broker']} does not tell: it had {each['had']}"
                for each in document["silent"]
            ),
        ]
    if document["awaited"]:
        what = "waits for" if document["leader"] is None else "not in sync"
        lines += ["", f"{what}:", *(f"  {each['why']}" for each in document["awaited"])]
    if document["choices"]:
        lines += ["", "what can be done:"]
        for each in document["choices"]:
            lines.append(f"  {each['choice']}; loses {each['loses']}")
            if each["command"]:
                lines.append(f"    {each['command']}")
    if document["events"]:
        lines += ["", "what the nodes told:"]
        lines += [
            f"  {_time(each['time_ms'])}  node {each['node']}  {each['kind']}: "
            f"{each['about']}: {each['text']}"
            for each in document["events"]
        ]
    if document["state"] not in (WELL, NOT_PREFERRED):
        lines += [
            f"  no events of node {each['node']}: {each['why']}" for each in document["unheard"]
        ]
    return "\n".join(lines)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _ago(ms: int) -> str:
    seconds = max(ms, 0) // 1000
    for unit, length in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return f"{counted(seconds // length, unit)} ago"
    return f"{counted(seconds, 'second')} ago"
