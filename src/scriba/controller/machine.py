"""The controller: requests about the cluster become records, records become the cluster.

`handle` looks at the speculative image, which has every record appended so far, and returns the
records that carry out a request together with its response; it changes nothing but the brokers'
sessions. The shell appends the records a slice at a time, and `replay`s each slice here before it
pulls the next (`plans`). A response leaves only when the
high watermark covers what had been appended when it was computed: a reader never sees a state that
a new controller would not know.

Never: answer from uncommitted state, let a request of an earlier broker incarnation change
anything, write a record that the image cannot fold.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from scriba.controller import brokers, configs, features, levels, topics
from scriba.controller.image import BROKER, BrokerImage, ClusterImage, Delta
from scriba.controller.partitions import elections, isr, reassignments, unclean
from scriba.controller.partitions.balancing import Balancer
from scriba.controller.partitions.preferred_leaders import LeaderRebalance
from scriba.controller.partitions.unclean import Choice, Question, TopicIdPartition
from scriba.controller.plans import Step
from scriba.controller.state import BrokerNews, Ends, Result, Session, State
from scriba.errors import ErrorCode, KafkaError
from scriba.instant import Instant
from scriba.settings import NodeSettings
from scriba.wire.messages import admin
from scriba.wire.messages import brokers as broker_messages
from scriba.wire.messages import configs as config_messages
from scriba.wire.messages.stored import NoOpRecord
from scriba.wire.schema import Message

TICK_MS: Final = 1000
"""The longest silence between two calls of a controller that runs."""

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
        self._filling = self.state.partitions.fill(image)
        self._heard_at = 0
        self._elections_due = False
        self._look_again_at = 0
        """When partitions without a leader are looked at, whatever happened to them."""
        self._rebalance = LeaderRebalance(self.state)
        self.balancer = Balancer(self.state)
        for name in image.topics_by_name:
            self._note_name(name)
        self._refresh_settings()

    @property
    def image(self) -> ClusterImage:
        return self.state.image

    @property
    def level(self) -> int:
        """Of the metadata: that of a new cluster where there is none yet."""
        return self.image.metadata_version or levels.NEWEST

    def prepare(self) -> Generator[None, None, None]:
        """Fills the indexes in short steps; what is left of it is done when needed."""
        return self._filling

    def activate(
        self, now: Instant, own_broker: int | None, own_incarnation: bytes | None = None
    ) -> list[Message]:
        """Takes over; returns what a new cluster must begin with, nothing for an old one.

        Brokers get a full session timeout to make contact. So does the broker of this controller's
        own process, if it is registered as what it is now. An earlier incarnation of it died with
        its process, and its successor need not wait for a session that nobody can hold.
        """
        features.check_supported(self.image.features, self.state.supported)
        features.check_enforced(self.image)
        self._fill()
        self._heard_at = now.mono_ms
        self._elections_due = True
        self._rebalance.begin(now)
        for broker in self.image.brokers.values():
            own = broker.id == own_broker
            if broker.fenced or (own and broker.incarnation_id != own_incarnation):
                continue
            session = Session(now.mono_ms, in_contact=own)
            if broker.in_controlled_shutdown:
                session.controlled_shutdown_offset = self.image.last_offset
            self.state.sessions[broker.id] = session
        return [] if self.image.metadata_version else features.bootstrap(self.state)

    def handle(self, request: Message, version: int, now: Instant) -> Result:
        """KafkaError when the request as a whole is refused."""
        handler = HANDLERS.get(type(request))
        if handler is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the controller does not serve {type(request).__name__}",
            )
        self._listen(now)
        return handler(self.state, request, version, now)

    def tick(self, now: Instant) -> Iterable[Step]:
        """Fences brokers that have been silent too long, else has a few preferred leaders come
        back. To be called at least once a second."""
        self._listen(now)
        silent = brokers.silent_brokers(self.state, now)
        if silent:
            return self._fence(silent, brokers.SILENT)
        if self._elections_due or now.mono_ms >= self._look_again_at:
            self._elections_due = False
            self._look_again_at = now.mono_ms + self._static.unclean_leader_election_interval_ms
            return elections.update_leaders(
                self.state, self.state.partitions.leaderless(self.image)
            )
        return self._rebalance.step(now)

    def broker_lost(
        self, broker_id: int, broker_epoch: int, since: Instant, now: Instant
    ) -> Iterable[Step]:
        """A broker is proven dead: its connection ended at `since` and its address refuses.

        One that was heard of later, or under another epoch, is not. A wrong guess costs an
        election: the broker is fenced, and unfenced with its next heartbeat.
        """
        self._listen(now)
        broker = self.image.brokers.get(broker_id)
        session = self.state.sessions.get(broker_id)
        if broker is None or broker.fenced or broker.epoch != broker_epoch:
            return ()
        if session is not None and session.last_contact > since.mono_ms:
            return ()
        return self._fence([broker], brokers.REFUSED)

    def broker_disconnected(self, broker_id: int, broker_epoch: int) -> None:
        """Its heartbeat connection ended; a successor with its directories may register now."""
        broker, session = self.image.brokers.get(broker_id), self.state.sessions.get(broker_id)
        if broker is not None and session is not None and broker.epoch == broker_epoch:
            session.in_contact = False

    def suspects(self) -> list[tuple[int, int]]:
        """Unfenced brokers without contact, with their epochs: they may have died unseen."""
        return [
            (broker.id, broker.epoch)
            for broker in self.image.brokers.values()
            if not broker.fenced
            and (session := self.state.sessions.get(broker.id)) is not None
            and not session.in_contact
        ]

    @property
    def offline_count(self) -> int:
        """Partitions that nobody leads."""
        return self.state.partitions.count_leaderless()

    def offline(self, limit: int) -> list[str]:
        """Some of them, with whom they wait for."""
        told = []
        for topic, index, partition in islice(self.state.partitions.leaderless(self.image), limit):
            trusted = partition.isr or partition.eligible_leader_replicas
            awaited = ", ".join(map(str, trusted or partition.last_known_elr)) or "nobody"
            told.append(f"{topic.name}-{index} (waits for {awaited})")
        return told

    def take_news(self) -> list[BrokerNews]:
        """Brokers that were fenced or unfenced since this was asked last."""
        news, self.state.news = self.state.news, []
        return news

    # ---- unclean elections ----

    @property
    def asks(self) -> bool:
        """Whether replicas are to be asked what they have."""
        return bool(self.state.unclean_due)

    def questions(self, request: admin.ElectLeadersRequest | None = None) -> list[Question]:
        """What to ask now: of what is due, or for an administrator's election."""
        if request is not None:
            return unclean.questions_of(self.state, request)
        return unclean.take_questions(self.state)

    def note_answers(
        self, asked: Iterable[Question], answers: Mapping[TopicIdPartition, Ends]
    ) -> None:
        """What replicas said, for the administrator's election that comes next."""
        unclean.note_answers(self.state, answers, asked)

    def elect_unclean(
        self,
        asked: Sequence[Question],
        answers: Mapping[TopicIdPartition, Ends],
        told: list[Choice],
        now: Instant,
    ) -> Iterable[Step]:
        """Elects by what replicas answered; `told` gets what each election loses."""
        self._listen(now)
        return unclean.elect(self.state, asked, answers, told)

    def note_position(self, broker_id: int, end_offset: int) -> None:
        """A broker has applied the metadata log up to there, which a heartbeat would tell later."""
        session = self.state.sessions.get(broker_id)
        if session is not None:
            session.metadata_offset = max(session.metadata_offset, end_offset - 1)

    def _fence(self, silent: list[BrokerImage], cause: str) -> Iterable[Step]:
        for broker in silent:
            self.state.sessions.pop(broker.id, None)
        return brokers.fence(self.state, silent, cause)

    def _listen(self, now: Instant) -> None:
        """Notes that the controller is awake.

        One that was itself held up (a stopped process, a stalled disk) cannot tell a silent broker
        from its own deafness, so the time in which it heard nothing counts against nobody.
        """
        deaf = now.mono_ms - self._heard_at - TICK_MS
        self._heard_at = now.mono_ms
        if deaf > 0:
            for session in self.state.sessions.values():
                session.last_contact += deaf

    def replay(self, records: Iterable[Message], base_offset: int, epoch: int) -> None:
        self._fill()
        delta = Delta()
        self.image.replay(records, base_offset, epoch, delta)
        self.state.partitions.apply(delta, self.image)
        unclean.note_leaderless(self.state, delta)
        for topic in delta.created.values():
            self._note_name(topic.name)
        for topic in delta.deleted.values():
            self.state.metric_forms.pop(topics.metric_form(topic.name) or "", None)
        brokers.note_news(self.state, delta.brokers)
        for broker_id in delta.brokers:
            if broker_id not in self.image.brokers:
                self.state.sessions.pop(broker_id, None)
        if any(resource_type == BROKER for resource_type, _ in delta.configs):
            self._refresh_settings()
        if delta.configs:
            # An unclean election may be allowed now.
            self._elections_due = True

    def _fill(self) -> None:
        for _ in self._filling:
            pass

    def _note_name(self, name: str) -> None:
        form = topics.metric_form(name)
        if form:
            self.state.metric_forms[form] = name

    def _refresh_settings(self) -> None:
        self.state.settings = effective_settings(self._static, self.image, self.state.node_id)
        self.state.described.clear()


def effective_settings(static: NodeSettings, image: ClusterImage, node_id: int) -> NodeSettings:
    """A node's settings with what was set for it and for all brokers at run time, as far as it can
    take that: a controller of another release may have let other settings pass."""
    cluster, own = image.config(BROKER, ""), image.config(BROKER, str(node_id))
    return static.following(cluster, own) if cluster or own else static


def idle_record() -> Message:
    """What an idle controller writes, so that others see the quorum alive (KIP-835)."""
    return NoOpRecord()
