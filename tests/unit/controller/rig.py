"""A controller without a quorum, what it appends is committed at once; requests to it."""

import random
from collections.abc import Callable, Iterable
from typing import Any

from scriba.controller.features import SUPPORTED
from scriba.controller.image import ELIGIBLE_VERSION, ClusterImage, Delta, PartitionImage
from scriba.controller.levels import encode
from scriba.controller.machine import Controller
from scriba.controller.partitions.elections import End
from scriba.controller.partitions.unclean import Choice, Question, TopicIdPartition
from scriba.controller.plans import Step, in_slices, twice
from scriba.controller.state import Ends
from scriba.errors import ErrorCode
from scriba.instant import Instant
from scriba.settings import NodeSettings
from scriba.wire.messages.admin import (
    AlterPartitionReassignmentsRequest,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from scriba.wire.messages.brokers import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectoryData,
    AssignReplicasToDirsRequestPartitionData,
    AssignReplicasToDirsRequestTopicData,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    BrokerRegistrationRequestFeature,
    BrokerRegistrationRequestListener,
    BrokerState,
)
from scriba.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
    FeatureUpdateKey,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    UpdateFeaturesRequest,
)
from scriba.wire.messages.stored import decode_metadata_record
from scriba.wire.schema import Message

WITHOUT_ELIGIBLE = {name: SUPPORTED[name] for name in SUPPORTED if name != ELIGIBLE_VERSION}
"""What a release before eligible leader replicas supported."""

SET, DELETE, APPEND, SUBTRACT = range(4)
"""What IncrementalAlterConfigs does with a value."""

CLUSTER_ID = "cluster-of-the-test---"


def uid(n: int) -> bytes:
    return n.to_bytes(16, "big")


class Cluster:
    """Requests go in, records are encoded, decoded and replayed; `now` moves only by hand."""

    def __init__(
        self,
        image: ClusterImage | None = None,
        supported: Any = SUPPORTED,
        own_broker: int | None = None,
        own_incarnation: bytes | None = None,
        **properties: str,
    ) -> None:
        self.now = Instant(1_000_000, 1_700_000_000_000)
        self.has: Callable[[int], End | None] = lambda broker: End(-1, 0)
        """What a broker answers that is asked what it has; None if it does not."""
        self.choices: list[Choice] = []
        """Unclean elections, with what they lose."""
        self.log: list[bytes] = []
        self._ids = 1000
        self._random = random.Random(5)
        given = {"node.id": "1", **{k.replace("_", "."): v for k, v in properties.items()}}
        self.controller = Controller(
            image or ClusterImage(),
            node_id=1,
            cluster_id=CLUSTER_ID,
            settings=NodeSettings.parse(given),
            uuid=self._uuid,
            below=self._random.randrange,
            supported=supported,
        )
        self.append(self.controller.activate(self.now, own_broker, own_incarnation))

    @property
    def image(self) -> ClusterImage:
        return self.controller.image

    def _uuid(self) -> bytes:
        self._ids += 1
        return uid(self._ids << 64)

    def append(self, plan: Iterable[Step]) -> list[Message]:
        appended: list[Message] = []
        for records in in_slices(plan):
            assert twice(records) is None, "decided without its own earlier record"
            encoded = [encode(record, self.controller.level) for record in records]
            decoded = [decode_metadata_record(data) for data in encoded]
            self.log += encoded
            self.controller.replay(decoded, self.image.end_offset, epoch=1)
            appended += decoded
        return appended

    def _asked(self, questions: list[Question]) -> dict[TopicIdPartition, Ends]:
        return {
            each.place: Ends(
                each.leader_epoch,
                {broker: end for broker in each.brokers if (end := self.has(broker)) is not None},
            )
            for each in questions
        }

    def ask(self) -> None:
        """Carries the elections out that wait for what replicas have, each once."""
        questions = self.controller.questions()
        answers = self._asked(questions)
        self.append(self.controller.elect_unclean(questions, answers, self.choices, self.now))

    def do(self, request: Message, version: int | None = None) -> Any:
        if isinstance(request, ElectLeadersRequest):
            questions = self.controller.questions(request)
            self.controller.note_answers(questions, self._asked(questions))
        result = self.controller.handle(
            request, request.VERSIONS.high if version is None else version, self.now
        )
        self.records = self.append(result.records)
        self.ask()
        return result.response

    def pass_time(self, ms: int) -> None:
        self.now = Instant(self.now.mono_ms + ms, self.now.wall_ms + ms)

    def wait(self, ms: int, *beating: int) -> None:
        """Lets time pass in which the controller runs, and hears the brokers named."""
        for _ in range(ms // 500):
            self.pass_time(500)
            for broker in beating:
                self.beat(broker)
            self.append(self.controller.tick(self.now))
            self.ask()

    def restarted(self, own_broker: int | None = None, **facts: Any) -> "Cluster":
        """Another controller that took over what this one's log holds."""
        return Cluster(self.reloaded(), own_broker=own_broker, **facts)

    def partition(self, topic: str = "t", index: int = 0) -> PartitionImage:
        return self.image.topics_by_name[topic].partitions[index]

    def reloaded(self) -> ClusterImage:
        """The image that the log alone gives."""
        image = ClusterImage()
        image.replay(map(decode_metadata_record, self.log), 0, 1, Delta())
        return image

    # ---- common requests ----

    def register(self, broker: int, **changes: Any) -> Any:
        facts: dict[str, Any] = {
            "broker_id": broker,
            "cluster_id": CLUSTER_ID,
            "incarnation_id": uid(broker << 80),
            "listeners": [
                BrokerRegistrationRequestListener(
                    name="PLAINTEXT", host=f"broker{broker}", port=9092, security_protocol=0
                )
            ],
            "features": self.ranges(self.controller.state.supported),
            "log_dirs": [uid((broker << 72) + 1)],
        }
        return self.do(BrokerRegistrationRequest(**(facts | changes)))

    def ranges(self, supported: Any) -> list[BrokerRegistrationRequestFeature]:
        return [
            BrokerRegistrationRequestFeature(
                name=name, min_supported_version=low, max_supported_version=high
            )
            for name, (low, high) in supported.items()
        ]

    def beat(self, broker: int, **changes: Any) -> Any:
        facts: dict[str, Any] = {
            "broker_id": broker,
            "broker_epoch": self.image.brokers[broker].epoch,
            "current_metadata_offset": self.image.last_offset,
        }
        return self.do(BrokerHeartbeatRequest(**(facts | changes)))

    def with_brokers(self, *brokers: int) -> "Cluster":
        for broker in brokers:
            self.register(broker)
            self.beat(broker)
        return self

    def create(
        self,
        name: str,
        partitions: int = 1,
        factor: int = 1,
        *,
        configs: dict[str, str | None] | None = None,
        assignments: dict[int, list[int]] | None = None,
        validate_only: bool = False,
    ) -> Any:
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=factor,
            configs=[CreatableTopicConfig(name=k, value=v) for k, v in (configs or {}).items()],
            assignments=[
                CreatableReplicaAssignment(partition_index=i, broker_ids=brokers)
                for i, brokers in (assignments or {}).items()
            ],
        )
        response = self.do(CreateTopicsRequest(topics=[topic], validate_only=validate_only))
        assert len(response.topics) == 1
        return response.topics[0]


