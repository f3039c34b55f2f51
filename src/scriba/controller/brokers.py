"""Brokers come, stay in contact and go: registration, heartbeats, fencing, shutdown.

A broker is FENCED (registered, takes no part), UNFENCED, or in CONTROLLED_SHUTDOWN (its leaderships
move away first). The heartbeat asks for a state, the answer says which it is in. A broker that is
silent for the session timeout is fenced, one that is proven dead at once.

A broker that registers under a new incarnation loses what the old one led until it is unfenced. It
names the epoch up to which it has lost nothing: it shut down cleanly under that, or its process was
killed and its machine ran on. Where that is not the one the cluster knows, what the crash left of
its logs is unknown, and it is no longer eligible to lead anything (KIP-966); the same holds for
replicas in log directories that it came back without.
"""

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence

from scriba.controller import levels
from scriba.controller.image import ELIGIBLE_VERSION, METADATA_VERSION, BrokerImage
from scriba.controller.partitions.balance_runs import joined
from scriba.controller.partitions.elections import update_leaders
from scriba.controller.plans import BARRIER, Step
from scriba.controller.state import BrokerNews, Result, Session, State, fail
from scriba.errors import ErrorCode
from scriba.instant import Instant
from scriba.wire.messages.brokers import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from scriba.wire.messages.stored import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ControllerEndpoint,
    ControllerFeature,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnregisterBrokerRecord,
)
from scriba.wire.schema import Message

FENCE = 1
UNFENCE = -1
IN_CONTROLLED_SHUTDOWN = 1


SILENT = "silent: no heartbeat came for broker.session.timeout.ms"
REFUSED = "refused: its connection ended, and its address refuses"
STOPPED = "stopped: it shut down in good order"
ASKED = "by its own wish: it has no usable log directory, or asked for it"
RESTARTED = "restarted: it has registered anew"
CAUGHT_UP = "unfenced: it is in contact, and has read the metadata"


class Standing(enum.Enum):
    FENCED = enum.auto()
    UNFENCED = enum.auto()
    CONTROLLED_SHUTDOWN = enum.auto()
    SHUTDOWN_NOW = enum.auto()


def register_broker(
    state: State, request: BrokerRegistrationRequest, version: int, now: Instant
) -> Result:
    if request.cluster_id != state.cluster_id:
        fail(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"broker {request.broker_id} belongs to cluster {request.cluster_id}, this is cluster "
            f"{state.cluster_id}; check cluster.id in its meta.properties",
        )
    known = state.image.brokers.get(request.broker_id)
    same = known is not None and known.incarnation_id == request.incarnation_id
    if known and not same:
        _refuse_living(state, known, request, now)
    if request.is_migrating_zk_broker:
        fail(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            f"broker {request.broker_id} comes from a ZooKeeper cluster, which cannot be joined",
        )
    _check_directories(state, request)
    _check_features(state, request)
    record = RegisterBrokerRecord(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=state.image.end_offset,
        end_points=[
            BrokerEndpoint(
                name=x.name, host=x.host, port=x.port, security_protocol=x.security_protocol
            )
            for x in request.listeners
        ],
        features=[
            BrokerFeature(
                name=x.name,
                min_supported_version=x.min_supported_version,
                max_supported_version=x.max_supported_version,
            )
            for x in request.features
        ],
        rack=request.rack,
        log_dirs=list(request.log_dirs),
    )
    if known and same:
        record.broker_epoch = known.epoch
        record.fenced = known.fenced
        record.in_controlled_shutdown = known.in_controlled_shutdown
    else:
        state.sessions.pop(request.broker_id, None)
    response = BrokerRegistrationResponse(broker_epoch=record.broker_epoch)
    clean = known is not None and known.epoch == request.previous_broker_epoch
    return Result(_registration(state, record, same, clean), response, atomic=False)


