"""Requests with many elements: how many each API takes, and how they are handled in parts.

A frame of a hundred megabytes can hold a hundred million smallest elements, and a minute of the
loop. So elements are counted while a request is decoded, in whatever array and at whatever depth:

- A request of up to `at_once` elements, and `BYTES_AT_ONCE` bytes unless they are payload, is
  decoded, handled and answered in one go.
- One of up to `elements` is decoded in slices, then cut into parts that are handled one by one,
  each as a request of its own, and what they come to is put together again (`parts`, `merge`).
  What cannot be cut (a commit, which stands or falls as one; a fetch, which is a session) has a
  handler that works in slices by itself.
- One of more, or of more than `bytes` where no client has much to say, closes the connection. The
  limits stand far above what a client has reason to send, so nobody could make use of an error.

An element that is named again and again is answered as often as Kafka does; where repeats have to
be seen side by side, `MAX_REPEATS` of them are taken. An element of an answer may be large itself,
a group of thousands of members for example, so answers are encoded by what is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Final, TypeVar

from scriba.broker.net.answers import CloseConnection
from scriba.controller.topics import check_created
from scriba.errors import ErrorCode, KafkaError
from scriba.groups.offsets.fetch import check_asked_once
from scriba.settings import NodeSettings
from scriba.wire.apis import ApiKey
from scriba.wire.packed import Packed
from scriba.wire.schema import Message, Struct

AT_ONCE: Final = 1_000
"""Elements of a request that do not hold the loop for long."""

TOLD_AT_ONCE: Final = 10_000
"""Elements of an answer, or bytes that take as long, that do not hold the loop for long while they
are encoded."""

ELEMENTS: Final = 20_000
"""How many elements a request may have whose API is not in `LIMITS`."""

BYTES_AT_ONCE: Final = 1 << 20
"""Bytes of a request without payload: a thousand names of 32 KB each take long to look up, too."""

MAX_REPEATS: Final = 1_000
PART: Final = 50
"""Elements that are handled in one go of a large request: few, for one may stand for much, a topic
with all its settings for example. Between two parts the clock is looked at."""

MUCH_TO_FREE: Final = 1 << 22
"""Bytes of a request that are not given back in one go."""

MAX_ANSWER: Final = 1 << 28
"""Bytes of one answer that is encoded in slices."""

ANY_BYTES: Final = 1 << 31
FEW_BYTES: Final = 1 << 18

S = TypeVar("S", bound=Struct)
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the elements of a request are, and where those of its answer."""

    asked: Path
    told: Path


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request of an API may hold."""

    elements: int = ELEMENTS
    at_once: int = AT_ONCE
    bytes: int = ANY_BYTES
    bytes_at_once: int = BYTES_AT_ONCE
    cuts: tuple[Cut, ...] = ()
    """By the first of them that the request has elements for; none if it is never cut."""
    once: Callable[[Any], Hashable] | None = None
    """What tells elements apart of which each is answered once, however often it is named."""
    together: Callable[[Any, Any], Hashable] | None = None
    """What tells elements apart, with what they belong to, where repeats must be in one part."""
    part: int = PART
    check: Callable[[NodeSettings, Any], Generator[None, None, None]] | None = None
    """Looks at the whole before it is cut, in steps; raises why all of it is refused."""


_FEW: Final = RequestLimits(elements=1_000, bytes=FEW_BYTES)
"""For requests that ask for one thing, or for all, with a few filters."""


def _flat(asked: str, told: str, **more: Any) -> RequestLimits:
    return RequestLimits(cuts=(Cut((asked,), (told,)),), **more)


def _by_topic(asked: str = "partitions", told: str = "partitions", **more: Any) -> RequestLimits:
    return RequestLimits(cuts=(Cut(("topics", asked), ("topics", told)),), **more)


def _itself(element: Any, _: Any = None) -> Hashable:
    return element  # type: ignore[no-any-return]


def _name(element: Any, _: Any = None) -> Hashable:
    return element.name  # type: ignore[no-any-return]


def _resource(element: Any, _: Any = None) -> Hashable:
    return element.resource_type, element.resource_name


def _check_created(settings: NodeSettings, request: Any) -> Generator[None, None, None]:
    check_created(settings, request)
    yield


def _check_named_once(_: NodeSettings, request: Any) -> Generator[None, None, None]:
    """KafkaError where a partition of which much is told is asked for again and again."""
    seen: set[tuple[str, int]] = set()
    for topic in request.topics:
        for index in topic.partition_indexes:
            yield
            if (topic.name, index) in seen:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"{topic.name}-{index} is asked for more than once"
                )
            seen.add((topic.name, index))


_OF_PARTITIONS: Final = 150_000
"""A hundred thousand partitions of fifty thousand topics."""

LIMITS: Final[dict[ApiKey, RequestLimits]] = {
    ApiKey.PRODUCE: RequestLimits(
        elements=100_000,
        bytes_at_once=ANY_BYTES,
        cuts=(Cut(("topic_data", "partition_data"), ("responses", "partition_responses")),),
        together=lambda data, topic: (topic.name, topic.topic_id, data.index),
        part=200,
    ),
    # Partitions of a session, and as many that it forgets.
    ApiKey.FETCH: RequestLimits(elements=300_000),
    ApiKey.LIST_OFFSETS: _by_topic(
        elements=_OF_PARTITIONS,
        together=lambda asked, topic: (topic.name, asked.partition_index),
    ),
    ApiKey.METADATA: RequestLimits(elements=100_000),
    # Whoever describes all topics names each of them, for every page anew.
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: RequestLimits(elements=100_000),
    # One commit is one batch of the offsets' topic, which takes some ten thousand of them.
    ApiKey.OFFSET_COMMIT: RequestLimits(elements=50_000),
    # What was verified is stored in the same step, which is not cut.
    ApiKey.TXN_OFFSET_COMMIT: _by_topic(elements=50_000, at_once=500, part=500),
    ApiKey.OFFSET_FETCH: RequestLimits(
        elements=_OF_PARTITIONS,
        cuts=(
            Cut(("groups", "topics", "partition_indexes"), ("groups", "topics", "partitions")),
            Cut(("topics", "partition_indexes"), ("topics", "partitions")),
        ),
        check=lambda _, request: check_asked_once(request),
    ),
    ApiKey.OFFSET_DELETE: _by_topic(elements=_OF_PARTITIONS),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _by_topic(elements=_OF_PARTITIONS),
    ApiKey.DELETE_RECORDS: _by_topic(elements=_OF_PARTITIONS, part=500),
    # One partition may have thousands of producers, one transaction thousands of partitions.
    ApiKey.DESCRIBE_PRODUCERS: _by_topic(
        "partition_indexes", elements=_OF_PARTITIONS, at_once=10, part=1, check=_check_named_once
    ),
    # Each that moves is made files for, one by one.
    ApiKey.ADD_PARTITIONS_TO_TXN: RequestLimits(elements=_OF_PARTITIONS),
    ApiKey.ALTER_REPLICA_LOG_DIRS: RequestLimits(elements=_OF_PARTITIONS),
    ApiKey.DESCRIBE_LOG_DIRS: RequestLimits(elements=_OF_PARTITIONS),
    ApiKey.FIND_COORDINATOR: _flat("coordinator_keys", "coordinators", elements=50_000),
    # A group may have thousands of members.
    ApiKey.DESCRIBE_GROUPS: _flat("groups", "groups", elements=50_000, at_once=10, part=10),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _flat(
        "group_ids", "groups", elements=50_000, at_once=10, part=10
    ),
    ApiKey.DELETE_GROUPS: _flat(
        "groups_names", "results", elements=50_000, at_once=100, once=_itself
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: _flat(
        "transactional_ids", "transaction_states", elements=50_000, at_once=10, part=1
    ),
    ApiKey.CREATE_TOPICS: _flat(
        "topics", "topics", elements=50_000, together=_name, check=_check_created
    ),
    ApiKey.CREATE_PARTITIONS: _flat("topics", "results", elements=50_000, together=_name),
    ApiKey.DELETE_TOPICS: RequestLimits(
        elements=50_000,
        cuts=(Cut(("topics",), ("responses",)), Cut(("topic_names",), ("responses",))),
        together=lambda topic, _: topic if isinstance(topic, str) else (topic.name, topic.topic_id),
    ),
    ApiKey.DESCRIBE_CONFIGS: _flat("resources", "results", elements=50_000, at_once=16, part=8),
    ApiKey.ALTER_CONFIGS: _flat("resources", "responses", elements=50_000, together=_resource),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _flat(
        "resources", "responses", elements=50_000, together=_resource
    ),
    ApiKey.ELECT_LEADERS: RequestLimits(
        elements=_OF_PARTITIONS,
        cuts=(
            Cut(
                ("topic_partitions", "partitions"), ("replica_election_results", "partition_result")
            ),
        ),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: RequestLimits(
        elements=_OF_PARTITIONS,
        cuts=(Cut(("topics", "partitions"), ("responses", "partitions")),),
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: RequestLimits(elements=_OF_PARTITIONS),
    # What a member owns, told when it joins.
    ApiKey.CONSUMER_GROUP_HEARTBEAT: RequestLimits(elements=120_000),
    # Subscriptions and assignments are payload.
    ApiKey.JOIN_GROUP: RequestLimits(elements=1_000, bytes_at_once=ANY_BYTES),
    ApiKey.SYNC_GROUP: RequestLimits(bytes_at_once=ANY_BYTES),
    ApiKey.LEAVE_GROUP: _flat("members", "members"),
    ApiKey.LIST_GROUPS: _FEW,
    ApiKey.LIST_TRANSACTIONS: _FEW,
    ApiKey.DESCRIBE_QUORUM: _FEW,
    ApiKey.UPDATE_FEATURES: _FEW,
    ApiKey.LIST_CONFIG_RESOURCES: _FEW,
    ApiKey.HEARTBEAT: _FEW,
    ApiKey.API_VERSIONS: _FEW,
    ApiKey.INIT_PRODUCER_ID: _FEW,
    ApiKey.ADD_OFFSETS_TO_TXN: _FEW,
    ApiKey.END_TXN: _FEW,
    ApiKey.DESCRIBE_CLUSTER: _FEW,
    ApiKey.DESCRIBE_ACLS: _FEW,
    ApiKey.CREATE_ACLS: _flat("creations", "results", elements=50_000),
    ApiKey.DELETE_ACLS: _flat("filters", "filter_results", elements=50_000),
}
"""What is taken of each API. A hundred thousand partitions, or fifty thousand of what is described
one by one, is more than the largest clusters hold; a broker that takes them is not held up."""

DEFAULT: Final = RequestLimits()

QUESTIONS: Final = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.FIND_COORDINATOR,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
    }
)
"""What changes nothing, so that it need not be worked on once the peer has gone."""


# ---- cutting ----


def cut_of(limits: RequestLimits, request: Message) -> Cut | None:
    """How to cut this request; None if it cannot be."""
    for cut in limits.cuts:
        if getattr(request, cut.asked[0], None):
            return cut
    return None


Run = tuple[list[Any], list[Any]]
"""Some elements, and before them the structures they lie in, the request first."""


@dataclass(slots=True)
class Part:
    """A request made of some elements of a larger one."""

    request: Message
    joined: int
    """How many structures, a topic for example, begin in the part before and go on in this one."""


def parts(request: Message, limits: RequestLimits, cut: Cut) -> Iterator[Part | None]:
    """The request as several of about `limits.part` elements each, or fewer where these have long
    names; None for a step in between."""
    room = 0
    part: Part | None = None
    copies: list[Any] = []
    originals: list[Any] = []
    for run in _runs(request, limits, cut.asked):
        yield None
        if run is None:
            continue
        if room <= 0:
            joined = 0
            if part is not None:
                yield part
                joined = _shared(run[0], originals) - 1
            room = limits.part
            part = Part(_bare(request, cut.asked[0]), joined)
            copies, originals = [part.request], [request]
        _copy_run(run, cut.asked, copies, originals)
        room -= _weight(run[0][1:]) + _weight(run[1]) or 1
    if part is not None:
        yield part


def _runs(request: Message, limits: RequestLimits, path: Path) -> Iterator[Run | None]:
    """Elements that belong in one part; None for a step in between."""
    if limits.together is not None:
        yield from _together(request, path, limits.together)
    elif limits.once is not None:
        seen: set[Hashable] = set()
        for element in getattr(request, path[0]):
            key = limits.once(element)
            yield None if key in seen else ([request], [element])
            seen.add(key)
    else:
        for owners, elements in _leaves([request], path):
            if not elements:
                yield owners, elements  # a topic without partitions is asked about as well
            start = weight = 0
            for end, element in enumerate(elements, 1):
                weight += _weight_of(element)
                if weight >= limits.part or end == len(elements):
                    yield owners, elements[start:end]
                    start, weight = end, 0


def _leaves(owners: list[Any], path: Path) -> Iterator[Run]:
    """Each list at the end of the path, and the structures it lies in."""
    inner = getattr(owners[-1], path[0])
    if len(path) == 1 or not inner:
        yield owners, inner or []
        return
    for each in inner:
        yield from _leaves([*owners, each], path[1:])


def _together(
    request: Message, path: Path, name: Callable[[Any, Any], Hashable]
) -> Iterator[Run | None]:
    """Runs of elements with one name; those of one topic follow each other."""
    found: dict[Hashable, dict[Hashable, Run]] = {}
    for owners, elements in _leaves([request], path):
        yield None
        owner = owners[-1]
        home = found.setdefault(_plain(owner) if len(owners) > 1 else None, {})
        if not elements:
            home.setdefault(None, (owners, []))
        for element in elements:
            _, same = home.setdefault(name(element, owner), (owners, []))
            same.append(element)
            if len(same) > MAX_REPEATS:
                raise CloseConnection(
                    f"one thing is named more than {MAX_REPEATS} times in a request",
                    "too_large",
                )
            yield None
    for home in found.values():
        yield from home.values()


def _weight(things: list[Any]) -> int:
    return sum(map(_weight_of, things))


def _weight_of(thing: Any) -> int:
    """An element counts as one, and as one more for each KB of its name: a hash over the 32 KB that
    a name may have takes milliseconds."""
    if type(thing) is str:
        return 1 + (len(thing) >> 10)
    if not isinstance(thing, Struct):
        return 1
    return 1 + (sum([len(getattr(thing, name) or "") for name in _strings(type(thing))]) >> 10)


@cache
def _strings(cls: type[Struct]) -> list[str]:
    return [f.name for f in cls.FIELDS if f.type.kind is not None and f.type.kind.name == "string"]


def _plain(owner: Struct) -> Hashable:
    """What tells a structure from the next one: all of it but its lists."""
    return _getter(type(owner))(owner)


@cache
def _getter(cls: type[Struct]) -> Callable[[Struct], Hashable]:
    names = [f.name for f in cls.FIELDS if f.type.kind is not None]
    return attrgetter(*names) if names else lambda _: ()


def _copy_run(run: Run, path: Path, copies: list[Any], originals: list[Any]) -> None:
    """Adds a run to the part whose structures, from the outermost to the one last added to, are
    `copies` of `originals`."""
    owners, elements = run
    depth = _shared(owners, originals)
    del copies[depth:], originals[depth:]
    for level in range(depth, len(owners)):
        copy = _bare(owners[level], path[level])
        getattr(copies[-1], path[level - 1]).append(copy)
        copies.append(copy)
        originals.append(owners[level])
    if len(owners) < len(path):
        # It has none of what lies deeper: null, or an empty list.
        name = path[len(owners) - 1]
        setattr(copies[-1], name, getattr(owners[-1], name))
    else:
        getattr(copies[-1], path[-1]).extend(elements)


def _shared(owners: list[Any], others: list[Any]) -> int:
    """How many structures both lie in, the request among them."""
    depth = 1
    while depth < min(len(owners), len(others)) and others[depth] is owners[depth]:
        depth += 1
    return depth


def _bare(original: S, without: str) -> S:
    """A copy whose list of that name is empty."""
    copy = object.__new__(type(original))
    for f in original.FIELDS:
        setattr(copy, f.name, [] if f.name == without else getattr(original, f.name))
    return copy


def letting_go(owner: Struct, path: Path) -> Generator[None, None, None]:
    """Takes all elements along the path away, one in a step.

    Strings of tens of megabytes that are freed all at once hold the loop. Nobody else has these
    lists: parts of a request have their own, and so has an answer that was put together.
    """
    elements = getattr(owner, path[0]) or []
    while elements:
        if len(path) > 1:
            yield from letting_go(elements[-1], path[1:])
        elements.pop()
        yield


# ---- putting together ----


def merge(
    whole: Message | None, told: Message, part: Part, path: Path, version: int
) -> Generator[None, None, Message]:
    """Adds what a part came to. Structures that are whole in each part become bytes, in slices."""
    if len(path) == 1:
        packed: Packed = (
            Packed(type(told), path[0], version) if whole is None else getattr(whole, path[0])
        )
        elements = getattr(told, path[0])[::-1]
        setattr(told, path[0], packed)
        for _ in packed.adding(_let_go(elements)):
            check_answer(packed.size)
            yield
    if whole is None:
        return told
    if getattr(told, "error_code", 0) and not getattr(whole, "error_code", 0):
        for name in ("error_code", "error_message"):
            if hasattr(told, name):
                setattr(whole, name, getattr(told, name))
    if len(path) > 1:
        _add(whole, told, path, part.joined)
    return whole


def _let_go(elements: list[Any]) -> Iterator[Any]:
    """From the last to the first, each of them only while it is needed."""
    while elements:
        yield elements.pop()


def check_answer(size: int) -> None:
    """Ends the connection of whoever asks for more than fits into one answer."""
    if size > MAX_ANSWER:
        raise CloseConnection(
            f"the answer would have more than {MAX_ANSWER} bytes; ask for less at a time",
            "too_large",
        )


def _add(whole: Any, told: Any, path: Path, joined: int) -> None:
    mine, more = getattr(whole, path[0]), getattr(told, path[0])
    if joined and mine and more and _plain(mine[-1]) == _plain(more[0]):
        _add(mine[-1], more[0], path[1:], joined - 1)
        more = more[1:]
    mine.extend(more)
