"""Brokers come, stay in contact and go: registration, heartbeats, fencing, shutdown.

A broker is FENCED (registered, takes no part), UNFENCED, or in CONTROLLED_SHUTDOWN (its leaderships
move away first). The heartbeat asks for a state, the answer says which it is in. A broker that is
silent for the session timeout is fenced. One that registers under a new incarnation loses what the
old one led until it is unfenced, for nobody knows what the crash left of it.
"""

import enum
from collections.abc import Iterator

from scriba.controller.elections import leads_any, partitions, update_leaders
from scriba.controller.image import METADATA_VERSION, NO_LEADER, BrokerImage
from scriba.controller.state import Result, Session, State, fail
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
    if known and not same and state.session_is_valid(known, now.mono_ms):
        fail(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"a live broker holds the id {known.id}; give this one another node.id or, if it has "
            f"restarted, try again after {state.settings.broker_session_timeout_ms} ms",
        )
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
    return Result(_registration(state, record, same), response, atomic=False)


def _registration(state: State, record: RegisterBrokerRecord, same: bool) -> Iterator[Message]:
    if not same:
        yield from _without(state, record.broker_id)
    yield record


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
    session.metadata_offset = request.current_metadata_offset
    before, after = _next_standing(state, broker, session, request)
    response = BrokerHeartbeatResponse(
        is_caught_up=request.current_metadata_offset >= broker.registered_at,
        is_fenced=after in (Standing.FENCED, Standing.SHUTDOWN_NOW),
        should_shut_down=after is Standing.SHUTDOWN_NOW,
    )
    if after is before and not _directories_changed(broker, request):
        return Result([], response)
    return Result(_heartbeat(state, broker, before, after, request), response, atomic=False)


def _directories_changed(broker: BrokerImage, request: BrokerHeartbeatRequest) -> bool:
    cordoned = request.cordoned_log_dirs
    return not set(broker.directories).isdisjoint(request.offline_log_dirs) or (
        cordoned is not None and set(cordoned) != set(broker.cordoned_directories)
    )


def _heartbeat(
    state: State,
    broker: BrokerImage,
    before: Standing,
    after: Standing,
    request: BrokerHeartbeatRequest,
) -> Iterator[Message]:
    if after is not before:
        match after:
            case Standing.FENCED | Standing.SHUTDOWN_NOW:
                yield from fence(state, broker)
            case Standing.UNFENCED:
                yield _change(broker, fenced=UNFENCE)
                leaderless = (p for p in partitions(state) if p[2].leader == NO_LEADER)
                yield from update_leaders(state, leaderless, including=broker.id)
            case Standing.CONTROLLED_SHUTDOWN:
                yield from _controlled_shutdown(state, broker)
    offline = set(request.offline_log_dirs).intersection(broker.directories)
    if offline:
        lost = (
            p
            for p in partitions(state)
            if broker.id in p[2].isr and p[2].directory(broker.id) in offline
        )
        yield from update_leaders(state, lost, without=broker.id)
        yield _change(broker, log_dirs=[d for d in broker.directories if d not in offline])
    cordoned = request.cordoned_log_dirs
    if cordoned is not None and set(cordoned) != set(broker.cordoned_directories):
        yield _change(broker, cordoned_log_dirs=list(cordoned))


def _controlled_shutdown(state: State, broker: BrokerImage) -> Iterator[Message]:
    offset = state.image.end_offset
    yield _change(broker, in_controlled_shutdown=IN_CONTROLLED_SHUTDOWN)
    for record in _without(state, broker.id):
        offset += 1
        yield record
    # The others must have read this far, and so fetch from the new leaders, before it may leave.
    state.sessions[broker.id].controlled_shutdown_offset = offset


def _next_standing(
    state: State, broker: BrokerImage, session: Session, request: BrokerHeartbeatRequest
) -> tuple[Standing, Standing]:
    if broker.in_controlled_shutdown and not broker.fenced:
        before = Standing.CONTROLLED_SHUTDOWN
        if leads_any(state, broker.id) or not _others_have_seen(state, broker.id, session):
            return before, before
        return before, Standing.SHUTDOWN_NOW
    if broker.fenced:
        before = Standing.FENCED
        if request.want_shut_down:
            return before, Standing.SHUTDOWN_NOW
        caught_up = request.current_metadata_offset >= broker.registered_at
        return before, Standing.UNFENCED if caught_up and not request.want_fence else before
    before = Standing.UNFENCED
    if request.want_shut_down:
        moving = not request.want_fence and leads_any(state, broker.id)
        return before, Standing.CONTROLLED_SHUTDOWN if moving else Standing.SHUTDOWN_NOW
    return before, Standing.FENCED if request.want_fence else before


def _others_have_seen(state: State, broker_id: int, leaving: Session) -> bool:
    return all(
        session.metadata_offset >= leaving.controlled_shutdown_offset
        for other, session in state.sessions.items()
        if other != broker_id and state.active(other)
    )


def fence(state: State, broker: BrokerImage) -> Iterator[Message]:
    """Takes the broker out of everything it is part of, then marks it."""
    yield from _without(state, broker.id)
    if not broker.fenced:
        yield _change(broker, fenced=FENCE)


def _without(state: State, broker_id: int) -> Iterator[Message]:
    inside = (p for p in partitions(state) if broker_id in p[2].isr)
    yield from update_leaders(state, inside, without=broker_id)


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
        yield from _without(state, broker.id)
        yield UnregisterBrokerRecord(broker_id=broker.id, broker_epoch=broker.epoch)

    return Result(records(), UnregisterBrokerResponse(), atomic=False)


def stale_broker(state: State, now: Instant) -> BrokerImage | None:
    """The unfenced broker that has been silent longest, if that is too long.

    Not all of them: what its fencing changes must be in the image when the next one is judged.
    """
    timeout = state.settings.broker_session_timeout_ms
    worst: BrokerImage | None = None
    oldest = now.mono_ms - timeout
    for broker in state.image.brokers.values():
        session = state.sessions.get(broker.id)
        if session and not broker.fenced and session.last_contact <= oldest:
            worst, oldest = broker, session.last_contact
    return worst
