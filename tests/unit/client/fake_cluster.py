"""Brokers that keep Kafka's promises for a few topics, and break them where a test says so.

They run on a simulated network in virtual time, so a test of a delivery time-out takes no time. A
hook for an API is given the next requests of it: it can answer itself, hang up, stay silent, or
pass them on. Idempotent producers are checked as a broker checks them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final, TypeVar

from scriba.client.model import TopicPartition
from scriba.errors import ErrorCode
from scriba.records.batch import BatchHeader, next_sequence, read_header, stamp
from scriba.runtime.ports import EOF, WOULD_BLOCK, Stream
from scriba.testing.sim.world.net import NetFaults
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from scriba.wire.apis import API, ApiKey
from scriba.wire.frame import decode_request_header, encode_response
from scriba.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponseEpochEndOffset,
    OffsetForLeaderTopicResult,
    PartitionData,
)
from scriba.wire.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from scriba.wire.messages.produce import LeaderIdAndEpoch as ProduceLeader
from scriba.wire.messages.produce import NodeEndpoint as ProduceEndpoint
from scriba.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from scriba.wire.messages.txn import InitProducerIdRequest, InitProducerIdResponse
from scriba.wire.schema import Message

T = TypeVar("T")

PORT: Final = 9092
HANG_UP: Final = object()
SILENCE: Final = object()
PASS: Final = object()

Hook = Callable[[int, Any], object]
"""(broker, request) -> a message, HANG_UP, SILENCE or PASS."""

_LENGTH: Final = Struct(">i")
_REMEMBERED: Final = 5


@dataclass
class Log:
    """One partition."""

    leader: int
    epoch: int = 0
    start: int = 0
    end: int = 0
    batches: list[tuple[BatchHeader, bytes]] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """(epoch, first offset)."""
    owners: dict[int, tuple[int, deque[tuple[int, int, int]]]] = field(default_factory=dict)
    """Producer id -> (epoch, latest (first sequence, last sequence, offset))."""
    aborted: list[tuple[int, int]] = field(default_factory=list)
    limit: int = 1 << 20
    nearby: int = -1

    def append(self, data: bytes) -> tuple[ErrorCode, int]:
        header = read_header(data)
        if len(data) > self.limit:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        if header.producer_id >= 0:
            error, known = self._sequence_error(header)
            if error or known is not None:
                return error, -1 if known is None else known
        offset = self.write(data)
        return ErrorCode.NONE, offset

    def write(self, data: bytes) -> int:
        batch = bytearray(data)
        stamp(batch, 0, self.end, self.epoch)
        header = read_header(batch)
        self.batches.append((header, bytes(batch)))
        self.end = header.next_offset
        return header.base_offset

    def _sequence_error(self, header: BatchHeader) -> tuple[ErrorCode, int | None]:
        first, last = header.base_sequence, header.last_sequence
        epoch, recent = self.owners.get(header.producer_id, (-1, deque(maxlen=_REMEMBERED)))
        if header.producer_epoch < epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, None
        if header.producer_epoch > epoch:
            if epoch >= 0 and first != 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None
            recent = deque(maxlen=_REMEMBERED)
        else:
            for known_first, known_last, offset in recent:
                if (known_first, known_last) == (first, last):
                    return ErrorCode.NONE, offset
            if first != next_sequence(recent[-1][1]):
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, None
        recent.append((first, last, self.end))
        self.owners[header.producer_id] = (header.producer_epoch, recent)
        return ErrorCode.NONE, None

    def read(self, offset: int, most: int) -> bytes:
        found = b""
        for header, data in self.batches:
            if header.next_offset > offset:
                if found and len(found) + len(data) > most:
                    break
                found += data
        return found

    def elect(self, leader: int) -> None:
        self.leader = leader
        self.epoch += 1
        self.epochs.append((self.epoch, self.end))

    def truncate(self, offset: int) -> None:
        """Loses what is at and after an offset, as in an unclean election."""
        self.batches = [(h, d) for h, d in self.batches if h.next_offset <= offset]
        self.end = self.batches[-1][0].next_offset if self.batches else self.start
        self.epochs = [(e, o) for e, o in self.epochs if o <= self.end]

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        known = [e for e, _ in self.epochs if e <= epoch]
        later = [o for e, o in self.epochs if e > epoch]
        return (max(known) if known else -1), (min(later) if later else self.end)


@dataclass
class Topic:
    id: bytes
    logs: list[Log]


class FakeCluster:
    def __init__(self, brokers: int = 1, seed: int = 1, faults: NetFaults | None = None) -> None:
        self.sim = SimWorld(seed, net_faults=faults)
        self.brokers = list(range(1, brokers + 1))
        self.topics: dict[str, Topic] = {}
        self.hooks: dict[int, deque[Hook]] = {}
        self.seen: list[tuple[int, Message, int]] = []
        """Every request but ApiVersions: broker, message, version."""
        self.top_versions: dict[int, int] = {}
        self.sessions: dict[int, tuple[int, dict[TopicPartition, FetchPartition]]] = {}
        self.producer_ids = 100
        self.cut_answer_at: dict[int, int] = {}
        """API -> bytes of its next answer after which the connection is cut."""
        self.cut_request_at: dict[int, int] = {}
        """API -> bytes of its next request after which the connection is cut."""
        self.processes = {
            broker: self.sim.host(f"b{broker}").start(self._serving(broker))
            for broker in self.brokers
        }

    # -- for tests -------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        return ",".join(f"b{broker}:{PORT}" for broker in self.brokers)

    def topic(self, name: str, partitions: int = 1) -> list[Log]:
        logs = [Log(self.brokers[n % len(self.brokers)]) for n in range(partitions)]
        self.topics[name] = Topic(bytes([len(self.topics) + 1]) * 16, logs)
        return logs

    def run(self, work: Callable[[ProcessWorld], Coroutine[Any, Any, T]]) -> T:
        """Runs a client on a machine of its own; an error in any part fails it."""
        result: list[T] = []

        async def client(world: ProcessWorld) -> None:
            result.append(await work(world))

        async def main() -> None:
            await self.sim.host("client").start(client).task

        self.sim.run(main())
        return result[0]

    def next(self, key: ApiKey, *hooks: Hook) -> None:
        """Hands the next requests of an API to these hooks, one each."""
        self.hooks.setdefault(key, deque()).extend(hooks)

    def requests(self, kind: type[Message]) -> list[Any]:
        return [message for _, message, _ in self.seen if isinstance(message, kind)]

    def stop(self, broker: int) -> None:
        self.processes[broker].kill()

    def start(self, broker: int) -> None:
        self.processes[broker] = self.sim.host(f"b{broker}").start(self._serving(broker))

    # -- the wire --------------------------------------------------------------------------------

    def _serving(self, broker: int) -> Callable[[ProcessWorld], Coroutine[Any, Any, None]]:
        async def serve(world: ProcessWorld) -> None:
            tasks: list[asyncio.Task[None]] = []

            def accept(stream: Stream) -> None:
                tasks.append(asyncio.ensure_future(_Wire(stream).serve(self, broker)))

            world.net.listen("", PORT, accept)
            await asyncio.get_running_loop().create_future()

        return serve

    async def handle(self, broker: int, key: int, version: int, request: Any) -> object:
        if key != ApiKey.API_VERSIONS:
            self.seen.append((broker, request, version))
        hooks = self.hooks.get(key)
        if hooks:
            answer = hooks.popleft()(broker, request)
            if answer is not PASS:
                return answer
        match request:
            case ApiVersionsRequest():
                return self._api_versions()
            case MetadataRequest():
                return self._metadata(request)
            case InitProducerIdRequest():
                self.producer_ids += 1
                return InitProducerIdResponse(producer_id=self.producer_ids, producer_epoch=0)
            case ProduceRequest():
                return self._produce(broker, request, version)
            case ListOffsetsRequest():
                return self._list_offsets(broker, request)
            case OffsetForLeaderEpochRequest():
                return self._epoch_ends(request)
            case FetchRequest():
                return await self._fetch(broker, request, version)
        raise AssertionError(f"not served here: {request}")

    # -- APIs ------------------------------------------------------------------------------------

    def _api_versions(self) -> ApiVersionsResponse:
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(
                    api_key=api.key,
                    min_version=api.min_version,
                    max_version=self.top_versions.get(api.key, api.max_version),
                )
                for api in API.values()
            ]
        )

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        names = [t.name or "" for t in request.topics or []]
        return MetadataResponse(
            cluster_id="fake",
            controller_id=self.brokers[0],
            brokers=[
                MetadataResponseBroker(node_id=b, host=f"b{b}", port=PORT) for b in self.brokers
            ],
            topics=[self._describe(name) for name in names],
        )

    def _describe(self, name: str) -> MetadataResponseTopic:
        topic = self.topics.get(name)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return MetadataResponseTopic(name=name, error_code=code)
        return MetadataResponseTopic(
            name=name,
            topic_id=topic.id,
            partitions=[
                MetadataResponsePartition(
                    partition_index=n,
                    leader_id=log.leader,
                    leader_epoch=log.epoch,
                    replica_nodes=self.brokers,
                    isr_nodes=self.brokers,
                )
                for n, log in enumerate(topic.logs)
            ],
        )

    def name_of(self, topic_id: bytes) -> str:
        return next((name for name, t in self.topics.items() if t.id == topic_id), "")

    def _produce(self, broker: int, request: ProduceRequest, version: int) -> ProduceResponse:
        responses = []
        for said in request.topic_data:
            name = self.name_of(said.topic_id) if version >= 13 else said.name
            answers = []
            for p in said.partition_data:
                assert isinstance(p.records, memoryview)
                answers.append(self._append(broker, name, p.index, bytes(p.records)))
            responses.append(
                TopicProduceResponse(
                    name=said.name, topic_id=said.topic_id, partition_responses=answers
                )
            )
        nodes = [ProduceEndpoint(node_id=b, host=f"b{b}", port=PORT) for b in self.brokers]
        return ProduceResponse(responses=responses, node_endpoints=nodes if version >= 10 else [])

    def _append(self, broker: int, name: str, index: int, data: bytes) -> PartitionProduceResponse:
        topic = self.topics.get(name)
        if topic is None:
            return PartitionProduceResponse(index=index, error_code=ErrorCode.UNKNOWN_TOPIC_ID)
        log = topic.logs[index]
        if log.leader != broker:
            return PartitionProduceResponse(
                index=index,
                error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                current_leader=ProduceLeader(leader_id=log.leader, leader_epoch=log.epoch),
            )
        code, offset = log.append(data)
        return PartitionProduceResponse(index=index, error_code=code, base_offset=offset)

    def _list_offsets(self, broker: int, request: ListOffsetsRequest) -> ListOffsetsResponse:
        topics = []
        for said in request.topics:
            answers = []
            for p in said.partitions:
                log = self.topics[said.name].logs[p.partition_index]
                answer = ListOffsetsPartitionResponse(partition_index=p.partition_index)
                if log.leader != broker:
                    answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                elif p.timestamp == -1:
                    answer.offset, answer.leader_epoch = log.end, log.epoch
                elif p.timestamp == -2:
                    answer.offset, answer.leader_epoch = log.start, log.epochs[0][0]
                else:
                    for header, _ in log.batches:
                        if header.max_timestamp >= p.timestamp:
                            answer.offset = header.base_offset
                            answer.timestamp = header.max_timestamp
                            answer.leader_epoch = header.leader_epoch
                            break
                answers.append(answer)
            topics.append(ListOffsetsTopicResponse(name=said.name, partitions=answers))
        return ListOffsetsResponse(topics=topics)

    def _epoch_ends(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        topics = []
        for said in request.topics:
            answers = []
            for p in said.partitions:
                epoch, end = self.topics[said.topic].logs[p.partition].epoch_end(p.leader_epoch)
                answers.append(
                    OffsetForLeaderEpochResponseEpochEndOffset(
                        partition=p.partition, leader_epoch=epoch, end_offset=end
                    )
                )
            topics.append(OffsetForLeaderTopicResult(topic=said.topic, partitions=answers))
        return OffsetForLeaderEpochResponse(topics=topics)

    async def _fetch(self, broker: int, request: FetchRequest, version: int) -> FetchResponse:
        wanted, session = self._session(request, version)
        if isinstance(wanted, ErrorCode):
            return FetchResponse(error_code=wanted)
        deadline = asyncio.get_running_loop().time() + request.max_wait_ms / 1000
        while True:
            found = {
                where: data
                for where, p in wanted.items()
                if (data := self._read(broker, where, p, request)) is not None
            }
            left = deadline - asyncio.get_running_loop().time()
            if found or left <= 0:
                break
            await asyncio.sleep(min(left, 0.01))
        topics: dict[str, FetchableTopicResponse] = {}
        for (name, _), data in found.items():
            entry = topics.setdefault(
                name, FetchableTopicResponse(topic=name, topic_id=self.topics[name].id)
            )
            entry.partitions.append(data)
        return FetchResponse(session_id=session, responses=list(topics.values()))

    def _session(
        self, request: FetchRequest, version: int
    ) -> tuple[dict[TopicPartition, FetchPartition] | ErrorCode, int]:
        def named(topic: Any) -> str:
            return self.name_of(topic.topic_id) if version >= 13 else topic.topic

        asked = {
            TopicPartition(named(t), p.partition): p for t in request.topics for p in t.partitions
        }
        if request.session_epoch <= 0:
            self.sessions.pop(request.session_id, None)
            if request.session_epoch < 0:
                return asked, 0
            session = 1 + max(self.sessions, default=0)
            self.sessions[session] = (1, asked)
            return asked, session
        known = self.sessions.get(request.session_id)
        if known is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0
        epoch, partitions = known
        if epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0
        gone = {
            TopicPartition(named(t), p) for t in request.forgotten_topics_data for p in t.partitions
        }
        partitions = {at: p for at, p in {**partitions, **asked}.items() if at not in gone}
        self.sessions[request.session_id] = (epoch + 1, partitions)
        return partitions, request.session_id

    def _read(
        self, broker: int, where: TopicPartition, p: FetchPartition, request: FetchRequest
    ) -> PartitionData | None:
        """What there is to say of a partition now; None while there is nothing."""
        log = self.topics[where.topic].logs[where.partition]
        said = PartitionData(
            partition_index=where.partition,
            high_watermark=log.end,
            last_stable_offset=log.end,
            log_start_offset=log.start,
            records=b"",
            aborted_transactions=[],
        )
        if log.leader != broker and log.nearby != broker:
            said.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            said.current_leader = LeaderIdAndEpoch(leader_id=log.leader, leader_epoch=log.epoch)
        elif p.current_leader_epoch >= 0 and p.current_leader_epoch < log.epoch:
            said.error_code = ErrorCode.FENCED_LEADER_EPOCH
        elif not log.start <= p.fetch_offset <= log.end:
            said.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        elif log.leader == broker and request.rack_id and log.nearby >= 0:
            said.preferred_read_replica = log.nearby
        else:
            data = log.read(p.fetch_offset, p.partition_max_bytes)
            if not data:
                return None
            said.records = data
            if request.isolation_level:
                said.aborted_transactions = [
                    AbortedTransaction(producer_id=owner, first_offset=first)
                    for owner, first in log.aborted
                ]
        return said


class _Wire:
    """One connection, as a broker sees it: one request after the other."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.buffer = bytearray()
        self.more = asyncio.Event()
        self.ended = False
        self.view = memoryview(bytearray(1 << 16))
        stream.want(self._on_readable, None)

    def _on_readable(self) -> None:
        try:
            got = self.stream.recv_into(self.view)
        except OSError:
            got = EOF
        if got == EOF:
            self.ended = True
            self.stream.close()
        elif got != WOULD_BLOCK:
            self.buffer += self.view[:got]
        self.more.set()

    async def frame(self, cluster: FakeCluster) -> bytes | None:
        while not self.ended:
            if len(self.buffer) >= 6 and cluster.cut_request_at:
                key = int.from_bytes(self.buffer[4:6], "big")
                limit = cluster.cut_request_at.get(key)
                if limit is not None and len(self.buffer) >= limit:
                    del cluster.cut_request_at[key]
                    self.stream.close()
                    return None
            if len(self.buffer) >= 4:
                (size,) = _LENGTH.unpack_from(self.buffer)
                if len(self.buffer) >= 4 + size:
                    frame = bytes(self.buffer[4 : 4 + size])
                    del self.buffer[: 4 + size]
                    return frame
            self.more.clear()
            await self.more.wait()
        return None

    async def send(self, data: bytes) -> None:
        try:
            while data:
                done = self.stream.send([data])
                if done == WOULD_BLOCK:
                    await asyncio.sleep(0.001)
                else:
                    data = data[done:]
        except OSError:
            self.ended = True

    async def serve(self, cluster: FakeCluster, broker: int) -> None:
        while (frame := await self.frame(cluster)) is not None:
            header, start = decode_request_header(frame)
            api = API[header.api_key]
            request, _ = api.request.decode_from(frame, start, header.api_version)
            answer = await cluster.handle(broker, header.api_key, header.api_version, request)
            if answer is HANG_UP:
                self.stream.close()
                return
            if answer is SILENCE or (isinstance(request, ProduceRequest) and request.acks == 0):
                continue
            assert isinstance(answer, Message)
            data = encode_response(answer, header.api_version, header.correlation_id)
            framed = _LENGTH.pack(len(data)) + bytes(data)
            limit = cluster.cut_answer_at.pop(header.api_key, None)
            await self.send(framed[:limit])
            if limit is not None:
                self.stream.close()
                return
