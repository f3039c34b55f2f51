"""Who leads a partition, and the records that say so.

A new leader comes from the in-sync replicas that are active. Where the cluster keeps eligible
leader replicas (KIP-966), the in-sync set may become empty, and those that left it while it was
below `min.insync.replicas` may lead as well: no record was acknowledged without them, for below
that size the high watermark stands still. A broker that restarted uncleanly may have lost what was
not on its disk, so it is struck from both sets. Where that leaves nobody, the last known leader is
elected when it returns.

That one, and one that was neither in sync nor eligible (`unclean.leader.election.enable`, or an
administrator's wish), may lack acknowledged records: it is then the whole in-sync set and marked as
recovering (KIP-704), which is how everybody can tell. Of several such replicas the one that has the
most leads. What they have only they can tell, so they are asked first (`unclean`),
unless `scriba.unclean.wait.ms` is 0.

A cluster without eligible replicas never empties an in-sync set: the last replica stays in it, so
that it is known who may come back.

A reassignment (KIP-455) is done by the first change after which every replica that is to stay is in
sync: the others go in the same record, out of the in-sync set as well, and a leader among them
gives way. Whenever replicas go a new leader epoch begins, so that no fetch of theirs counts.

Observers (`scriba.replica.placement`) are in no in-sync set, and eligible for nothing: whatever
changes a partition takes them out. One exception keeps a partition from being lost: where those
that are trusted have all become observers, because their brokers came back in another rack or the
placement was changed while nobody led, they stay until a voter is in sync. A reassignment that adds
observers is done when the leader says, by asking for the in-sync set that is there, that they have
caught up.
"""

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from scriba.controller.image import (
    ELIGIBLE_VERSION,
    NO_CHANGE,
    NO_LEADER,
    RECOVERING,
    TOPIC,
    PartitionImage,
    TopicImage,
)
from scriba.controller.indexes import Chosen
from scriba.controller.plans import BARRIER, Step
from scriba.controller.state import Result, State, fail
from scriba.errors import ErrorCode
from scriba.instant import Instant
from scriba.settings.placement import PLACEMENT, replica_placement
from scriba.settings.topic import MAX_INT, TopicSettings
from scriba.wire.messages.admin import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from scriba.wire.messages.stored import PartitionChangeRecord
from scriba.wire.schema import Message

AT_ONCE: Final = 500
CHECKED_AT_ONCE: Final = 128
"""Partitions that are looked at in one go: some milliseconds."""

PREFERRED_ELECTION: Final = 0
UNCLEAN_ELECTION: Final = 1

MIN_ISR: Final = "min.insync.replicas"
UNCLEAN: Final = "unclean.leader.election.enable"


class Election(enum.Enum):
    PREFERRED = "the first replica, if it is in sync"
    ONLINE = "any in-sync or eligible replica, the present leader first"
    UNCLEAN = "any replica that is alive, if no in-sync or eligible one is"


class End(NamedTuple):
    """How much a replica has: greater is more."""

    epoch: int
    """The newest leader epoch in its log, -1 for an empty one."""
    offset: int

    def __str__(self) -> str:
        return f"{self.offset} (epoch {self.epoch})"


class Rules(NamedTuple):
    """What a topic's settings and the cluster's features say about elections."""

    eligible: bool
    """Whether there are eligible leader replicas."""
    min_isr: int
    unclean: bool
    asks: bool = False
    """Whether replicas are asked what they have before one of them is elected uncleanly."""
    voters: int = MAX_INT
    """As many replicas of a partition vote at most, by its placement: more are not waited for."""
    observing: frozenset[int] = frozenset()
    """Brokers whose replicas of this topic observe."""

    @property
    def election(self) -> Election:
        return Election.UNCLEAN if self.unclean and not self.asks else Election.ONLINE


def rules(state: State, topic: str, own: Mapping[str, str] | None = None) -> Rules:
    """The rules of a topic, or what they would be with these settings of its own."""
    settings, own = state.settings, state.image.config(TOPIC, topic) if own is None else own
    table = TopicSettings.table
    placement = replica_placement(own.get(PLACEMENT))
    return Rules(
        bool(state.image.features.get(ELIGIBLE_VERSION)),
        table[MIN_ISR].parse(own[MIN_ISR]) if MIN_ISR in own else settings.min_insync_replicas,
        table[UNCLEAN].parse(own[UNCLEAN])
        if UNCLEAN in own
        else settings.unclean_leader_election_enable,
        settings.scriba_unclean_wait_ms > 0,
        MAX_INT if placement is None else placement.voter_count,
        state.image.observing(placement),
    )


