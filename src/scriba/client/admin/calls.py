"""How an `Admin` asks: who is asked, what is tried again, and how single failures are told."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from scriba.client.cluster import NO_NODE, Cluster
from scriba.client.coordinator import CoordinatorKind, find_coordinators
from scriba.client.model import TopicPartition
from scriba.errors import ErrorCode, error_code
from scriba.peers.errors import BrokerError, ClientError
from scriba.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from scriba.wire.schema import Message

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R", bound=Message)

_AGAIN: Final = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
"""Answers about one thing that another try can change."""

_WITHOUT_CREATING: Final = 4
"""Since when Metadata does not have to create what it asks for."""

_PATIENCE_MS: Final = 3_000
"""How long a topic that brokers do not know may still be one that was just created."""


class PartlyFailed(ClientError, Generic[K]):
    """Of several things that were asked for at once, some failed."""

    def __init__(self, results: Mapping[K, object], errors: Mapping[K, BrokerError]) -> None:
        total = len(results) + len(errors)
        told = "; ".join(
            str(error) if f" {error.about}".endswith(f" {key}") else f"{key}: {error}"
            for key, error in errors.items()
        )
        super().__init__(f"{len(errors)} of {total} failed: {told}")
        self.results = results
        self.errors = errors
        self.retriable = all(error.retriable for error in errors.values())


class PartlyListed(PartlyFailed[str]):
    """What the coordinators of some partitions know could not be listed: nobody leads these.

    `results` has what the others know, by name, `errors` a line for each partition.
    """

    def __init__(self, results: Mapping[str, object], offline: Sequence[TopicPartition]) -> None:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        errors = {str(where): BrokerError(code, about=str(where)) for where in offline}
        super().__init__(results, errors)
        are = "partition is" if len(offline) == 1 else "partitions are"
        numbers = ", ".join(str(where.partition) for where in offline)
        topic = offline[0].topic
        self.args = (
            f"{len(offline)} {are} offline in {topic}, and what they hold is not listed: {numbers}",
        )
        self.fix = f"scriba topic why {topic} says what they wait for"
        self.offline = list(offline)


def several(given: Iterable[K]) -> list[K]:
    """What was given as several things. One name is none of that: its letters would be taken for
    names, and be deleted, say."""
    if isinstance(given, str | bytes):
        raise TypeError(f"{given!r} is one name where several are expected; give [{given!r}]")
    return list(given)


class Calls:
    def __init__(self, cluster: Cluster, default_timeout_ms: int, request_timeout_ms: int) -> None:
        self.cluster = cluster
        self._default_timeout_ms = default_timeout_ms
        self._request_timeout_ms = request_timeout_ms

    def limit(self, timeout_ms: int | None) -> int:
        return self._default_timeout_ms if timeout_ms is None else timeout_ms

    def server_limit(self, timeout_ms: int | None) -> int:
        """How long the broker itself may take; the rest of the time is for tries."""
        return min(self._request_timeout_ms, self.limit(timeout_ms))

    async def ask(self, request: Message, answer: type[R], node: int | None = None) -> R:
        """One try at any broker, or at the one named."""
        if node is None:
            connection = await self.cluster.any_connection()
        else:
            connection = await self.cluster.connect(node)
        return await connection.request(request, answer)

    async def once(
        self,
        request: Message,
        answer: type[R],
        timeout_ms: int | None,
        what: str,
        node: int | None = None,
    ) -> R:
        """A request whose answer is good or bad as a whole; retried while that can help."""

        async def attempt() -> R:
            if node is not None:
                await self.cluster.ready(self.limit(timeout_ms))
            message = await self.ask(request, answer, node)
            number: int = getattr(message, "error_code", 0)
            if number:
                text: str | None = getattr(message, "error_message", None)
                raise BrokerError(error_code(number), text, about=what)
            return message

        return await self.cluster.retry(attempt, self.limit(timeout_ms), what)

    async def each(
        self,
        keys: Iterable[K],
        attempt: Callable[[list[K]], Awaitable[Mapping[K, V | BrokerError]]],
        timeout_ms: int | None,
        what: str,
    ) -> dict[K, V]:
        """Things that succeed or fail one by one: results by key, in the order asked for.

        A single failure is raised as it is when one thing was asked for, in PartlyFailed else.
        """
        wanted = list(dict.fromkeys(several(keys)))
        results: dict[K, V] = {}
        errors: dict[K, BrokerError] = {}

        async def try_rest() -> None:
            rest = [key for key in wanted if key not in results and key not in errors]
            again: BrokerError | None = None
            for key, outcome in (await attempt(rest)).items():
                if not isinstance(outcome, BrokerError):
                    results[key] = outcome
                elif outcome.code in _AGAIN:
                    again = outcome
                else:
                    errors[key] = outcome
            if again is not None:
                self.cluster.stale()
                raise again

        await self.cluster.retry(try_rest, self.limit(timeout_ms), what)
        if errors:
            raise errors.popitem()[1] if len(wanted) == 1 else PartlyFailed(results, errors)
        return {key: results[key] for key in wanted}

    async def all_found(
        self,
        attempt: Callable[[], Awaitable[Mapping[K, V | BrokerError]]],
        timeout_ms: int | None,
        what: str,
    ) -> dict[K, V]:
        """Things that the cluster names itself; PartlyFailed where some failed."""
        found = await self.cluster.retry(attempt, self.limit(timeout_ms), what)
        errors = {key: value for key, value in found.items() if isinstance(value, BrokerError)}
        results = {key: v for key, v in found.items() if not isinstance(v, BrokerError)}
        if errors:
            raise PartlyFailed(results, errors)
        return results

    async def at_leaders(
        self,
        partitions: Iterable[TopicPartition],
        ask: Callable[
            [int, list[TopicPartition]], Awaitable[Mapping[TopicPartition, V | BrokerError]]
        ],
        timeout_ms: int | None,
        what: str,
    ) -> dict[TopicPartition, V]:
        """Partitions that succeed or fail one by one, each asked of its leader."""
        wanted = list(partitions)
        await self._leaders(wanted, timeout_ms)

        async def attempt(rest: list[TopicPartition]) -> dict[TopicPartition, V | BrokerError]:
            by_leader, missing = await self._leaders(rest, timeout_ms)
            answers: dict[TopicPartition, V | BrokerError] = dict(missing)
            for leader, part in by_leader.items():
                answers.update(await ask(leader, part))
            return answers

        return await self.each(wanted, attempt, timeout_ms, what)

    async def at_coordinators(
        self,
        kind: CoordinatorKind,
        keys: Iterable[str],
        ask: Callable[[int, list[str]], Awaitable[Mapping[str, V | BrokerError]]],
        timeout_ms: int | None,
        what: str,
    ) -> dict[str, V]:
        """Groups or transactional ids, each asked of its coordinator."""
        await self.cluster.ready(self.limit(timeout_ms))

        async def attempt(rest: list[str]) -> dict[str, V | BrokerError]:
            answers: dict[str, V | BrokerError] = {}
            by_node: dict[int, list[str]] = {}
            for key, node in (await find_coordinators(self.cluster, kind, rest)).items():
                if isinstance(node, BrokerError):
                    answers[key] = node
                else:
                    by_node.setdefault(node, []).append(key)
            for node, part in by_node.items():
                answers.update(await ask(node, part))
            return answers

        return await self.each(keys, attempt, timeout_ms, what)

    async def at_all(
        self,
        ask: Callable[[int], Awaitable[list[V]]],
        timeout_ms: int | None,
        what: str,
    ) -> list[V]:
        """What every broker knows of its own, together. When one leaves the cluster meanwhile, all
        are asked again: others have taken over what it knew."""
        while True:
            await self.cluster.ready(self.limit(timeout_ms))
            found: list[V] = []
            for node in sorted(self.cluster.nodes):

                async def attempt(node: int = node) -> list[V] | None:
                    return await ask(node) if node in self.cluster.nodes else None

                told = await self.cluster.retry(attempt, self.limit(timeout_ms), what)
                if told is None:
                    break
                found += told
            else:
                return found

    async def all_listed(
        self,
        ask: Callable[[int], Awaitable[list[V]]],
        name: Callable[[V], str],
        topic: str,
        timeout_ms: int | None,
        what: str,
    ) -> list[V]:
        """What all coordinators know, in the order of their names; PartlyListed where partitions of
        their topic have no leader who could be asked."""
        found = {name(each): each for each in await self.at_all(ask, timeout_ms, what)}
        listed = {each: found[each] for each in sorted(found)}

        async def look() -> list[TopicPartition]:
            return await self._offline(topic)

        offline = await self.cluster.retry(look, self.limit(timeout_ms), what)
        if offline:
            raise PartlyListed(listed, offline)
        return list(listed.values())

    async def _offline(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic that nobody leads; none where it is not there, or is not ours
        to see. An old broker would create it."""
        connection = await self.cluster.any_connection()
        version = connection.version(MetadataRequest)
        if version < _WITHOUT_CREATING:
            return []
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        answer = await connection.request(request, MetadataResponse, version=version)
        return sorted(
            TopicPartition(topic, p.partition_index)
            for t in answer.topics
            for p in t.partitions
            if p.leader_id == NO_NODE
        )

    async def _leaders(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None
    ) -> tuple[dict[int, list[TopicPartition]], dict[TopicPartition, BrokerError]]:
        """The partitions by leader, and those that there are not, or that have none now."""
        found: dict[int, list[TopicPartition]] = {}
        missing: dict[TopicPartition, BrokerError] = {}
        for where in partitions:
            self.cluster.want(where.topic)
            topic = self.cluster.topics.get(where.topic)
            if topic is None:
                patience = min(self.limit(timeout_ms), _PATIENCE_MS)
                topic = await self.cluster.topic(where.topic, patience)
            if where.partition not in topic.partitions:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                missing[where] = BrokerError(code, about=str(where))
            elif (leader := topic.partitions[where.partition].leader) == NO_NODE:
                missing[where] = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, about=str(where))
            else:
                found.setdefault(leader, []).append(where)
        return found, missing


def outcome(number: int, message: str | None, value: V, about: str) -> V | BrokerError:
    """The value, unless the error number tells otherwise."""
    return BrokerError(error_code(number), message, about=about) if number else value
