"""Manages a cluster: topics, records, configurations, features, groups, transactions.

    async with Admin(bootstrap_servers="localhost:9092") as admin:
        await admin.create_topics([NewTopic("orders", partitions=6)])
        for topic in await admin.list_topics():
            print(topic.name)

Calls that name several things give a dict by name, and raise when one of them failed: its
`BrokerError` if it was the only one asked for, else `PartlyFailed` with all results and errors.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from scriba.client.admin.calls import Calls, outcome, several
from scriba.client.admin.cluster import ClusterAdmin
from scriba.client.admin.groups import GroupAdmin
from scriba.client.admin.model import (
    ConfigEntry,
    ConfigOp,
    ConfigResource,
    CreatedTopic,
    NewTopic,
    ResourceType,
    TopicDescription,
    TopicListing,
)
from scriba.client.admin.requests import (
    by_node,
    change_configs,
    creatable,
    delete_records,
    describe_configs,
    more_partitions,
    replace_configs,
)
from scriba.client.admin.responses import (
    read_config,
    read_created,
    read_partition,
)
from scriba.client.admin.transactions import TransactionAdmin
from scriba.client.cluster import TOPIC_IDLE_MS, Cluster
from scriba.client.consuming.list_offsets import look_up
from scriba.client.keywords import AdminKeywords
from scriba.client.model import Isolation, OffsetAndTimestamp, TopicPartition
from scriba.client.settings import AdminSettings
from scriba.peers.errors import BrokerError, ClientError, raise_for
from scriba.peers.ports import Ports, real_ports
from scriba.wire.messages import admin as wire
from scriba.wire.messages import configs as config_wire
from scriba.wire.messages.metadata import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataResponse,
    TopicRequest,
)
from scriba.wire.uuids import to_text

V = TypeVar("V")

ALL_RECORDS: Final = -1
"""As an offset for `delete_records`: up to the high watermark."""


class Admin(ClusterAdmin, GroupAdmin, TransactionAdmin):
    """Takes settings by Kafka's names. Made and used within one event loop."""

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        _ports: Ports | None = None,
        **keywords: Unpack[AdminKeywords],
    ) -> None:
        self.settings = AdminSettings.build(config, keywords)
        ports = _ports or real_ports()
        self._cluster = Cluster(ports, self.settings, topic_idle_ms=TOPIC_IDLE_MS)
        self._calls = Calls(
            self._cluster, self.settings.default_api_timeout_ms, self.settings.request_timeout_ms
        )

    @property
    def trouble(self) -> ClientError | None:
        """What keeps the cluster from answering, while it is tried again; None when nothing
        does."""
        return self._cluster.trouble

    @property
    def _ports(self) -> Ports:
        """The world outside, as this client sees it."""
        return self._cluster.ports

    async def close(self) -> None:
        await self._cluster.close()

    async def __aenter__(self) -> Self:
        self._cluster.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self.close()

    # -- topics ----------------------------------------------------------------------------------

    async def create_topics(
        self,
        topics: Iterable[NewTopic],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[str, CreatedTopic]:
        wanted = {topic.name: topic for topic in topics}

        async def attempt(names: list[str]) -> dict[str, CreatedTopic | BrokerError]:
            request = wire.CreateTopicsRequest(
                topics=[creatable(wanted[name]) for name in names],
                timeout_ms=self._calls.server_limit(timeout_ms),
                validate_only=validate_only,
            )
            answer = await self._calls.ask(request, wire.CreateTopicsResponse)
            return {
                t.name: outcome(t.error_code, t.error_message, read_created(t), f"topic {t.name}")
                for t in answer.topics
            }

        return await self._calls.each(wanted, attempt, timeout_ms, "creating topics")

    async def delete_topics(self, names: Iterable[str], *, timeout_ms: int | None = None) -> None:
        async def attempt(rest: list[str]) -> dict[str, BrokerError | None]:
            connection = await self._cluster.any_connection()
            version = connection.version(wire.DeleteTopicsRequest)
            by_name = version < 6
            request = wire.DeleteTopicsRequest(
                topics=[] if by_name else [wire.DeleteTopicState(name=name) for name in rest],
                topic_names=rest if by_name else [],
                timeout_ms=self._calls.server_limit(timeout_ms),
            )
            answer = await connection.request(request, wire.DeleteTopicsResponse, version=version)
            return {
                t.name or "": outcome(t.error_code, t.error_message, None, f"topic {t.name}")
                for t in answer.responses
            }

        await self._calls.each(names, attempt, timeout_ms, "deleting topics")

    async def list_topics(
        self, *, include_internal: bool = False, timeout_ms: int | None = None
    ) -> list[TopicListing]:
        """All topics, by name."""
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        answer = await self._calls.once(request, MetadataResponse, timeout_ms, "the topics")
        return sorted(
            (
                TopicListing(t.name, to_text(t.topic_id), t.is_internal, len(t.partitions))
                for t in answer.topics
                if t.name is not None and (include_internal or not t.is_internal)
            ),
            key=lambda listing: listing.name,
        )

    async def describe_topics(
        self, names: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, TopicDescription]:
        return await self._calls.each(names, self._describe_topics, timeout_ms, "the topics")

    async def _describe_topics(self, names: list[str]) -> dict[str, TopicDescription | BrokerError]:
        """Page by page: a topic may be cut in the middle and go on in the next answer."""
        found: dict[str, TopicDescription | BrokerError] = {}
        cursor: DescribeTopicPartitionsRequestCursor | None = None
        while True:
            request = DescribeTopicPartitionsRequest(
                topics=[TopicRequest(name=name) for name in sorted(names)], cursor=cursor
            )
            answer = await self._calls.ask(request, DescribeTopicPartitionsResponse)
            for t in answer.topics:
                name = t.name or ""
                partitions = tuple(read_partition(p) for p in t.partitions)
                before = found.get(name)
                if isinstance(before, TopicDescription):
                    partitions = before.partitions + partitions
                described = TopicDescription(name, to_text(t.topic_id), t.is_internal, partitions)
                found[name] = outcome(t.error_code, None, described, f"topic {name}")
            following = answer.next_cursor
            if following is None:
                return found
            names = [name for name in names if name >= following.topic_name]
            cursor = DescribeTopicPartitionsRequestCursor(
                topic_name=following.topic_name, partition_index=following.partition_index
            )

    async def create_partitions(
        self,
        totals: Mapping[str, int],
        *,
        assignments: Mapping[str, Sequence[Sequence[int]]] | None = None,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Raises topics to these totals; `assignments` places the new partitions of a topic.

        Keys of existing topics then go to other partitions than before.
        """
        placed = assignments or {}

        async def attempt(names: list[str]) -> dict[str, BrokerError | None]:
            request = wire.CreatePartitionsRequest(
                topics=[more_partitions(name, totals[name], placed.get(name)) for name in names],
                timeout_ms=self._calls.server_limit(timeout_ms),
                validate_only=validate_only,
            )
            answer = await self._calls.ask(request, wire.CreatePartitionsResponse)
            return {
                t.name: outcome(t.error_code, t.error_message, None, f"topic {t.name}")
                for t in answer.results
            }

        await self._calls.each(totals, attempt, timeout_ms, "adding partitions")

    # -- records ---------------------------------------------------------------------------------

    async def delete_records(
        self, before: Mapping[tuple[str, int], int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Deletes what is before these offsets (ALL_RECORDS: all); where each log starts now."""
        offsets = {TopicPartition(*where): offset for where, offset in before.items()}

        async def ask(
            leader: int, part: list[TopicPartition]
        ) -> dict[TopicPartition, int | BrokerError]:
            request = delete_records(offsets, part, self._calls.server_limit(timeout_ms))
            answer = await self._calls.ask(request, wire.DeleteRecordsResponse, leader)
            return {
                (where := TopicPartition(t.name, p.partition_index)): outcome(
                    p.error_code, None, p.low_watermark, str(where)
                )
                for t in answer.topics
                for p in t.partitions
            }

        return await self._calls.at_leaders(offsets, ask, timeout_ms, "deleting records")

    async def list_offsets(
        self,
        wanted: Mapping[tuple[str, int], int],
        *,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Offsets for an `OffsetSpec` or a timestamp; None where nothing is at or after it."""
        targets = {TopicPartition(*where): target for where, target in wanted.items()}

        async def ask(
            leader: int, part: list[TopicPartition]
        ) -> dict[TopicPartition, OffsetAndTimestamp | BrokerError | None]:
            found = await look_up(self._cluster, {at: targets[at] for at in part}, isolation)
            answers: dict[TopicPartition, OffsetAndTimestamp | BrokerError | None] = {}
            answers.update(found.offsets)
            for where, failure in found.failures.items():
                if not isinstance(failure, BrokerError):
                    raise failure
                answers[where] = failure
            return answers

        return await self._calls.at_leaders(targets, ask, timeout_ms, "the offsets")

    # -- configurations --------------------------------------------------------------------------

    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        names: Iterable[str] | None = None,
        documentation: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """Settings in force by resource and name, all or those with these names."""
        keys = None if names is None else several(names)

        async def attempt(
            rest: list[ConfigResource],
        ) -> dict[ConfigResource, dict[str, ConfigEntry] | BrokerError]:
            found: dict[ConfigResource, dict[str, ConfigEntry] | BrokerError] = {}
            for node, part in by_node(rest).items():
                request = describe_configs(part, keys, documentation)
                if node is not None:
                    await self._cluster.ready(self._calls.limit(timeout_ms))
                answer = await self._calls.ask(request, config_wire.DescribeConfigsResponse, node)
                for r in answer.results:
                    at = _resource(r.resource_type, r.resource_name)
                    entries = {entry.name: read_config(entry) for entry in r.configs}
                    found[at] = outcome(r.error_code, r.error_message, entries, str(at))
            return found

        return await self._calls.each(resources, attempt, timeout_ms, "the configurations")

    async def describe_controller(
        self,
        node: int,
        host: str,
        port: int,
        names: Iterable[str],
        *,
        timeout_ms: int | None = None,
    ) -> dict[str, ConfigEntry]:
        """Settings of a controller that is no broker, by its own listener."""
        resource = ConfigResource.broker(node)
        request = describe_configs([resource], several(names), False)

        async def attempt() -> dict[str, ConfigEntry]:
            connection = await self._cluster.connect_to(node, host, port)
            answer = await connection.request(request, config_wire.DescribeConfigsResponse)
            (said,) = answer.results
            raise_for(said.error_code, said.error_message, about=f"controller {node}")
            return {entry.name: read_config(entry) for entry in said.configs}

        limit = self._calls.limit(timeout_ms)
        return await self._cluster.retry(attempt, limit, f"the settings of controller {node}")

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, str | None]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Sets these settings and leaves all others as they are; None means the default again."""
        await self.incremental_alter_configs(
            {
                resource: [
                    (name, ConfigOp.DELETE if value is None else ConfigOp.SET, value)
                    for name, value in settings.items()
                ]
                for resource, settings in changes.items()
            },
            validate_only=validate_only,
            timeout_ms=timeout_ms,
        )

    async def incremental_alter_configs(
        self,
        changes: Mapping[ConfigResource, Sequence[tuple[str, ConfigOp, str | None]]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
        via: int | None = None,
    ) -> None:
        """Changes single settings: (name, what to do, value).

        Settings of a broker are changed by that broker, or `via` another one where it is gone,
        which Apache Kafka's brokers refuse.
        """

        async def ask(
            part: list[ConfigResource], node: int | None
        ) -> dict[ConfigResource, BrokerError | None]:
            request = change_configs(part, changes, validate_only)
            answer = await self._calls.ask(
                request, config_wire.IncrementalAlterConfigsResponse, node
            )
            return {
                (at := _resource(said.resource_type, said.resource_name)): outcome(
                    said.error_code, said.error_message, None, str(at)
                )
                for said in answer.responses
            }

        await self._change_configs(changes, ask, timeout_ms, via)

    async def replace_configs(
        self,
        configs: Mapping[ConfigResource, Mapping[str, str]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Makes these the only settings of each resource (Kafka's older AlterConfigs)."""

        async def ask(
            part: list[ConfigResource], node: int | None
        ) -> dict[ConfigResource, BrokerError | None]:
            request = replace_configs(part, configs, validate_only)
            answer = await self._calls.ask(request, config_wire.AlterConfigsResponse, node)
            return {
                (at := _resource(said.resource_type, said.resource_name)): outcome(
                    said.error_code, said.error_message, None, str(at)
                )
                for said in answer.responses
            }

        await self._change_configs(configs, ask, timeout_ms)

    async def _change_configs(
        self,
        resources: Iterable[ConfigResource],
        ask: Callable[
            [list[ConfigResource], int | None],
            Awaitable[Mapping[ConfigResource, BrokerError | None]],
        ],
        timeout_ms: int | None,
        via: int | None = None,
    ) -> None:
        async def attempt(rest: list[ConfigResource]) -> dict[ConfigResource, BrokerError | None]:
            found: dict[ConfigResource, BrokerError | None] = {}
            for node, part in (by_node(rest) if via is None else {via: rest}).items():
                found.update(await ask(part, node))
            return found

        await self._cluster.ready(self._calls.limit(timeout_ms))
        await self._calls.each(resources, attempt, timeout_ms, "changing configurations")

    async def list_config_resources(
        self, types: Iterable[ResourceType] = (), *, timeout_ms: int | None = None
    ) -> list[ConfigResource]:
        """Everything that has a configuration of its own."""
        request = config_wire.ListConfigResourcesRequest(resource_types=list(types))
        answer = await self._calls.once(
            request, config_wire.ListConfigResourcesResponse, timeout_ms, "the config resources"
        )
        return [_resource(r.resource_type, r.resource_name) for r in answer.config_resources]


def _resource(kind: int, name: str) -> ConfigResource:
    return ConfigResource(ResourceType(kind), name)
