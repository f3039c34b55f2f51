"""A test's broker from the inside: one node and what a test asks of it, on the node's own loop.

Questions and changes go straight to the node's handlers, not over its listener: so they meet no
fault that was armed, need no connection, and never compete with the program under test.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from scriba.broker.api.faults import Fault, Faults
from scriba.broker.api.table import api_table
from scriba.broker.node import Node
from scriba.broker.request import ANONYMOUS, Context, Deferred
from scriba.controller.partitions.elections import MIN_ISR
from scriba.errors import ErrorCode, KafkaError, error_code
from scriba.records.batch import Record as Plain
from scriba.records.batch import encode_batch
from scriba.runtime.loop.lapse import LapseLoop, LapseWorld
from scriba.settings import NodeSettings
from scriba.testing.model import Group, Record, Transaction
from scriba.wire.apis import API
from scriba.wire.messages import admin, configs, produce, txn
from scriba.wire.messages import groups as of_groups
from scriba.wire.schema import Message

LOADING_PAUSE_S: Final = 0.002
SET: Final = 0
DELETE: Final = 1
"""The operation of IncrementalAlterConfigs that goes back to the default."""
TOPIC: Final = 2

Headers = tuple[tuple[str, bytes | None], ...]


class Inside:
    """Lives as long as its node; a restart makes another one."""

    def __init__(self, settings: Mapping[str, str], loop: LapseLoop) -> None:
        self._loop = loop
        self._world = LapseWorld(loop)
        self._faults = Faults()
        self._node = Node(NodeSettings.parse(settings), self._world, faults=self._faults)
        self._handlers = {key: entry.handler for key, entry in api_table().items()}
        self._failed: asyncio.Task[None] | None = None

    # ---- life ----

    async def start(self) -> list[tuple[str, int]]:
        """Starts the node; the addresses that it listens on."""
        try:
            await self._node.start()
        except BaseException:
            self._world.close()
            raise
        self._failed = self._loop.create_task(self._node.wait_stopped())
        return [(bound.host, bound.port) for bound in self._node.listeners]

    async def stop(self) -> None:
        await self._end(self._node.stop)

    async def halt(self) -> None:
        """As if the process had been killed: clients are cut off, nothing is flushed."""
        await self._end(self._node.halt)

    async def _end(self, how: Any) -> None:
        if self._failed is not None:
            self._failed.cancel()
            await asyncio.wait([self._failed])
        try:
            await how()
        finally:
            self._world.close()

    async def call(self, name: str, *values: Any) -> Any:
        """One of the methods below. A node that has failed says why instead."""
        if self._failed is not None and self._failed.done():
            self._failed.result()
        await self._node.replicas.settled()  # a topic that is just being made is made first
        return await getattr(self, name)(*values)

    # ---- time and faults ----

    async def advance(self, ms: int) -> int:
        """How far the clock is ahead afterwards, in nanoseconds."""
        await self._loop.advance(ms)
        return self._loop.clock.ahead_ns

    async def wall_ms(self) -> int:
        return self._loop.clock.wall_ms()

    async def arm(self, fault: dict[str, Any]) -> None:
        if fault["api"] not in self._node.dispatch.table:
            raise ValueError(f"{API[fault['api']].name} is not served by this broker")
        self._faults.arm(Fault(**fault))

    async def clear_faults(self) -> None:
        self._faults.clear()

    async def drop_connections(self) -> int:
        return self._node.server.close_connections("fault")

    # ---- what is there ----

    async def topics(self) -> list[str]:
        return sorted(
            name
            for name in self._node.image.topics_by_name
            if name not in self._node.internal_topics
        )

    async def records(self, topic: str, partition: int | None, uncommitted: bool) -> list[Record]:
        found = self._node.image.topics_by_name.get(topic)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic}")
        from scriba.testing.reading import read_records

        wanted = sorted(found.partitions) if partition is None else [partition]
        records: list[Record] = []
        for index in wanted:
            where = self._node.replicas.find(topic, index)
            records += [each async for each in read_records(where, uncommitted)]
        return records

    async def committed(self, group: str) -> dict[tuple[str, int], int]:
        asked = of_groups.OffsetFetchRequest(
            groups=[of_groups.OffsetFetchRequestGroup(group_id=group, topics=None)]
        )
        answer = await self._ask_loaded(asked, 9, lambda answer: answer.groups[0].error_code)
        if answer is None:
            return {}
        return {
            (topic.name, each.partition_index): each.committed_offset
            for topic in answer.groups[0].topics
            for each in topic.partitions
        }

    async def groups(self) -> list[Group]:
        listed = await self._ask_loaded(
            of_groups.ListGroupsRequest(), 5, lambda answer: answer.error_code
        )
        return [] if listed is None else [await self._group(each) for each in listed.groups]

    async def _group(self, listed: of_groups.ListedGroup) -> Group:
        kind = listed.group_type.lower()
        asked: Message
        if kind == "consumer":
            asked = of_groups.ConsumerGroupDescribeRequest(group_ids=[listed.group_id])
        else:
            asked = of_groups.DescribeGroupsRequest(groups=[listed.group_id])
        (told,) = (await self._ask(asked)).groups
        members = tuple(sorted(member.member_id for member in told.members))
        return Group(listed.group_id, told.group_state, kind, members)

    async def transactions(self) -> list[Transaction]:
        listed = await self._ask_loaded(
            txn.ListTransactionsRequest(), 2, lambda answer: answer.error_code
        )
        found = listed.transaction_states if listed is not None else ()
        return [
            Transaction(each.transactional_id, each.transaction_state, each.producer_id)
            for each in found
        ]

    # ---- changes ----

    async def create_topic(self, name: str, partitions: int, settings: dict[str, str]) -> None:
        topic = admin.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=-1,
            configs=[
                admin.CreatableTopicConfig(name=key, value=value) for key, value in settings.items()
            ],
        )
        answer = await self._ask(admin.CreateTopicsRequest(topics=[topic]))
        _check(answer.topics[0].error_code, answer.topics[0].error_message)

    async def delete_topics(self, names: list[str]) -> None:
        asked = [admin.DeleteTopicState(name=name) for name in names]
        answer = await self._node.controller.call(admin.DeleteTopicsRequest(topics=asked), 6)
        for result in answer.responses:
            _check(result.error_code, result.error_message)
        await self._node.replicas.settled()

    async def produce(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp: int | None,
    ) -> Record:
        if topic not in self._node.image.topics_by_name:
            await self.create_topic(topic, -1, {})
        count = len(self._node.image.topics_by_name[topic].partitions)
        if partition is None:
            from scriba.client.producing.partitioner import by_key

            partition = 0 if key is None else by_key(key, count)
        at = self._loop.clock.wall_ms() if timestamp is None else timestamp
        batch = encode_batch([Plain(0, at, key, value, headers)])
        data = produce.PartitionProduceData(index=partition, records=memoryview(batch))
        answer = await self._ask(
            produce.ProduceRequest(
                acks=-1,
                timeout_ms=30_000,
                topic_data=[produce.TopicProduceData(name=topic, partition_data=[data])],
            ),
            12,
        )
        (told,) = answer.responses[0].partition_responses
        _check(told.error_code, told.error_message)
        at = told.log_append_time_ms if told.log_append_time_ms >= 0 else at
        return Record(topic, partition, told.base_offset, key, value, headers, at)

    async def reset(self) -> None:
        """Topics, groups, transactions and run-time settings go, faults too; clients stay."""
        self._faults.clear()
        names = list(self._node.image.topics_by_name)
        if names:
            await self.delete_topics(names)
        resources = [
            configs.IncrementalAlterConfigsRequestAlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[self._reset(name, key) for key in values],
            )
            for (kind, name), values in self._node.image.configs.items()
            if kind != TOPIC and values
        ]
        if resources:
            answer = await self._ask(configs.IncrementalAlterConfigsRequest(resources=resources))
            for result in answer.responses:
                _check(result.error_code, result.error_message)

    def _reset(
        self, resource: str, key: str
    ) -> configs.IncrementalAlterConfigsRequestAlterableConfig:
        """Takes a setting back: that of the cluster which must have a value gets its first one."""
        kept = not resource and key == MIN_ISR
        return configs.IncrementalAlterConfigsRequestAlterableConfig(
            name=key,
            config_operation=SET if kept else DELETE,
            value=str(self._node.static_settings.min_insync_replicas) if kept else None,
        )

    # ---- asking the node ----

    async def _ask(self, request: Message, version: int | None = None) -> Any:
        assert request.KEY is not None
        version = API[request.KEY].max_version if version is None else version
        ctx = Context(
            ANONYMOUS,
            self._node.listeners[0].name,
            "scriba.testing",
            "127.0.0.1",
            request.KEY,
            version,
            self._loop.clock.mono_ms(),
        )
        answer = self._handlers[request.KEY](self._node, ctx, request)
        while isinstance(answer, Deferred):
            answer = await answer.awaitable
        return answer

    async def _ask_loaded(self, request: Message, version: int, code: Any) -> Any:
        """The answer of a coordinator, once it has loaded; None where there is none yet."""
        while True:
            answer = await self._ask(request, version)
            error = code(answer)
            if error == ErrorCode.NOT_COORDINATOR:
                return None
            if error != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                _check(error, None)
                return answer
            await asyncio.sleep(LOADING_PAUSE_S)


def _check(code: int, text: str | None) -> None:
    if code:
        raise KafkaError(error_code(code), text or "")
