"""Whatever happens to brokers, a leader that is not flagged has every acknowledged record.

One partition on four brokers, with a model of its logs beside the controller: a record counts as
acknowledged when every in-sync replica has it and there are `min.insync.replicas` of them. A broker
that crashes loses all it has, the worst that a power cut can do; one that shuts down keeps it.
"""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scriba.controller.image import NO_LEADER, RECOVERING, TOPIC, PartitionImage
from scriba.controller.partitions.elections import End
from scriba.errors import ErrorCode
from scriba.wire.messages.admin import ElectLeadersRequest
from scriba.wire.messages.brokers import UnregisterBrokerRequest
from tests.unit.controller.indexed import BROKERS, check
from tests.unit.controller.rig import SET, Cluster, alter, change, reassign

brokers = st.sampled_from(BROKERS)


class Elections(RuleBasedStateMachine):
    @initialize(min_isr=st.integers(1, 3), unclean=st.booleans())
    def found(self, min_isr: int, unclean: bool) -> None:
        self.cluster = Cluster().with_brokers(*BROKERS)
        configs: dict[str, str | None] = {
            "min.insync.replicas": str(min_isr),
            "unclean.leader.election.enable": str(unclean).lower(),
        }
        self.cluster.create("t", -1, -1, assignments={0: [2, 1, 3]}, configs=configs)
        self.min_isr = min_isr
        self.unclean = unclean
        self.forced = False
        self.moved = False
        self.alive = dict.fromkeys(BROKERS, True)
        self.logs = dict.fromkeys(BROKERS, 0)
        self.acknowledged = 0
        self.before = self.cluster.partition()
        self.cluster.has = self._has

    # ---- what brokers do ----

    def _has(self, broker: int) -> End | None:
        return End(0, self.logs[broker]) if self.alive[broker] else None

    def _produce(self) -> None:
        """Clients write whenever they can."""
        partition = self.cluster.partition()
        writes = partition.leader != NO_LEADER and all(self.alive[b] for b in partition.isr)
        if writes and len(partition.isr) >= min(self.min_isr, len(partition.replicas)):
            self.acknowledged += 1
            for broker in partition.isr:
                self.logs[broker] = self.acknowledged

    @rule(follower=brokers, joins=st.booleans())
    def isr_changes(self, follower: int, joins: bool) -> None:
        """A follower that has caught up joins the in-sync set, one that lags is dropped."""
        partition = self.cluster.partition()
        leader = partition.leader
        if leader in (NO_LEADER, follower) or not self.alive[leader]:
            return
        if follower not in partition.replicas or (follower in partition.isr) == joins:
            return
        epochs = {broker.id: broker.epoch for broker in self.cluster.image.brokers.values()}
        if joins and not self.alive[follower]:
            return
        isr = [b for b in partition.isr if b != follower] + [follower] * joins
        answer = alter(
            self.cluster,
            isr,
            leader=leader,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            epochs=epochs,
        )
        # A reassignment that is done by this may give the partition another leader.
        if joins and answer.error_code in (ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED):
            self.logs[follower] = self.logs[leader]

    @rule(broker=brokers)
    def heartbeat(self, broker: int) -> None:
        if self.alive[broker]:
            self.cluster.beat(broker)

    @rule(broker=brokers)
    def shut_down(self, broker: int) -> None:
        if not self.alive[broker]:
            return
        for _ in range(2):
            for other in BROKERS:
                self.cluster.controller.note_position(other, self.cluster.image.end_offset)
            self.cluster.beat(broker, want_shut_down=True)
            self.nothing_is_lost_unflagged()
        assert self.cluster.image.brokers[broker].fenced
        self._register(broker, self.cluster.image.brokers[broker].epoch)

    @rule(broker=brokers, noticed=st.booleans())
    def crash(self, broker: int, noticed: bool) -> None:
        """The address refuses where it is noticed; otherwise nobody knows yet."""
        cluster = self.cluster
        self.alive[broker] = False
        if noticed:
            epoch = cluster.image.brokers[broker].epoch
            lost = cluster.controller.broker_lost(broker, epoch, cluster.now, cluster.now)
            cluster.append(lost)
            cluster.ask()

    @rule(broker=brokers, unfenced=st.booleans())
    def return_from_a_crash(self, broker: int, unfenced: bool) -> None:
        if not self.alive[broker]:
            self.logs[broker] = 0
            self._register(broker, -1)
            self.alive[broker] = True
            self.nothing_is_lost_unflagged()
            if unfenced:
                self.cluster.beat(broker)

    def _register(self, broker: int, previous: int) -> None:
        known = self.cluster.image.brokers[broker]
        self.cluster.controller.broker_disconnected(broker, known.epoch)
        incarnation = self.cluster.controller.state.uuid()
        self.cluster.register(broker, incarnation_id=incarnation, previous_broker_epoch=previous)

    @rule(broker=brokers)
    def unregister_and_return(self, broker: int) -> None:
        self.cluster.do(UnregisterBrokerRequest(broker_id=broker))
        self.nothing_is_lost_unflagged()
        self.cluster.register(broker, incarnation_id=self.cluster.controller.state.uuid())
        self.logs[broker], self.alive[broker] = 0, True

    @rule()
    def all_fall_silent(self) -> None:
        self.cluster.wait(9_500)

    # ---- what administrators do ----

    @rule(min_isr=st.integers(1, 3))
    def min_isr_is_set(self, min_isr: int) -> None:
        change(self.cluster, TOPIC, "t", ("min.insync.replicas", SET, str(min_isr)))
        self.min_isr = min_isr

    @rule(kind=st.integers(0, 1))
    def leaders_are_elected(self, kind: int) -> None:
        self.forced = kind == 1
        self.cluster.do(ElectLeadersRequest(election_type=kind, topic_partitions=None))

    @rule(wanted=st.lists(brokers, min_size=1, max_size=3, unique=True))
    def replicas_are_reassigned(self, wanted: list[int]) -> None:
        before = self.cluster.partition()
        self.moved = True
        if not reassign(self.cluster, wanted).error_code:
            after = self.cluster.partition()
            assert after.target == tuple(wanted)
            if after.is_reassigning:
                assert {*after.original} == {*before.original}

    @rule()
    def reassignment_is_cancelled(self) -> None:
        before = self.cluster.partition()
        self.moved = True
        if not reassign(self.cluster, None).error_code:
            assert self.cluster.partition().replicas == before.original

    @rule()
    def controller_changes(self) -> None:
        again = self.cluster.restarted()
        assert again.image == self.cluster.image
        again.now = self.cluster.now
        again._ids = self.cluster._ids
        again.log = self.cluster.log + again.log
        again.has = self._has
        again.controller.activate(again.now, None)
        self.cluster = again

    # ---- what must hold ----

    @invariant()
    def nothing_is_lost_unflagged(self) -> None:
        self._unflagged_leaders_have_everything()
        self._sets_make_sense()
        check(self.cluster)
        self._produce()

    def _unflagged_leaders_have_everything(self) -> None:
        before, now = self.before, self.cluster.partition()
        self.before, forced, self.forced = now, self.forced, False
        moved, self.moved = self.moved, False  # then nobody is asked
        for broker in BROKERS:
            if broker not in now.replicas:
                self.logs[broker] = 0  # its files are gone
        self._epochs_rise(before, now)
        if now.leader == before.leader or now.leader == NO_LEADER:
            return
        flagged = now.leader_recovery_state == RECOVERING and now.isr == (now.leader,)
        trusted = {*before.isr, *before.eligible_leader_replicas}
        if flagged and now.leader not in trusted:
            last = before.last_known_elr == (now.leader,)
            assert last or self.unclean or forced, "nobody allowed it"
            if not last and not moved:
                asked = [b for b in now.replicas if self.alive[b] and self._is_active(b)]
                assert self.logs[now.leader] == max(self.logs[b] for b in asked)
            self.acknowledged = self.logs[now.leader]
        else:
            assert self.logs[now.leader] == self.acknowledged

    def _is_active(self, broker: int) -> bool:
        known = self.cluster.image.brokers.get(broker)
        return known is not None and known.active

    def _epochs_rise(self, before: PartitionImage, now: PartitionImage) -> None:
        if now != before:
            assert now.partition_epoch > before.partition_epoch
        if now.leader != before.leader:
            assert now.leader_epoch > before.leader_epoch

    def _sets_make_sense(self) -> None:
        now = self.cluster.partition()
        eligible = now.eligible_leader_replicas
        assert {*now.isr, *eligible} <= {*now.replicas}
        assert not {*now.isr} & {*eligible}
        assert not eligible or len(now.isr) < min(self.min_isr, len(now.replicas))
        assert {*now.adding_replicas, *now.removing_replicas} <= {*now.replicas}
        assert not now.is_reassigning or not {*now.target} <= {*now.isr}, "it is done"
        assert now.target
        assert now.original
        assert now.leader == NO_LEADER or now.leader in now.isr
        assert now.leader == NO_LEADER or not now.last_known_elr
        assert now.isr or eligible or now.last_known_elr, "somebody is awaited"
        assert all(self.logs[b] == self.acknowledged for b in now.isr if self.alive[b])
        fenced = {b.id for b in self.cluster.image.brokers.values() if b.fenced}
        assert not fenced & {*now.isr}

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            assert self.cluster.reloaded() == self.cluster.image


