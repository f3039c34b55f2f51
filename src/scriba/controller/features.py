"""Feature levels: what this release can do, and what the cluster has agreed to use (KIP-584).

A level is finalised for the whole cluster only when every broker and controller supports it, and is
then a FeatureLevelRecord in the log. Only features that are served are in `SUPPORTED`; a cluster
made by an older release raises the new ones later, by UpdateFeatures, on the data it has.

Who is an eligible leader depends on `min.insync.replicas`, so leaders and the controller must have
the same idea of it. While there are eligible replicas it is therefore a setting of topics or of the
cluster and never of one broker: the cluster's is written down when the feature is turned on.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from scriba.config import Source
from scriba.controller import levels
from scriba.controller.image import (
    BROKER,
    ELIGIBLE_VERSION,
    KRAFT_VERSION,
    METADATA_VERSION,
    ClusterImage,
)
from scriba.controller.partitions.elections import MIN_ISR, without_eligible
from scriba.controller.state import Result, State, fail
from scriba.errors import ErrorCode, KafkaError
from scriba.instant import Instant
from scriba.wire.messages.configs import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from scriba.wire.messages.stored import ConfigRecord, FeatureLevelRecord
from scriba.wire.schema import Message

GROUP_VERSION: Final = "group.version"
"""At 1, groups may use the protocol of KIP-848."""
TRANSACTION_VERSION: Final = "transaction.version"
"""At 1, transactions are stored with tagged fields; at 2, each one has an epoch of its own."""

SUPPORTED: Final[Mapping[str, tuple[int, int]]] = {
    METADATA_VERSION: (levels.OLDEST, levels.NEWEST),
    KRAFT_VERSION: (0, 1),
    GROUP_VERSION: (0, 1),
    TRANSACTION_VERSION: (0, 2),
    ELIGIBLE_VERSION: (0, 1),
}

AT_FIRST: Final[Mapping[str, int]] = {
    METADATA_VERSION: levels.NEWEST,
    GROUP_VERSION: 1,
    TRANSACTION_VERSION: 2,
    ELIGIBLE_VERSION: 1,
}
"""The levels of a new cluster. One that is older keeps its own until somebody raises them."""

UPGRADE: Final = 1
SAFE_DOWNGRADE: Final = 2
UNSAFE_DOWNGRADE: Final = 3


def bootstrap(state: State) -> list[Message]:
    """The first records of a new cluster, with the level of its metadata before all others."""
    records: list[Message] = [
        FeatureLevelRecord(name=name, feature_level=level)
        for name, level in AT_FIRST.items()
        if name in state.supported
    ]
    if ELIGIBLE_VERSION in state.supported:
        records += _one_min_isr(state)
    return records


def _one_min_isr(state: State) -> Iterator[Message]:
    """Makes `min.insync.replicas` the same for all brokers."""
    for (resource_type, name), values in state.image.configs.items():
        if resource_type == BROKER and name and MIN_ISR in values:
            yield ConfigRecord(resource_type=BROKER, resource_name=name, name=MIN_ISR, value=None)
    if MIN_ISR not in state.image.config(BROKER, ""):
        given = state.settings.layer(Source.STATIC_BROKER_CONFIG).get(MIN_ISR)
        value = given or str(state.settings.table[MIN_ISR].default)
        yield ConfigRecord(resource_type=BROKER, resource_name="", name=MIN_ISR, value=value)


def lacked(features: Mapping[str, int], supported: Mapping[str, tuple[int, int]]) -> str:
    """The first level of the cluster that this release does not know, in words; empty for none."""
    for name, level in sorted(features.items()):
        low, high = supported.get(name, (0, 0))
        if not low <= level <= high:
            return (
                f"the cluster runs {name} at level {level}, this release supports {low} to {high}"
            )
    return ""


def check_supported(features: Mapping[str, int], supported: Mapping[str, tuple[int, int]]) -> None:
    """Refuses data that was written with a feature level which this release does not know."""
    if why := lacked(features, supported):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, why)


def check_enforced(image: ClusterImage) -> None:
    """Refuses to rule a cluster whose rules would then not hold."""
    unenforced = image.security.unenforced()
    if unenforced:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"the cluster has {unenforced}, which this release does not enforce; remove them first",
        )
    if image.unknown:
        types = ", ".join(map(str, sorted(image.unknown)))
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"the metadata log has records of type {types}, which this release does not know",
        )


def update_features(
    state: State, request: UpdateFeaturesRequest, version: int, now: Instant
) -> Result:
    """All updates take effect, or none; up to version 1 each one that does is told so."""
    response = UpdateFeaturesResponse(error_message=None)
    records: list[Message] = []
    try:
        _refuse_duplicates(request)
        for update in request.feature_updates:
            kind = update.upgrade_type
            if version == 0 and update.allow_downgrade:
                kind = SAFE_DOWNGRADE
            records += _update(state, update.feature, update.max_version_level, kind)
        _check_together(state, request)
    except KafkaError as error:
        response.error_code, response.error_message = error.code, error.message
        records = []
    if version < 2 and not response.error_code:
        response.results = [
            UpdatableFeatureResult(feature=update.feature, error_message=ErrorCode.NONE.name)
            for update in request.feature_updates
        ]
    return Result([] if request.validate_only else records, response)


def _refuse_duplicates(request: UpdateFeaturesRequest) -> None:
    seen: set[str] = set()
    for update in request.feature_updates:
        if update.feature in seen:
            fail(ErrorCode.INVALID_REQUEST, f"{update.feature} is named twice; give one level")
        seen.add(update.feature)


def _check_together(state: State, request: UpdateFeaturesRequest) -> None:
    """Some features need a level of the metadata, whichever of the two is changed."""
    wanted = {**state.image.features}
    wanted.update((each.feature, each.max_version_level) for each in request.feature_updates)
    if why := levels.unmet(wanted):
        fail(ErrorCode.INVALID_UPDATE_VERSION, why)


def _update(state: State, name: str, level: int, kind: int) -> Iterator[Message]:
    def refuse(why: str) -> None:
        fail(ErrorCode.INVALID_UPDATE_VERSION, f"{name} cannot go to level {level}: {why}")

    current = state.image.features.get(name, 0)
    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        refuse(
            f"{kind} is no kind of update; {UPGRADE} upgrades, {SAFE_DOWNGRADE} downgrades "
            f"safely, {UNSAFE_DOWNGRADE} unsafely"
        )
    if level < 0:
        refuse("levels begin at 0")
    if name not in state.supported:
        refuse("this release does not have it")
    for who, (low, high) in _ranges(state, name):
        if not low <= level <= high:
            if not high:
                refuse(f"{who} does not have it")
            refuse(f"{who} supports {low} to {high}")
    if level < current and kind == UPGRADE:
        refuse(f"it is at {current}; ask for a safe or an unsafe downgrade to go back")
    if level > current and kind != UPGRADE:
        refuse(f"it is at {current}; ask for an upgrade to go on")
    if level == current:
        return
    if name == KRAFT_VERSION:
        if level < current:
            refuse("the voters stand in the log by now, and would be lost; it stays")
        return  # no record here says so: the quorum writes its own
    if name == METADATA_VERSION and level < levels.CORDONS <= current:
        cordoned = [b.id for b in state.image.brokers.values() if b.cordoned_directories]
        if cordoned:
            refuse(
                f"level {level} cannot say which directories are cordoned, and broker "
                f"{cordoned[0]} has some; clear its cordoned.log.dirs first"
            )
    yield FeatureLevelRecord(name=name, feature_level=level)
    if name == ELIGIBLE_VERSION and level:
        yield from _one_min_isr(state)
    elif name == ELIGIBLE_VERSION:
        yield from without_eligible(state)


def _ranges(state: State, name: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Who must support the level, with the range that each of them announced."""
    yield f"controller {state.node_id}", state.supported.get(name, (0, 0))
    for broker in state.image.brokers.values():
        yield f"broker {broker.id}", broker.features.get(name, (0, 0))
    for controller in state.image.controllers.values():
        if controller.id != state.node_id:
            yield f"controller {controller.id}", controller.features.get(name, (0, 0))
