"""The controller: requests about the cluster become records, records become the cluster.

`handle` looks at the speculative image, which has every record appended so far, and returns the
records that carry out a request together with its response; it changes nothing but the brokers'
sessions. The shell appends the records, then `replay`s them here. A response leaves only when the
high watermark covers what had been appended when it was computed: a reader never sees a state that
a new controller would not know.

Never: answer from uncommitted state, let a request of an earlier broker incarnation change
anything, write a record that the image cannot fold.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from scriba.controller import brokers, configs, elections, features, isr, reassignments, topics
from scriba.controller.image import BROKER, ClusterImage, Delta
from scriba.controller.state import Result, Session, State
from scriba.errors import ErrorCode, KafkaError
from scriba.instant import Instant
from scriba.settings import NodeSettings
from scriba.wire.messages import admin
from scriba.wire.messages import brokers as broker_messages
from scriba.wire.messages import configs as config_messages
from scriba.wire.messages.stored import (
    BrokerRegistrationChangeRecord,
    NoOpRecord,
    encode_metadata_record,
)
from scriba.wire.schema import Message

Handler = Callable[[State, Any, int, Instant], Result]

HANDLERS: Final[Mapping[type[Message], Handler]] = {
    admin.CreateTopicsRequest: topics.create_topics,
    admin.DeleteTopicsRequest: topics.delete_topics,
    admin.CreatePartitionsRequest: topics.create_partitions,
    admin.ElectLeadersRequest: elections.elect_leaders,
    admin.AlterPartitionReassignmentsRequest: reassignments.alter_partition_reassignments,
    admin.ListPartitionReassignmentsRequest: reassignments.list_partition_reassignments,
    config_messages.AlterConfigsRequest: configs.alter_configs,
    config_messages.IncrementalAlterConfigsRequest: configs.incremental_alter_configs,
    config_messages.UpdateFeaturesRequest: features.update_features,
    broker_messages.BrokerRegistrationRequest: brokers.register_broker,
    broker_messages.BrokerHeartbeatRequest: brokers.heartbeat,
    broker_messages.UnregisterBrokerRequest: brokers.unregister_broker,
    broker_messages.ControllerRegistrationRequest: brokers.register_controller,
    broker_messages.AlterPartitionRequest: isr.alter_partition,
    broker_messages.AssignReplicasToDirsRequest: isr.assign_replicas_to_dirs,
    broker_messages.AllocateProducerIdsRequest: isr.allocate_producer_ids,
}


class Controller:
    """The active controller's machine, from the moment it leads until it no longer does."""

    def __init__(
        self,
        image: ClusterImage,
        *,
        node_id: int,
        cluster_id: str,
        settings: NodeSettings,
        uuid: Callable[[], bytes],
        below: Callable[[int], int],
        supported: Mapping[str, tuple[int, int]] = features.SUPPORTED,
    ) -> None:
        self._static = settings
        self.state = State(
            node_id=node_id,
            cluster_id=cluster_id,
            settings=settings,
            supported=supported,
            uuid=uuid,
            below=below,
            image=image,
        )
        self._last_tick = 0
        for name in image.topics_by_name:
            self._note_name(name)
        self._refresh_settings()

    @property
    def image(self) -> ClusterImage:
        return self.state.image

    def activate(self, now: Instant, own_broker: int | None) -> list[Message]:
        """Takes over; returns what a new cluster must begin with, nothing for an old one.

        Brokers get a full session timeout to make contact. The broker that lived in this
        controller's own process gets none: it died with the process, and its successor need not
        wait for a session that nobody can hold.
        """
        features.check_supported(self.image.features, self.state.supported)
        self._last_tick = now.mono_ms
        for broker in self.image.brokers.values():
            if not broker.fenced and broker.id != own_broker:
                self.state.sessions[broker.id] = Session(now.mono_ms)
        return [] if self.image.metadata_version else features.bootstrap(self.state.supported)

    def handle(self, request: Message, version: int, now: Instant) -> Result:
        """KafkaError when the request as a whole is refused."""
        handler = HANDLERS.get(type(request))
        if handler is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the controller does not serve {type(request).__name__}",
            )
        return handler(self.state, request, version, now)

    def tick(self, now: Instant) -> Iterable[Message]:
        """Fences a broker that has been silent too long. To be called at least once a second.

        A controller that was itself held up (a stopped process, a stalled disk) cannot tell a
        silent broker from its own deafness, so after a gap everybody gets a fresh session.
        """
        gap, self._last_tick = now.mono_ms - self._last_tick, now.mono_ms
        if gap > self.state.settings.broker_session_timeout_ms // 2:
            for session in self.state.sessions.values():
                session.last_contact = now.mono_ms
            return ()
        broker = brokers.stale_broker(self.state, now)
        if broker is None:
            return ()
        del self.state.sessions[broker.id]
        return brokers.fence(self.state, broker)

    def replay(self, records: Iterable[Message], base_offset: int, epoch: int) -> None:
        delta = Delta()
        self.image.replay(records, base_offset, epoch, delta)
        for topic in delta.created.values():
            self._note_name(topic.name)
        for topic in delta.deleted.values():
            self.state.metric_forms.pop(topics.metric_form(topic.name) or "", None)
        for broker_id in delta.brokers:
            if broker_id not in self.image.brokers:
                self.state.sessions.pop(broker_id, None)
        if any(resource_type == BROKER for resource_type, _ in delta.configs):
            self._refresh_settings()

    def _note_name(self, name: str) -> None:
        form = topics.metric_form(name)
        if form:
            self.state.metric_forms[form] = name

    def _refresh_settings(self) -> None:
        self.state.settings = effective_settings(self._static, self.image, self.state.node_id)
        self.state.described.clear()


def effective_settings(static: NodeSettings, image: ClusterImage, node_id: int) -> NodeSettings:
    """A node's settings with what was set for it and for all brokers at run time."""
    cluster, own = image.config(BROKER, ""), image.config(BROKER, str(node_id))
    return static.with_dynamic(cluster, own) if cluster or own else static


def idle_record() -> Message:
    """What an idle controller writes, so that others see the quorum alive (KIP-835)."""
    return NoOpRecord()


def encode(record: Message) -> bytes:
    """A record as it stands in the log, at the version Kafka would write."""
    if type(record) is BrokerRegistrationChangeRecord:
        if record.cordoned_log_dirs is not None:
            version = 3
        elif record.log_dirs:
            version = 2
        else:
            version = 1 if record.in_controlled_shutdown else 0
        return encode_metadata_record(record, version)
    return encode_metadata_record(record)