def _refuse_living(
    state: State, known: BrokerImage, request: BrokerRegistrationRequest, now: Instant
) -> None:
    """Only one broker may have an id; a new incarnation of it need not wait for a dead one.

    A process holds its log directories for as long as it lives. So whoever registers with the same
    directories comes after the other, if that is not in contact any more.
    """
    if not state.session_is_valid(known, now.mono_ms):
        return
    same_directories = not set(known.directories).isdisjoint(request.log_dirs)
    if same_directories and not state.sessions[known.id].in_contact:
        return
    fail(
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        f"a live broker holds the id {known.id}; give this one another node.id or, if it has "
        f"restarted, try again after {state.settings.broker_session_timeout_ms} ms",
    )


def _registration(
    state: State, record: RegisterBrokerRecord, same: bool, clean: bool
) -> Iterator[Step]:
    """A new incarnation is out of everything first, and eligible for nothing after a crash."""
    broker_id = record.broker_id
    if not same and not clean and state.image.features.get(ELIGIBLE_VERSION):
        trusted = state.partitions.trusted(state.image, broker_id)
        yield from update_leaders(state, trusted, untrusted=broker_id)
    elif not same:
        if state.image.features.get(ELIGIBLE_VERSION) and broker_id in state.image.brokers:
            yield from _missing(state, broker_id, record.log_dirs)
        yield from _without(state, (broker_id,))
    begun = joined(state, broker_id)
    yield record
    yield from begun


def _missing(state: State, broker_id: int, directories: Collection[bytes]) -> Iterator[Step]:
    """Strikes what lies in directories that a broker came back without.

    It begins such replicas anew, and empty ones must not lead.
    """
    known = state.image.brokers[broker_id].directories
    if set(known).issubset(directories):
        return
    gone = (
        each
        for each in state.partitions.trusted(state.image, broker_id)
        if each[2].directory(broker_id) not in directories
    )
    yield from update_leaders(state, gone, untrusted=broker_id)
    yield BARRIER  # it may have been in sync with these


def _check_directories(state: State, request: BrokerRegistrationRequest) -> None:
    def refuse(why: str) -> None:
        fail(ErrorCode.INVALID_REGISTRATION, f"broker {request.broker_id} {why}")

    if not request.log_dirs:
        refuse("names no log directory; it needs at least one")
    if any(not any(directory[:8]) and directory[8:] < _RESERVED for directory in request.log_dirs):
        refuse(
            "gives a log directory one of the first 100 ids, which are set aside; take a random one"
        )
    if len(set(request.log_dirs)) != len(request.log_dirs):
        refuse("gives two log directories the same id; do not copy meta.properties")
    for broker in state.image.brokers.values():
        if broker.id != request.broker_id and not set(broker.directories).isdisjoint(
            request.log_dirs
        ):
            refuse(f"shares a log directory with broker {broker.id}; do not copy meta.properties")


_RESERVED = (100).to_bytes(8, "big")
"""The first hundred ids stand for states of a directory, not for directories."""


def _check_features(state: State, request: BrokerRegistrationRequest) -> None:
    """A broker that cannot follow what the cluster has agreed on must stay outside."""
    ranges = {x.name: (x.min_supported_version, x.max_supported_version) for x in request.features}
    if METADATA_VERSION not in ranges:
        fail(
            ErrorCode.INVALID_REGISTRATION,
            f"broker {request.broker_id} does not say which {METADATA_VERSION} it supports",
        )
    for name in dict.fromkeys([*ranges, *state.image.features]):
        level = state.image.features.get(name, 0)
        low, high = ranges.get(name, (0, 0))
        if not low <= level <= high:
            fail(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the cluster runs {name} at level {level}, broker {request.broker_id} supports "
                f"{low} to {high}; start a release that supports it",
            )


def register_controller(
    state: State, request: ControllerRegistrationRequest, version: int, now: Instant
) -> Result:
    record = RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        end_points=[
            ControllerEndpoint(
                name=x.name, host=x.host, port=x.port, security_protocol=x.security_protocol
            )
            for x in request.listeners
        ],
        features=[
            ControllerFeature(
                name=x.name,
                min_supported_version=x.min_supported_version,
                max_supported_version=x.max_supported_version,
            )
            for x in request.features
        ],
    )
    return Result([record], ControllerRegistrationResponse())