class _Standing(NamedTuple):
    """Who may lead, and who does."""

    leader: int
    isr: tuple[int, ...]
    eligible: tuple[int, ...]
    unclean: bool


def change(
    topic_id: bytes,
    index: int,
    partition: PartitionImage,
    acceptable: Callable[[int], bool],
    rules: Rules,
    *,
    election: Election | None = None,
    isr: tuple[int, ...] | None = None,
    untrusted: int = NO_LEADER,
    leader_recovery_state: int | None = None,
    placed: PartitionImage | None = None,
    ends: Mapping[int, End] | None = None,
    arrived: bool = False,
) -> PartitionChangeRecord | None:
    """The record that brings the partition to the wanted state, or None when it is there.

    `untrusted` is a broker that may have lost records in a crash. The election is that of the rules
    where no other is given. `placed` is the partition with the replicas, directories and
    reassignment that it is to have. `ends` is what replicas answered that were asked for an unclean
    election: nobody else is elected so. None where nobody was asked. `arrived` says that observers
    that are added have caught up.
    """
    placed = partition if placed is None else placed
    wanted = partition.isr if isr is None else isr
    placed = _completed(placed, wanted, rules, arrived)
    wanted = tuple(broker for broker in wanted if broker in placed.replicas)
    wanted = tuple(broker for broker in wanted if broker not in rules.observing) or wanted
    now = _elect(placed, wanted, untrusted, acceptable, rules, election or rules.election, ends)
    completed = _completed(placed, now.isr, rules, arrived)
    if completed is not placed:
        # Whoever was elected is the one replica that is to stay: an empty in-sync set hid that.
        placed, now = completed, now._replace(eligible=())
    record = PartitionChangeRecord(topic_id=topic_id, partition_id=index)
    _set_replicas(record, partition, placed)
    if now.leader != partition.leader or not {*partition.replicas} <= {*placed.replicas}:
        record.leader = now.leader
    if now.unclean:
        leader_recovery_state = RECOVERING
    if now.isr != partition.isr:
        record.isr = list(now.isr)
    if now.eligible != partition.eligible_leader_replicas:
        record.eligible_leader_replicas = list(now.eligible)
    last_known = _last_known(placed, now, rules)
    if last_known != partition.last_known_elr:
        record.last_known_elr = list(last_known)
    if leader_recovery_state not in (None, partition.leader_recovery_state):
        record.leader_recovery_state = leader_recovery_state
    return None if _is_empty(record) else record


def _completed(
    partition: PartitionImage, isr: tuple[int, ...], rules: Rules, arrived: bool
) -> PartitionImage:
    """The partition without what its reassignment removes, once all that stay are in sync, and
    those that observe have arrived."""
    target = partition.target
    if not partition.is_reassigning or not {*target} <= {*isr, *rules.observing}:
        return partition
    if not arrived and not rules.observing.isdisjoint({*target} & {*partition.adding_replicas}):
        return partition
    return partition._replace(
        replicas=target,
        directories=tuple(map(partition.directory, target)),
        adding_replicas=(),
        removing_replicas=(),
    )


def _set_replicas(
    record: PartitionChangeRecord, before: PartitionImage, after: PartitionImage
) -> None:
    if after.replicas != before.replicas:
        record.replicas = list(after.replicas)
    if after.directories != before.directories:
        record.directories = list(after.directories)
    if after.adding_replicas != before.adding_replicas:
        record.adding_replicas = list(after.adding_replicas)
    if after.removing_replicas != before.removing_replicas:
        record.removing_replicas = list(after.removing_replicas)


def _is_empty(record: PartitionChangeRecord) -> bool:
    return (
        record.leader == NO_CHANGE
        and record.replicas is None
        and record.adding_replicas is None
        and record.removing_replicas is None
        and record.isr is None
        and record.eligible_leader_replicas is None
        and record.last_known_elr is None
        and record.leader_recovery_state < 0
        and record.directories is None
    )


