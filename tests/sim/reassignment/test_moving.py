"""`scriba cluster drain` and `balance` on a real cluster: in waves, with a throttle, again after a
crash of whoever ran them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from scriba.cli.cluster.cordons import CORDONS, cordon, lift
from scriba.cli.cluster.moving import Course, Moves, Plan, carry_out, follow, look
from scriba.cli.cluster.reassign import check, document, page, plan_of, told_waits
from scriba.cli.cluster.replicas import spread
from scriba.cli.cluster.throttles import RATES, REPLICAS, Throttling, limited, take_back_all
from scriba.cli.problems import CommandError
from scriba.client import Admin, ConfigOp, ConfigResource, NewTopic, TopicPartition
from scriba.placement.planning import balance, drain, loads
from scriba.testing.sim.world.world import SimWorld
from tests.sim.broker_stage import Stage

BROKERS = (4, 5, 6, 7)
PARTITIONS = 12


def play(script: Callable[[Stage], Awaitable[None]]) -> None:
    stage = Stage(SimWorld(1), 4)

    async def main() -> None:
        await stage.cluster.start()
        await stage.until(lambda: len(stage.image.brokers) == 4)
        placed = {n: [4 + n % 3, 4 + (n + 1) % 3] for n in range(PARTITIONS)}
        await stage.admin(lambda admin: admin.create_topics([NewTopic("t", assignments=placed)]))
        async with asyncio.timeout(600):  # of the world's time, where a command would hang
            await script(stage)

    stage.sim.run(main())
    assert not stage.complaints


async def move(
    stage: Stage,
    admin: Admin,
    plan: Any,
    at_once: int | None = 3,
    told: Callable[[str], None] = lambda line: None,
) -> Course:
    facts, _ = await look(admin)
    course = Course(plan(facts))
    clock = stage.sim.loop.time
    await carry_out(admin, facts, course, at_once, clock, asyncio.sleep, told)
    return course


def test_a_new_broker_gets_its_share_and_a_drained_one_is_empty() -> None:
    async def script(stage: Stage) -> None:
        await stage.admin(lambda admin: move(stage, admin, balance))
        facts, under_way = await stage.admin(look)
        assert not under_way
        assert [load.replicas for load in loads(facts.placed, facts).values()] == [6, 6, 6, 6]
        await stage.admin(lambda admin: move(stage, admin, lambda facts: drain(facts, {5})))
        facts, _ = await stage.admin(look)
        assert [load.replicas for load in loads(facts.placed, facts).values()] == [8, 0, 8, 8]
        await stage.until(lambda: not tuple(stage.node(5).replicas))

    play(script)


def test_whoever_runs_it_again_goes_on_with_what_is_under_way() -> None:
    async def begin(admin: Admin) -> None:
        facts, _ = await look(admin)
        plan = drain(facts, {4})
        first = dict(list(plan.items())[:2])
        await admin.alter_partition_reassignments(first)  # and then it died

    async def script(stage: Stage) -> None:
        stage.kill(7)
        await stage.until(lambda: stage.image.brokers[7].fenced)
        await stage.cluster.nodes[7].start()
        await stage.admin(begin)
        await stage.admin(lambda admin: move(stage, admin, lambda facts: drain(facts, {4})))

        def emptied() -> bool:
            partitions = stage.image.topics_by_name["t"].partitions.values()
            return all(4 not in each.replicas for each in partitions)

        await stage.until(emptied)

    play(script)


def test_a_throttle_is_set_and_taken_back_and_anothers_is_respected() -> None:
    async def rates(admin: Admin) -> set[str | None]:
        brokers = [ConfigResource.broker(broker) for broker in BROKERS]
        found = await admin.describe_configs(brokers, names=RATES)
        return {entry.value for entries in found.values() for entry in entries.values()}

    async def script(stage: Stage) -> None:
        facts, _ = await stage.admin(look)
        plan = balance(facts)

        async def set_to(admin: Admin, rate: int) -> None:
            made = Throttling(admin, rate, BROKERS, plan, facts.placed, {})
            await made.check()
            await made.set()

        await stage.admin(lambda admin: set_to(admin, 1000))
        configs = stage.image.config(2, "t")
        where = next(w for w in plan if {*plan[w]} != {*facts.placed[w]})
        (new,) = {*plan[where]} - {*facts.placed[where]}
        named = configs["follower.replication.throttled.replicas"].split(",")
        assert f"{where.partition}:{new}" in named
        assert await stage.admin(rates) == {"1000"}
        await stage.admin(lambda admin: set_to(admin, 1000))
        with pytest.raises(CommandError, match="set by somebody else; give --throttle 1000"):
            await stage.admin(lambda admin: set_to(admin, 2000))
        await stage.admin(lambda admin: take_back_all(admin, BROKERS, {}))
        assert await stage.admin(rates) == {str(2**63 - 1)}
        assert stage.image.config(2, "t") == {}
        other = {ConfigResource.broker(4): [(RATES[0], ConfigOp.SET, "7")]}
        await stage.admin(lambda admin: admin.incremental_alter_configs(other))

    play(script)


def test_a_throttle_adds_its_own_replicas_and_takes_back_those_alone() -> None:
    """Whichever way the move ends; an observer, say, is held to a rate at all times."""
    others = {REPLICAS[0]: "1:5", REPLICAS[1]: "99:9,0:7"}

    async def name_others(admin: Admin) -> None:
        changes = [(name, ConfigOp.SET, value) for name, value in others.items()]
        await admin.incremental_alter_configs({ConfigResource.topic("t"): changes})

    async def script(stage: Stage) -> None:
        facts, _ = await stage.admin(look)
        plan: Plan = {TopicPartition("t", 0): (4, 7), TopicPartition("t", 1): (5, 7)}
        await stage.admin(name_others)

        async def throttled(admin: Admin, fails: bool) -> dict[str, str]:
            async with limited([Throttling(admin, 1000, BROKERS, plan, facts.placed, {})]):
                named = dict(stage.image.config(2, "t"))
                if fails:
                    raise CommandError("it was not to be")
            return named

        named = await stage.admin(lambda admin: throttled(admin, fails=False))
        assert named[REPLICAS[0]] == "1:5,0:4,0:5,1:6"
        assert named[REPLICAS[1]] == "99:9,0:7,1:7"
        assert stage.image.config(2, "t") == others
        with pytest.raises(CommandError, match="it was not to be"):
            await stage.admin(lambda admin: throttled(admin, fails=True))
        assert stage.image.config(2, "t") == others
        assert all(stage.image.config(4, str(at)) == {} for at in BROKERS)
        every = [(REPLICAS[1], ConfigOp.SET, "*")]
        await stage.admin(lambda a: a.incremental_alter_configs({ConfigResource.topic("t"): every}))
        named = await stage.admin(lambda admin: throttled(admin, fails=False))
        assert named[REPLICAS[1]] == "*"
        assert stage.image.config(2, "t") == {**others, REPLICAS[1]: "*"}

    play(script)


def test_a_throttle_stays_while_something_is_under_way_and_is_swept_up_by_the_next_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def script(stage: Stage) -> None:
        facts, _ = await stage.admin(look)
        plan: Plan = {TopicPartition("t", 0): (4, 7)}
        live = [broker for broker in BROKERS if broker != 7]

        async def given_up(admin: Admin) -> None:
            async with limited([Throttling(admin, 1000, live, plan, facts.placed, {})]):
                await admin.alter_partition_reassignments(plan)
                raise CommandError("it was not to be")

        stage.kill(7)
        await stage.until(lambda: stage.image.brokers[7].fenced)
        with pytest.raises(CommandError, match="it was not to be"):
            await stage.admin(given_up)
        assert "the throttle stays (1 move under way)" in capsys.readouterr().err
        assert REPLICAS[1] in stage.image.config(2, "t")
        await stage.cluster.nodes[7].start()
        await stage.until(lambda: {*stage.partition().isr} == {4, 7})

        async def again(admin: Admin) -> None:
            async with limited([Throttling(admin, 1000, live, {}, {}, {})]):
                pass

        await stage.admin(again)
        assert stage.image.config(2, "t") == {}

    play(script)


def test_the_only_replica_that_is_fetched_from_a_leader_goes_on_when_its_throttle_is_gone() -> None:
    """Nothing else is asked of that leader, whose answers would wake whoever waits."""

    def is_behind(stage: Stage) -> bool:
        replica = stage.node(7).replicas.get("t", 0)
        return replica is not None and replica.log.end_offset > 0

    async def script(stage: Stage) -> None:
        await stage.admin(lambda a: a.create_topics([NewTopic("t", assignments={0: [4]})]))
        await stage.send([b"x" * 1000] * 10)
        throttled = {
            ConfigResource.broker(7): [(RATES[1], ConfigOp.SET, "1")],
            ConfigResource.topic("t"): [(REPLICAS[1], ConfigOp.SET, "0:7")],
        }
        await stage.admin(lambda admin: admin.incremental_alter_configs(throttled))
        await stage.until(lambda: stage.node(7).settings.follower_replication_throttled_rate == 1)
        await stage.admin(lambda a: a.alter_partition_reassignments({("t", 0): [4, 7]}))
        await stage.until(lambda: is_behind(stage))
        await stage.send([b"x" * 1000] * 10)
        await asyncio.sleep(2)
        assert stage.partition().isr == (4,)
        free = {
            resource: [(name, ConfigOp.DELETE, None) for name, _, _ in ops]
            for resource, ops in throttled.items()
        }
        await stage.admin(lambda admin: admin.incremental_alter_configs(free))
        await stage.until(lambda: {*stage.partition().isr} == {4, 7})

    stage = Stage(SimWorld(1), 4)

    async def main() -> None:
        await stage.cluster.start()
        await stage.until(lambda: len(stage.image.brokers) == 4)
        await script(stage)

    stage.sim.run(main())
    assert not stage.complaints


def test_a_plan_is_checked_before_anything_begins_and_shown_as_a_difference() -> None:
    async def script(stage: Stage) -> None:
        stage.kill(7)
        await stage.until(lambda: stage.image.brokers[7].fenced)
        facts, _ = await stage.admin(look)
        where = TopicPartition("t", 0)
        for replicas, told in (
            ((4, 4), "t-0 names broker 4 twice"),
            ((), "t-0 is to have no replicas"),
            ((4, 7), "t-0 names broker 7, which is not there or fenced; choose from 4, 5, 6"),
            ((4, 99), "t-0 names broker 99, which"),
        ):
            with pytest.raises(CommandError, match=told):
                check({where: replicas}, facts)
        with pytest.raises(CommandError, match="there is no partition t-99"):
            check({TopicPartition("t", 99): (4,)}, facts)
        shown = page(document(facts, {where: (6, 5)}), 0)
        assert shown[1].split() == ["t-0", "4,5", "6,5", "0", "B"]
        assert "1 partition, 0 B to copy" in shown[-1]

    play(script)


# ---- somebody else is at it as well ----


def test_a_move_that_is_cancelled_ends_the_command_and_no_more_begin() -> None:
    async def cancel_all(admin: Admin) -> None:
        under_way: Moves = {}
        while not under_way:
            await asyncio.sleep(0.05)
            under_way = await admin.list_partition_reassignments()
        await admin.alter_partition_reassignments(dict.fromkeys(under_way))

    async def script(stage: Stage) -> None:
        stage.kill(7)
        to_seven = lambda facts: {w: (r[0], 7) for w, r in facts.placed.items()}  # noqa: E731
        cancelling = asyncio.ensure_future(stage.admin(cancel_all))
        with pytest.raises(
            CommandError, match=r"t-0 was cancelled or changed, as were 2 more; 0 o"
        ):
            await stage.admin(lambda admin: move(stage, admin, to_seven))
        await cancelling
        partitions = stage.image.topics_by_name["t"].partitions.values()
        assert all(7 not in each.replicas for each in partitions)

    play(script)


def test_a_move_that_is_changed_ends_the_command_which_counts_those_that_are_done() -> None:
    held, done = TopicPartition("t", 0), TopicPartition("t", 1)

    async def change(admin: Admin) -> None:
        under_way: Moves = {}
        while {*under_way} != {held}:
            await asyncio.sleep(0.05)
            under_way = await admin.list_partition_reassignments()
        await asyncio.sleep(2)  # the command has seen that the other one is done
        await admin.alter_partition_reassignments({held: (4, 5, 7)})

    async def script(stage: Stage) -> None:
        stage.kill(7)
        plan: Plan = {held: (4, 7), done: (6, 4)}
        changing = asyncio.ensure_future(stage.admin(change))
        with pytest.raises(CommandError, match=r"t-0 was cancelled or changed; 1 of 2 partitions"):
            await stage.admin(lambda admin: move(stage, admin, lambda facts: plan))
        await changing

    play(script)


def test_partitions_of_a_topic_that_is_deleted_meanwhile_are_left_out_and_told() -> None:
    told: list[str] = []

    async def script(stage: Stage) -> None:
        placed = {n: [4] for n in range(5)}
        await stage.admin(lambda a: a.create_topics([NewTopic("gone", assignments=placed)]))

        async def drained(admin: Admin) -> Course:
            facts, _ = await look(admin)
            await admin.delete_topics(["gone"])
            course = Course(drain(facts, {4}))
            await carry_out(
                admin, facts, course, 3, stage.sim.loop.time, asyncio.sleep, told.append
            )
            return course

        course = await stage.admin(drained)
        assert {where.topic for where in course.moved} == {"t"}
        assert course.moved | course.gone == {*course.plan}
        assert len(course.gone) == 5
        assert all(line.startswith("gone is deleted: its ") for line in told)

    play(script)


def test_partitions_that_would_wait_for_a_broker_which_is_gone_are_left_as_they_are() -> None:
    async def begin(admin: Admin, target: Plan) -> tuple[Moves, Any]:
        await admin.alter_partition_reassignments(target)
        facts, under_way = await look(admin)
        return under_way, await follow(admin, facts, under_way)

    async def script(stage: Stage) -> None:
        stage.kill(6)
        await stage.until(lambda: stage.image.brokers[6].fenced)
        facts, _ = await stage.admin(look)
        plan, waits = plan_of(lambda known: drain(known, {5}), facts, {5})
        assert {*plan} == {w for w, r in facts.placed.items() if 5 in r and 6 not in r}
        assert waits == {w: [6] for w, r in facts.placed.items() if {5, 6} == {*r}}
        course = await stage.admin(lambda admin: move(stage, admin, lambda _: plan))
        assert course.moved == {*plan}
        facts, _ = await stage.admin(look)
        with pytest.raises(
            CommandError, match="4 partitions wait for broker 6, which is fenced: l"
        ):
            plan_of(lambda known: drain(known, {5}), facts, {5})
        where = next(w for w, replicas in facts.placed.items() if {*replicas} == {5, 6})
        under_way, stuck = await stage.admin(lambda a: begin(a, {where: (4, 6)}))
        assert {*under_way} == {*stuck} == {where}

    play(script)


def test_partitions_that_nobody_leads_are_left_as_they_are() -> None:
    """A move of them would end when who has their records is back, and no sooner."""
    lost = TopicPartition("lost", 0)

    async def begin(admin: Admin) -> dict[TopicPartition, list[int]]:
        await admin.alter_partition_reassignments({lost: (5,)})
        facts, under_way = await look(admin)
        return await follow(admin, facts, under_way)

    async def script(stage: Stage) -> None:
        topic = NewTopic("lost", assignments={0: [6]})
        await stage.admin(lambda admin: admin.create_topics([topic]))
        stage.kill(6)
        await stage.until(lambda: stage.image.brokers[6].fenced)
        facts, _ = await stage.admin(look)
        plan, waits = plan_of(lambda known: drain(known, {6}), facts, {6})
        assert {*plan} == {w for w, r in facts.placed.items() if 6 in r and w != lost}
        assert waits == {lost: [6]}
        cause, fix = told_waits(waits, facts)
        assert cause == "1 partition waits for broker 6, which is fenced: left as it is"
        assert fix == "start it, and run the command again; scriba topic why lost-0 says more"
        with pytest.raises(CommandError, match=r"nobody leads lost-0: .* wait for broker 6, which"):
            check({lost: (5,)}, facts)
        assert await stage.admin(begin) == {lost: [6]}

    play(script)


def test_who_is_waited_for_is_told_while_it_is_away() -> None:
    told: list[str] = []

    async def script(stage: Stage) -> None:
        stage.kill(7)
        plan: Plan = {TopicPartition("t", 0): (4, 7)}
        moving = asyncio.ensure_future(
            stage.admin(lambda admin: move(stage, admin, lambda _: plan, told=told.append))
        )
        line = "0 of 1 partition, 0 B of 0 B, waits for broker 7, which is fenced"
        await stage.until(lambda: line in told)
        await stage.cluster.nodes[7].start()
        assert (await moving).moved == {*plan}

    play(script)


def test_whoever_has_the_last_replica_is_waited_for_as_well_when_it_dies_during_the_move() -> None:
    """It is no target, and yet nothing goes on without it; of the other topic it only followed."""
    told: list[str] = []

    async def script(stage: Stage) -> None:
        topics = [
            NewTopic("lost", assignments={0: [6]}),
            NewTopic("kept", assignments={0: [4, 6]}),
        ]
        await stage.admin(lambda admin: admin.create_topics(topics))
        stage.kill(7)
        plan: Plan = {TopicPartition("lost", 0): (7,), TopicPartition("kept", 0): (4, 7)}
        moving = asyncio.ensure_future(
            stage.admin(lambda admin: move(stage, admin, lambda _: plan, told=told.append))
        )
        line = "0 of 2 partitions, 0 B of 0 B, waits for broker"
        await stage.until(lambda: f"{line} 7, which is fenced" in told)
        stage.kill(6)
        await stage.until(lambda: f"{line}s 6, 7, which are fenced" in told)
        await stage.cluster.nodes[7].start()
        line = line.replace("0 of 2", "1 of 2")
        await stage.until(lambda: f"{line} 6, which is fenced" in told)
        await stage.cluster.nodes[6].start()
        assert (await moving).moved == {*plan}

    play(script)


def test_a_cordoned_broker_is_given_nothing_and_refused_by_name() -> None:
    async def script(stage: Stage) -> None:
        cordons = await stage.admin(lambda admin: cordon(admin, [7]))
        assert cordons == {7: None}
        await stage.until(lambda: stage.node(7).settings.cordoned_log_dirs)
        facts, _ = await stage.admin(look)
        assert facts.closed == {7}
        await stage.admin(lambda admin: move(stage, admin, lambda known: drain(known, {4}), None))
        facts, _ = await stage.admin(look)
        assert [load.replicas for load in loads(facts.placed, facts).values()] == [0, 12, 12, 0]
        where = TopicPartition("t", 0)
        with pytest.raises(CommandError, match="t-0 names broker 7, whose log directories are all"):
            check({where: (5, 7)}, facts)
        with pytest.raises(CommandError, match="has no other broker for 4 replicas: all log dir"):
            await stage.admin(lambda admin: spread(admin, 4))
        await stage.admin(lambda admin: lift(admin, cordons))
        await stage.until(lambda: not stage.node(7).settings.cordoned_log_dirs)
        before = [(CORDONS, ConfigOp.SET, "*")]
        await stage.admin(lambda a: a.incremental_alter_configs({ConfigResource.broker(7): before}))
        cordons = await stage.admin(lambda admin: cordon(admin, [7]))
        assert cordons == {7: "*"}, "what it had before is put back"
        assert (await stage.admin(lambda admin: spread(admin, 3))).moved == PARTITIONS

    play(script)