def heartbeat(state: State, request: BrokerHeartbeatRequest, version: int, now: Instant) -> Result:
    broker = state.check_broker_epoch(request.broker_id, request.broker_epoch)
    session = state.sessions.setdefault(broker.id, Session(now.mono_ms))
    session.last_contact = now.mono_ms
    session.in_contact = True
    session.metadata_offset = max(session.metadata_offset, request.current_metadata_offset)
    before, after = _next_standing(state, broker, session, request)
    response = BrokerHeartbeatResponse(
        is_caught_up=request.current_metadata_offset >= broker.registered_at,
        is_fenced=after in (Standing.FENCED, Standing.SHUTDOWN_NOW),
        should_shut_down=after is Standing.SHUTDOWN_NOW,
    )
    if (
        after is before
        and not _directories_changed(state, broker, request)
        and not (after is Standing.CONTROLLED_SHUTDOWN and state.partitions.leads(broker.id))
    ):
        return Result([], response)
    return Result(_heartbeat(state, broker, before, after, request), response, atomic=False)


def _directories_changed(
    state: State, broker: BrokerImage, request: BrokerHeartbeatRequest
) -> bool:
    offline = set(broker.directories).intersection(request.offline_log_dirs)
    return bool(offline and len(offline) < len(broker.directories)) or _cordons_changed(
        state, broker, request
    )


def _cordons_changed(state: State, broker: BrokerImage, request: BrokerHeartbeatRequest) -> bool:
    cordoned = request.cordoned_log_dirs
    return (
        cordoned is not None
        and set(cordoned) != set(broker.cordoned_directories)
        and state.image.metadata_version >= levels.CORDONS
    )


def _heartbeat(
    state: State,
    broker: BrokerImage,
    before: Standing,
    after: Standing,
    request: BrokerHeartbeatRequest,
) -> Iterator[Step]:
    """What it lost comes first: nobody is elected by what a failed disk had."""
    yield from _offline(state, broker, request.offline_log_dirs)
    if after is Standing.CONTROLLED_SHUTDOWN:
        # Again where it still leads: another controller may have stopped half-way.
        yield from _controlled_shutdown(state, broker)
    elif after is not before:
        match after:
            case Standing.FENCED | Standing.SHUTDOWN_NOW:
                stops = after is Standing.SHUTDOWN_NOW
                yield from fence(state, (broker,), STOPPED if stops else ASKED)
            case Standing.UNFENCED:
                yield _change(broker, fenced=UNFENCE)
                awaiting = state.partitions.awaiting(state.image, broker.id)
                yield from update_leaders(state, awaiting, including=broker.id)
    if _cordons_changed(state, broker, request):
        yield BARRIER
        yield _change(broker, cordoned_log_dirs=list(request.cordoned_log_dirs or ()))


def _offline(state: State, broker: BrokerImage, failed: Collection[bytes]) -> Iterator[Step]:
    """What a failed device had may be gone, or come back older than it was: nobody leads by it."""
    offline = set(failed).intersection(broker.directories)
    if offline and len(offline) < len(broker.directories):
        lost = (
            p
            for p in state.partitions.trusted(state.image, broker.id)
            if p[2].directory(broker.id) in offline
        )
        yield from update_leaders(state, lost, untrusted=broker.id)
        yield _change(broker, log_dirs=[d for d in broker.directories if d not in offline])
        yield BARRIER


def _controlled_shutdown(state: State, broker: BrokerImage) -> Iterator[Message]:
    offset = state.image.last_offset
    if not broker.in_controlled_shutdown:
        offset += 1
        yield _change(broker, in_controlled_shutdown=IN_CONTROLLED_SHUTDOWN)
    for record in _without(state, (broker.id,)):
        offset += 1
        yield record
    # The others must have read this far, and so fetch from the new leaders, before it may leave.
    state.sessions[broker.id].controlled_shutdown_offset = offset


