"""A node that starts, or runs on, with a clock that is years ahead: nothing goes for its age."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from scriba.broker.jobs import schedule
from scriba.broker.jobs.clock_guard import PAUSED_AT, PAUSED_FOR
from scriba.broker.node import Node
from scriba.controller.image import BROKER
from scriba.records.batch import Record, encode_batch, read_header
from scriba.settings import NodeSettings
from scriba.testing.sim.cluster import SimCluster
from scriba.testing.sim.world.world import ProcessWorld, SimWorld
from scriba.wire.messages.admin import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from scriba.wire.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)

DAY_MS = 86_400_000
YEARS_MS = 3652 * DAY_MS
PRODUCER = 7
Story = Callable[[Node, ProcessWorld], Awaitable[None]]
Main = Callable[[ProcessWorld], Coroutine[Any, Any, None]]

IDLE_JOBS = (
    "CONNECTION_CHECK_MS",
    "CONTROLLER_TICK_MS",
    "EVENTS_CHECK_MS",
    "LONGEST_FLUSH_CHECK_MS",
    "OBSERVER_CHECK_MS",
    "REMOVAL_CHECK_MS",
    "UNUSED_CHECK_MS",
)
"""Intervals of jobs that look often, and have nothing to do here."""


@pytest.fixture(autouse=True)
def days_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle looks are most of what a simulated day costs; the clock is looked at as ever."""
    for name in IDLE_JOBS:
        assert getattr(schedule, name) <= 10_000
        monkeypatch.setattr(schedule, name, 60_000)


def settings(**given: str) -> NodeSettings:
    base = {
        "log.dirs": "/data",
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "log.retention.check.interval.ms": "30000",
        "producer.id.expiration.check.interval.ms": "30000",
        # A simulated day is long: what need not happen often does not.
        "metadata.max.idle.interval.ms": "60000",
        "broker.heartbeat.interval.ms": "60000",
        "broker.session.timeout.ms": "600000",
        "log.cleaner.backoff.ms": "60000",
        "replica.high.watermark.checkpoint.interval.ms": "60000",
        "replica.lag.time.max.ms": "120000",
    }
    return NodeSettings.parse(
        base | {name.replace("_", "."): value for name, value in given.items()}
    )


class Machine:
    """One host; each play is a run of the node on it, ended by a stop or a crash."""

    def __init__(self, **given: str) -> None:
        self.sim = SimWorld(1)
        self.host = self.sim.host("broker")
        self._settings = settings(**given)

    def run(self, *stories: Story | int) -> None:
        """Stories in turn; a number moves the wall clock between two of them."""

        async def play() -> None:
            for story in stories:
                if isinstance(story, int):
                    self.host.clock.jump(story)
                    continue
                process = self.host.start(self._playing(story))
                await process.task
                process.kill()

        self.sim.run(play())

    def _playing(self, story: Story) -> Main:
        async def main(world: ProcessWorld) -> None:
            node = Node(self._settings, world)
            await node.start()
            await story(node, world)
            if story is not crash_after_start:
                await node.stop()

        return main


async def crash_after_start(node: Node, world: ProcessWorld) -> None:
    await asyncio.sleep(3)


async def with_a_week_of_retention(node: Node, world: ProcessWorld) -> None:
    topic = CreatableTopic(
        name="t",
        num_partitions=1,
        replication_factor=1,
        configs=[CreatableTopicConfig(name="retention.ms", value=str(7 * DAY_MS))],
    )
    await node.controller.call(CreateTopicsRequest(topics=[topic], timeout_ms=1000))
    await node.replicas.settled()
    now = world.clock.now()
    batch = encode_batch(
        [Record(0, now.wall_ms, None, b"x", ())],
        producer_id=PRODUCER,
        producer_epoch=0,
        base_sequence=0,
    )
    node.replicas.find("t", 0).append(memoryview(batch), read_header(batch), now)


def records(node: Node) -> int:
    log = node.replicas.find("t", 0).log
    return log.end_offset - log.start_offset


async def keeps_everything(node: Node, world: ProcessWorld) -> None:
    await asyncio.sleep(60)
    assert records(node) == 1
    assert len(node.replicas.find("t", 0).log.producers) == 1
    assert node.clock_guard.paused


async def deletes(node: Node, world: ProcessWorld) -> None:
    await asyncio.sleep(60)
    assert records(node) == 0
    assert not node.clock_guard.paused


async def paused_for_a_day(node: Node, world: ProcessWorld) -> None:
    await asyncio.sleep(DAY_MS / 1000 - 60)
    assert records(node) == 1
    await asyncio.sleep(120)
    assert records(node) == 0
    await asyncio.sleep(10)
    assert PAUSED_AT not in node.image.config(BROKER, str(node.id))