def _elect(
    partition: PartitionImage,
    isr: tuple[int, ...],
    untrusted: int,
    acceptable: Callable[[int], bool],
    rules: Rules,
    election: Election,
    ends: Mapping[int, End] | None,
) -> _Standing:
    eligible = _eligible(partition, isr, untrusted, rules)
    candidates = [partition.leader, *partition.replicas]
    if election is Election.PREFERRED:
        candidates.insert(0, partition.replicas[0])
    for broker in candidates:
        if broker in (isr or eligible) and acceptable(broker):
            if not isr:
                isr = (broker,)
            return _Standing(broker, isr, _eligible(partition, isr, untrusted, rules), False)
    if not isr and not eligible and rules.eligible and len(partition.last_known_elr) == 1:
        last = partition.last_known_elr[0]
        votes = last in partition.replicas and last not in rules.observing
        if votes and acceptable(last):
            return _Standing(last, (last,), (), True)
    if election is Election.UNCLEAN:
        for broker in by_what_they_have(partition, ends):
            if acceptable(broker) and broker not in rules.observing:
                return _Standing(broker, (broker,), (), True)
    if not isr and not rules.eligible:
        isr = partition.isr
    return _Standing(NO_LEADER, isr, eligible, False)


def by_what_they_have(partition: PartitionImage, ends: Mapping[int, End] | None) -> list[int]:
    """The replicas for an unclean election, the best one first: of those that answered the one with
    the most, else in their order. One that is being added comes last, with next to nothing yet.

    A log has no record of an epoch that nobody led, so a replica that names that one told the epoch
    that it follows and not that of its log (Apache Kafka's do): then offsets alone are compared.
    """
    order = [*partition.original, *partition.adding_replicas]
    if ends is None:
        return order
    told = [broker for broker in order if broker in ends]
    by_epoch = all(ends[broker].epoch < partition.leader_epoch for broker in told)
    most = {each: (ends[each].epoch if by_epoch else 0, ends[each].offset) for each in told}
    return sorted(told, key=most.__getitem__, reverse=True)


def _eligible(
    partition: PartitionImage, isr: tuple[int, ...], untrusted: int, rules: Rules
) -> tuple[int, ...]:
    """Who may lead beside the in-sync set. None once that is large enough to move on alone."""
    if not rules.eligible or len(isr) >= min(rules.min_isr, rules.voters, len(partition.replicas)):
        return ()
    trusted = (*partition.isr, *partition.eligible_leader_replicas)
    found = tuple(
        broker
        for broker in partition.replicas
        if broker in trusted and broker not in isr and broker != untrusted
    )
    voters = tuple(broker for broker in found if broker not in rules.observing)
    return voters if voters or isr else found


def _last_known(partition: PartitionImage, now: _Standing, rules: Rules) -> tuple[int, ...]:
    """Who led last, from then on until somebody does again.

    Also while an in-sync or eligible replica is awaited: that one may turn out to have restarted
    after a crash. Where it was never written down, the first that was in sync is the best guess.
    """
    if not rules.eligible or now.leader != NO_LEADER:
        return ()
    if partition.leader != NO_LEADER:
        known: tuple[int, ...] = (partition.leader,)
    else:
        known = partition.last_known_elr or (() if now.isr else partition.isr[:1])
    return tuple(broker for broker in known if broker in partition.replicas)


def acceptor(
    state: State,
    partition: PartitionImage,
    *,
    without: Collection[int] = (),
    including: int = NO_LEADER,
) -> Callable[[int], bool]:
    """Whether a broker may lead: active, and its replica's directory online.

    `without` and `including` speak of brokers whose fencing or unfencing is in the making, when
    the image does not show it yet.
    """

    def acceptable(broker_id: int) -> bool:
        if broker_id in without:
            return False
        broker = state.image.brokers.get(broker_id)
        if broker is None or not (broker.active or broker_id == including):
            return False
        return broker.holds(partition.directory(broker_id))

    return acceptable