def _next_standing(
    state: State, broker: BrokerImage, session: Session, request: BrokerHeartbeatRequest
) -> tuple[Standing, Standing]:
    # A broker without a directory can do nothing, and no record can say that it has none.
    want_fence = request.want_fence or set(broker.directories).issubset(request.offline_log_dirs)
    if broker.in_controlled_shutdown and not broker.fenced:
        before = Standing.CONTROLLED_SHUTDOWN
        if state.partitions.leads(broker.id) or not _others_have_seen(state, broker.id, session):
            return before, before
        return before, Standing.SHUTDOWN_NOW
    if broker.fenced:
        before = Standing.FENCED
        if request.want_shut_down:
            return before, Standing.SHUTDOWN_NOW
        caught_up = request.current_metadata_offset >= broker.registered_at
        return before, Standing.UNFENCED if caught_up and not want_fence else before
    before = Standing.UNFENCED
    if request.want_shut_down:
        moving = not want_fence and state.partitions.leads(broker.id)
        return before, Standing.CONTROLLED_SHUTDOWN if moving else Standing.SHUTDOWN_NOW
    return before, Standing.FENCED if want_fence else before


def _others_have_seen(state: State, broker_id: int, leaving: Session) -> bool:
    return all(
        session.metadata_offset >= leaving.controlled_shutdown_offset
        for other, session in state.sessions.items()
        if other != broker_id and state.active(other)
    )


def fence(state: State, brokers: Sequence[BrokerImage], cause: str) -> Iterator[Message]:
    """Takes brokers out of everything they are part of, then marks them.

    All at once: a partition that loses several replicas gets one election among those that stay.
    """
    for broker in brokers:
        state.causes[broker.id] = cause
    yield from _without(state, [broker.id for broker in brokers])
    for broker in brokers:
        if not broker.fenced:
            # Leaders see by it that a follower stops, which had no leadership to hand over first.
            stops = cause == STOPPED and not broker.in_controlled_shutdown
            yield _change(
                broker,
                fenced=FENCE,
                in_controlled_shutdown=IN_CONTROLLED_SHUTDOWN if stops else 0,
            )


def _without(state: State, brokers: Sequence[int]) -> Iterator[Message]:
    inside = state.partitions.in_sync(state.image, brokers)
    yield from update_leaders(state, inside, without=brokers)


def _change(
    broker: BrokerImage,
    *,
    fenced: int = 0,
    in_controlled_shutdown: int = 0,
    log_dirs: list[bytes] | None = None,
    cordoned_log_dirs: list[bytes] | None = None,
) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.id,
        broker_epoch=broker.epoch,
        fenced=fenced,
        in_controlled_shutdown=in_controlled_shutdown,
        log_dirs=log_dirs or [],
        cordoned_log_dirs=cordoned_log_dirs,
    )


def unregister_broker(
    state: State, request: UnregisterBrokerRequest, version: int, now: Instant
) -> Result:
    broker = state.image.brokers.get(request.broker_id)
    if broker is None:
        fail(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            f"there is no broker {request.broker_id} to unregister",
        )

    def records() -> Iterator[Message]:
        trusted = state.partitions.trusted(state.image, broker.id)
        yield from update_leaders(state, trusted, untrusted=broker.id)
        yield UnregisterBrokerRecord(broker_id=broker.id, broker_epoch=broker.epoch)

    return Result(records(), UnregisterBrokerResponse(), atomic=False)


def note_news(state: State, changed: Mapping[int, BrokerImage | None]) -> None:
    """Notes brokers that a change has fenced or unfenced; given is what they were before."""
    for broker_id, before in changed.items():
        cause = state.causes.pop(broker_id, RESTARTED)
        now = state.image.brokers.get(broker_id)
        if now is not None and now.fenced != (before is None or before.fenced):
            told = cause if now.fenced else CAUGHT_UP
            state.news.append(BrokerNews(broker_id, now.fenced, told))


def silent_brokers(state: State, now: Instant) -> list[BrokerImage]:
    """The unfenced brokers that nobody has heard of for the session timeout, or who are dead."""
    return [
        broker
        for broker in state.image.brokers.values()
        if not broker.fenced and not state.session_is_valid(broker, now.mono_ms)
    ]