def change(cluster: Any, kind: int, name: str, *ops: Any, validate_only: bool = False) -> Any:
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            IncrementalAlterConfigsRequestAlterableConfig(
                name=key, config_operation=operation, value=value
            )
            for key, operation, value in ops
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    response = cluster.do(request)
    return response.responses[0]


def replace(cluster: Any, kind: int, name: str, values: dict[str, str | None]) -> ErrorCode:
    resource = AlterConfigsRequestAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[AlterConfigsRequestAlterableConfig(name=k, value=v) for k, v in values.items()],
    )
    response = cluster.do(AlterConfigsRequest(resources=[resource]))
    return ErrorCode(response.responses[0].error_code)


def update(cluster: Any, kind: int = 1, version: int = 2, validate: bool = False, **to: int) -> Any:
    updates = [
        FeatureUpdateKey(feature=name.replace("_", "."), max_version_level=level)
        for name, level in to.items()
    ]
    for each in updates:
        if version:
            each.upgrade_type = kind
        else:
            each.allow_downgrade = kind != 1
    return cluster.do(
        UpdateFeaturesRequest(feature_updates=updates, validate_only=validate), version
    )


def alter(
    cluster: Any,
    isr: list[int],
    *,
    leader: int = 1,
    leader_epoch: int = 0,
    partition_epoch: int = 0,
    recovery: int = 0,
    index: int = 0,
    topic: bytes | None = None,
    epochs: dict[int, int] | None = None,
    version: int = 3,
) -> Any:
    brokers = cluster.image.brokers
    wanted = AlterPartitionRequestPartitionData(
        partition_index=index,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        leader_recovery_state=recovery,
    )
    if version >= 3:
        wanted.new_isr_with_epochs = [
            BrokerState(broker_id=b, broker_epoch=(epochs or {}).get(b, -1)) for b in isr
        ]
    else:
        wanted.new_isr = isr
    topic_id = cluster.image.topics_by_name["t"].id if topic is None else topic
    response = cluster.do(
        AlterPartitionRequest(
            broker_id=leader,
            broker_epoch=brokers[leader].epoch,
            topics=[AlterPartitionRequestTopicData(topic_id=topic_id, partitions=[wanted])],
        ),
        version,
    )
    return response.topics[0].partitions[0]


def assign(
    cluster: Any, broker: int, topic: str | bytes, directory: bytes, index: int = 0
) -> ErrorCode:
    id = cluster.image.topics_by_name[topic].id if isinstance(topic, str) else topic
    partition = AssignReplicasToDirsRequestPartitionData(partition_index=index)
    asked = AssignReplicasToDirsRequestTopicData(topic_id=id, partitions=[partition])
    response = cluster.do(
        AssignReplicasToDirsRequest(
            broker_id=broker,
            broker_epoch=cluster.image.brokers[broker].epoch,
            directories=[AssignReplicasToDirsRequestDirectoryData(id=directory, topics=[asked])],
        )
    )
    return ErrorCode(response.directories[0].topics[0].partitions[0].error_code)


def reassign(
    cluster: Any,
    replicas: list[int] | None,
    topic: str = "t",
    index: int = 0,
    factor_may_change: bool = True,
) -> Any:
    asked = ReassignablePartition(partition_index=index, replicas=replicas)
    response = cluster.do(
        AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=topic, partitions=[asked])],
            allow_replication_factor_change=factor_may_change,
        )
    )
    return response.responses[0].partitions[0]