def update_leaders(
    state: State,
    chosen: Iterable[Chosen],
    *,
    without: Collection[int] = (),
    including: int = NO_LEADER,
    untrusted: int = NO_LEADER,
) -> Iterator[Message]:
    """Takes brokers out of the given partitions, or lets `including` lead those it may.

    `untrusted` goes out as well, and is not eligible afterwards.
    """
    known: dict[str, Rules] = {}
    gone = {*without, untrusted}
    for topic, index, partition in chosen:
        if topic.name not in known:
            known[topic.name] = rules(state, topic.name)
        record = change(
            topic.id,
            index,
            partition,
            acceptor(state, partition, without=gone, including=including),
            known[topic.name],
            isr=tuple(broker for broker in partition.isr if broker not in gone),
            untrusted=untrusted,
        )
        if record is not None:
            yield record
        elif partition.leader == NO_LEADER:
            wish_unclean(state, topic.id, index, known[topic.name])


def wish_unclean(state: State, topic_id: bytes, index: int, rules: Rules) -> None:
    """Notes a partition that nobody may lead, where replicas are to be asked what they have."""
    if rules.unclean and rules.asks:
        state.unclean_due[topic_id, index] = None


def reckon_eligible(state: State, topic: str | None, min_isr: int) -> Iterator[Message]:
    """What changes with `min.insync.replicas` of a topic, or of all that do not set it (None).

    An in-sync set that has become large enough moves on alone, so nobody beside it is eligible any
    longer; this must stand in one batch with the setting.
    """
    if not state.image.features.get(ELIGIBLE_VERSION):
        return
    known: dict[str, Rules | None] = {}
    for each, index, partition in state.partitions.with_eligible(state.image):
        name = each.name
        if topic is not None and name != topic:
            continue
        if name not in known:
            own = topic is None and MIN_ISR in state.image.config(TOPIC, name)
            known[name] = None if own else rules(state, name)._replace(min_isr=min_isr)
        of_topic = known[name]
        if of_topic is not None:
            record = change(each.id, index, partition, acceptor(state, partition), of_topic)
            if record is not None:
                yield record


def observe(state: State, topic: TopicImage, own: Mapping[str, str]) -> Iterator[Message]:
    """What changes with the placement of a topic, which has these settings afterwards.

    Observers leave the in-sync set, and stand behind the voters, the first of which is to lead.
    """
    of_topic = rules(state, topic.name, own)
    for index in sorted(topic.partitions):
        record = _observed(state, topic, index, of_topic)
        if record is not None:
            yield record


def check_observers(state: State, topic: TopicImage, own: Mapping[str, str]) -> Iterator[Step]:
    """Looks at what `observe` will say, a slice at a time: one partition that cannot have it
    refuses it for all of them, and nothing may be written before that is known."""
    of_topic = rules(state, topic.name, own)
    for number, index in enumerate(sorted(topic.partitions), 1):
        _observed(state, topic, index, of_topic)
        if number % CHECKED_AT_ONCE == 0:
            yield BARRIER


def _observed(
    state: State, topic: TopicImage, index: int, of_topic: Rules
) -> PartitionChangeRecord | None:
    """KafkaError where the partition would have nobody to lead it."""
    partition = topic.partitions[index]
    replicas = sorted(partition.replicas, key=lambda broker: broker in of_topic.observing)
    placed = partition._replace(
        replicas=tuple(replicas), directories=tuple(map(partition.directory, replicas))
    )
    led = partition.leader != NO_LEADER
    trusted = partition.isr if led else partition.replicas
    if of_topic.observing.issuperset(trusted):
        fail(
            ErrorCode.INVALID_CONFIG,
            f"{topic.name}-{index} would have no voter{' in sync' if led else ''}: brokers "
            f"{list(trusted)} would observe; have replicas elsewhere first, and wait for them",
        )
    record = change(topic.id, index, partition, acceptor(state, placed), of_topic, placed=placed)
    if record is not None and record.leader == NO_LEADER != partition.leader:
        fail(
            ErrorCode.INVALID_CONFIG,
            f"{topic.name}-{index} would have no leader; wait until a voter is in sync",
        )
    return record


def without_eligible(state: State) -> Iterator[Message]:
    """What turns the feature off: an empty in-sync set gets those back who may lead."""
    seen: set[tuple[bytes, int]] = set()
    index = state.partitions
    for chosen in (index.with_eligible(state.image), index.leaderless(state.image)):
        for topic, at, partition in chosen:
            eligible, last = partition.eligible_leader_replicas, partition.last_known_elr
            if (topic.id, at) in seen or not (eligible or last):
                continue
            seen.add((topic.id, at))
            record = PartitionChangeRecord(topic_id=topic.id, partition_id=at)
            if not partition.isr:
                record.isr = list(eligible or last)
            if eligible:
                record.eligible_leader_replicas = []
            if last:
                record.last_known_elr = []
            yield record