async def resume(node: Node) -> None:
    change = IncrementalAlterConfigsRequestAlterableConfig(
        name=PAUSED_AT, config_operation=1, value=None
    )
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=BROKER, resource_name=str(node.id), configs=[change]
    )
    await node.controller.call(IncrementalAlterConfigsRequest(resources=[resource]))


def test_a_start_ten_years_ahead_deletes_nothing_and_says_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Machine().run(with_a_week_of_retention, YEARS_MS, keeps_everything)
    (told,) = [r.getMessage() for r in caplog.records if "Nothing is deleted" in r.getMessage()]
    assert "3652 days" in told
    assert "scriba log retention resume" in told


def test_the_pause_outlasts_a_restart_whose_own_records_vouch_for_the_wrong_time() -> None:
    Machine().run(
        with_a_week_of_retention, YEARS_MS, crash_after_start, keeps_everything, keeps_everything
    )


def test_after_a_day_of_running_the_clock_is_believed() -> None:
    Machine().run(with_a_week_of_retention, YEARS_MS, paused_for_a_day, deletes)


def test_a_day_of_running_may_be_made_of_short_runs() -> None:
    """A machine that is switched off every evening: eight hours on, sixteen off."""
    seen: list[bool] = []

    async def until_evening(node: Node, world: ProcessWorld) -> None:
        await asyncio.sleep(8 * 3600)
        seen.append(node.clock_guard.paused)

    async def forgets_the_pause(node: Node, world: ProcessWorld) -> None:
        await deletes(node, world)
        stored = node.image.config(BROKER, str(node.id))
        assert not {PAUSED_AT, PAUSED_FOR} & stored.keys()

    night = 16 * DAY_MS // 24
    workdays = (until_evening, night) * 4
    Machine().run(with_a_week_of_retention, 30 * DAY_MS, *workdays, forgets_the_pause)
    assert seen == [True, True, True, False]


def test_an_operator_who_has_looked_resumes_and_it_stays_so() -> None:
    async def resumes(node: Node, world: ProcessWorld) -> None:
        await keeps_everything(node, world)
        await resume(node)
        await deletes(node, world)

    Machine().run(with_a_week_of_retention, 30 * DAY_MS, resumes, deletes)


def test_a_clock_that_is_put_right_ends_the_pause_and_nothing_is_lost() -> None:
    async def unharmed(node: Node, world: ProcessWorld) -> None:
        await asyncio.sleep(60)
        assert records(node) == 1
        assert not node.clock_guard.paused
        assert PAUSED_AT not in node.image.config(BROKER, str(node.id))

    Machine().run(with_a_week_of_retention, YEARS_MS, keeps_everything, -YEARS_MS, unharmed)


def test_a_jump_while_it_runs_outlasts_a_restart_too() -> None:
    machine = Machine()

    async def jumps(node: Node, world: ProcessWorld) -> None:
        machine.host.clock.jump(YEARS_MS)
        await keeps_everything(node, world)

    machine.run(with_a_week_of_retention, jumps, keeps_everything)


def test_an_hour_off_is_no_reason_to_pause() -> None:
    async def runs(node: Node, world: ProcessWorld) -> None:
        await asyncio.sleep(60)
        assert not node.clock_guard.paused

    Machine().run(with_a_week_of_retention, DAY_MS // 2, runs)


def test_records_vouch_for_the_clock_where_the_metadata_log_is_silent() -> None:
    async def goes_on_for_days(node: Node, world: ProcessWorld) -> None:
        await with_a_week_of_retention(node, world)
        await asyncio.sleep(DAY_MS / 1000 + 3600)
        now = world.clock.now()
        batch = encode_batch([Record(0, now.wall_ms, None, b"y", ())])
        node.replicas.find("t", 0).append(memoryview(batch), read_header(batch), now)

    async def believes(node: Node, world: ProcessWorld) -> None:
        await asyncio.sleep(10)
        assert not node.clock_guard.paused

    Machine(metadata_max_idle_interval_ms="0").run(goes_on_for_days, believes)


def test_three_nodes_that_all_start_ten_years_ahead_delete_nothing() -> None:
    """None of them leads at its start, and whoever comes to lead writes the wrong time."""
    sim = SimWorld(1)
    complaints: list[str] = []
    cluster = SimCluster(sim, 3, 0, {}, complaints.append)

    async def main() -> None:
        await cluster.start()
        for node in cluster.nodes.values():
            node.process.kill()
        for host in cluster.hosts.values():
            host.clock.jump(10 * 365 * DAY_MS)
        await cluster.start()
        for at, running in cluster.running():
            assert running.clock_guard.paused
            stored = running.image.config(BROKER, str(at))
            assert PAUSED_AT in stored, "the next start knows of it"

    sim.run(main())
    assert complaints == []