TestElections = Elections.TestCase
TestElections.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@given(st.lists(brokers, min_size=1, max_size=4, unique=True))
@settings(deadline=None)
def test_fencing_takes_out_those_fenced_and_nobody_else(fenced: list[int]) -> None:
    cluster = Cluster().with_brokers(*BROKERS)
    cluster.create("t", 8, 3)
    others = [broker for broker in BROKERS if broker not in fenced]
    before = dict(cluster.image.topics_by_name["t"].partitions)
    cluster.wait(9_000, *others)
    for index, now in cluster.image.topics_by_name["t"].partitions.items():
        assert now.isr == tuple(b for b in before[index].isr if b not in fenced)
        assert now.leader == before[index].leader or before[index].leader in fenced
        assert now.leader in (now.isr or (NO_LEADER,))


def test_elections_are_not_found_in_a_state_nobody_may_leave(trio: Any) -> None:
    """Whoever is awaited and comes back in good order leads."""
    trio.create("t", -1, -1, assignments={0: [1, 2, 3]}, configs={"min.insync.replicas": "2"})
    for broker in (1, 2, 3):
        trio.beat(broker, want_fence=True)
    for broker in trio.partition().eligible_leader_replicas:
        again = trio.restarted()
        again.beat(broker)
        assert again.partition().leader == broker