def elect_leaders(state: State, request: ElectLeadersRequest, version: int, now: Instant) -> Result:
    if request.election_type not in (PREFERRED_ELECTION, UNCLEAN_ELECTION):
        fail(
            ErrorCode.INVALID_REQUEST,
            f"election type {request.election_type} is neither {PREFERRED_ELECTION} (preferred) "
            f"nor {UNCLEAN_ELECTION} (unclean)",
        )
    response = ElectLeadersResponse()
    return Result(_elections(state, request, response), response, atomic=False)


def _elections(
    state: State, request: ElectLeadersRequest, response: ElectLeadersResponse
) -> Iterator[Step]:
    every = request.topic_partitions is None
    asked: Iterable[tuple[str, list[int]]]
    if request.topic_partitions is None:
        topics = list(state.image.topics_by_name.values())
        asked = ((topic.name, list(topic.partitions)) for topic in topics)
    else:
        asked = ((topic.topic, topic.partitions) for topic in request.topic_partitions)
    decided: set[tuple[str, int]] = set()
    for name, indexes in asked:
        results = ReplicaElectionResult(topic=name)
        response.replica_election_results.append(results)
        for index in indexes:
            if (name, index) in decided:
                continue  # it has its answer; the image does not show yet what it came to
            decided.add((name, index))
            if len(decided) % AT_ONCE == 0:
                yield BARRIER  # most of them need no election
            code, message, record = _election(state, name, index, request.election_type)
            if record is not None:
                yield record
            if every and code is ErrorCode.ELECTION_NOT_NEEDED:
                continue
            results.partition_result.append(
                PartitionResult(partition_id=index, error_code=code, error_message=message)
            )


def _election(
    state: State, name: str, index: int, kind: int
) -> tuple[ErrorCode, str | None, PartitionChangeRecord | None]:
    topic = state.image.topics_by_name.get(name)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}", None
    partition = topic.partitions.get(index)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{index}", None
    preferred = kind == PREFERRED_ELECTION
    of_topic = rules(state, name)
    told = state.ends.pop((topic.id, index), None)
    ends = None
    if of_topic.asks:
        fits = told is not None and told.leader_epoch == partition.leader_epoch
        ends = told.by_broker if told is not None and fits else {}
    if partition.leader == partition.replicas[0] if preferred else partition.leader != NO_LEADER:
        return ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.ELECTION_NOT_NEEDED.text, None
    record = change(
        topic.id,
        index,
        partition,
        acceptor(state, partition),
        of_topic,
        election=Election.PREFERRED if preferred else Election.UNCLEAN,
        ends=ends,
    )
    if record is not None:
        lossy = ends is not None and record.leader_recovery_state == RECOVERING
        text = lost_by(partition, record.leader, ends) if ends is not None and lossy else None
        return ErrorCode.NONE, text, record
    if preferred:
        code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        return code, code.text, None
    code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    wait_ms = state.settings.scriba_unclean_wait_ms
    silent = f"no replica that lives told within {wait_ms} ms what it has"
    return code, silent if ends == {} else code.text, None


def lost_by(partition: PartitionImage, leader: int, ends: Mapping[int, End]) -> str:
    """What an unclean election loses, by offset."""
    end = ends.get(leader)
    if end is None:
        return f"broker {leader} leads, and was not asked what it has"
    text = f"broker {leader} leads with what it has up to offset {end}"
    for broker in partition.replicas:
        other = ends.get(broker)
        if broker != leader and other is not None:
            text += f"; broker {broker} had up to {other}"
            if other.offset > end.offset:
                text += f", offsets {end.offset} to {other.offset - 1} of it go"
    silent = [str(broker) for broker in partition.replicas if broker not in ends]
    if silent:
        which, who = ("broker", "it") if len(silent) == 1 else ("brokers", "they")
        text += (
            f"; {which} {', '.join(silent)} did not answer: what only {who} had from offset "
            f"{end.offset} on is lost"
        )
    return text
