"""`scriba topic why` against brokers: every live replica is asked, whether anybody leads or not."""

import argparse
import json
from typing import Any

import pytest

from scriba.cli.topics import unwell
from scriba.cli.topics.why import named
from scriba.client import Admin, BrokerError, Producer
from scriba.client.diagnosis.explain import (
    CLOSED,
    OFFLINE,
    SILENT,
    UNDER_MIN_ISR,
    UNDER_REPLICATED,
    WAITING,
    WELL,
)
from scriba.client.diagnosis.gather import explained
from scriba.errors import ErrorCode
from tests.unit.broker.brokers import PORT, Brokers, play


async def why(brokers: Brokers, text: str, server: str = "b1") -> list[dict[str, Any]]:
    async with Admin(bootstrap_servers=f"{server}:{PORT}", _ports=brokers.client) as admin:
        topic, number = await named(admin, text)
        return await explained(admin, topic, number, 3_000, brokers.client.clock.wall_ms())


def ends(document: dict[str, Any]) -> list[int | None]:
    return [each["end_offset"] for each in document["replicas"]]


def test_a_partition_is_explained_from_well_to_offline() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t-1", (2, 3, 1), (1, 2, 3), configs={"min.insync.replicas": "2"})
        for at in range(3):
            assert await brokers.produce(2, "t-1", b"%d" % at) is ErrorCode.NONE
        well, other = await why(brokers, "t-1")
        assert (well["state"], other["state"]) == (WELL, WELL)
        assert ends(well) == [3, 3, 3]
        assert well["committed"] == 3

        brokers.kill(3)
        await brokers.until(lambda: brokers.image("t-1").isr == (2, 1))
        assert await brokers.produce(2, "t-1", b"without 3") is ErrorCode.NONE
        brokers.kill(2)
        await brokers.until(lambda: brokers.image("t-1").leader == 1)
        (short,) = await why(brokers, "t-1-0")
        assert short["state"] == UNDER_MIN_ISR
        assert [each["broker"] for each in short["awaited"]] == [2, 3]
        assert ends(short) == [None, None, 4]

        await brokers.elect_nobody("t-1")
        (dark,) = await why(brokers, "t-1:0")
        assert dark["state"] == OFFLINE
        assert ends(dark) == [None, None, 4], "a replica tells what it has without a leader, too"
        assert dark["committed"] == 3, "it never heard that the last one was"
        assert dark["unheard"][1] == {"node": 2, "why": "it does not run"}

    play(script)


def test_brokers_that_died_with_the_controller_are_told_though_nobody_fenced_them() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (2, 3), (3, 2))
        for leader, index in ((2, 0), (3, 1)):
            assert await brokers.produce(leader, "t", b"x", index=index) is ErrorCode.NONE
        brokers.kill(1)
        brokers.kill(3)
        ours, theirs = await why(brokers, "t", "b2")
        assert (ours["state"], theirs["state"]) == (WAITING, SILENT)
        assert [ours["controlled"], theirs["controlled"]] == [False, False]
        assert [[each["broker"] for each in found["awaited"]] for found in (ours, theirs)] == [
            [3],
            [3],
        ]
        first = [found["choices"][0]["choice"] for found in (ours, theirs)]
        assert first == ["start controllers until a majority of them is up"] * 2

    play(script)


# ---- log directories ----

GB = 1 << 30
LISTENING = "http://0.0.0.0:9404"


def fill(brokers: Brokers, broker_id: int, share: float) -> None:
    """Makes a volume look as if this much of it were in use."""
    disk: Any = brokers.nodes[broker_id].world.disk
    disk.space = lambda path: (1000 * GB, round(1000 * GB * (1 - share)))


def test_a_partition_in_a_directory_that_is_nearly_full_is_closed_to_producers() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("alone", (2,))
        assert await brokers.produce(2, "alone", b"x") is ErrorCode.NONE
        fill(brokers, 2, 0.95)
        await brokers.until(lambda: brokers.partition(2, "alone").closed is not None)
        (found,) = await why(brokers, "alone-0")
        assert found["state"] == CLOSED
        assert "/data is nearly full" in found["means"]
        assert found["since_ms"] is not None
        assert found["events"][-1]["kind"] == "write_watermark_reached"
        (directory,) = found["log_dirs"]
        assert (directory["broker"], directory["path"]) == (2, "/data")
        commands = [each["command"] for each in found["choices"]]
        assert "scriba cluster reassign alone:0 --to 1" in commands
        assert "scriba config set --cluster scriba.log.dirs.write.watermark=0.98" in commands

        fill(brokers, 2, 0.5)
        await brokers.until(lambda: brokers.partition(2, "alone").closed is None)
        (found,) = await why(brokers, "alone-0")
        assert (found["state"], found["log_dirs"]) == (WELL, [])

    play(script, scriba_log_dirs_write_watermark=0.9, scriba_metrics_listener=LISTENING)


def test_the_producer_of_a_closed_partition_is_told_of_the_directory() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("alone", (2,))
        fill(brokers, 2, 0.95)
        await brokers.until(lambda: brokers.partition(2, "alone").closed is not None)
        producer = Producer(
            bootstrap_servers=f"b1:{PORT}",
            retries=0,
            enable_idempotence=False,
            linger_ms=0,
            _ports=brokers.client,
        )
        async with producer:
            with pytest.raises(BrokerError) as refused:
                await producer.send("alone", b"x")
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        explanation = refused.value.explanation
        assert explanation.startswith("alone-0 is closed to producers: its leader, broker 2, takes")
        assert "95.0% of its volume in use" in explanation

    play(script, scriba_log_dirs_write_watermark=0.9)


def test_a_replica_in_a_directory_that_failed_is_missed_for_that() -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (1, 2), configs={"flush.messages": "1"})
        assert await brokers.produce(1, "t", b"x") is ErrorCode.NONE
        (held,) = (
            each
            for each in brokers.nodes[2].replicas.dirs
            if any(p.topic == "t" for p in brokers.nodes[2].replicas.in_dir(each))
        )
        faults = brokers.sim.host("b2").disk_faults
        faults.fail_sync, faults.fail_in = 1.0, f"{held.path}/t-0"
        assert await brokers.produce(1, "t", b"y", acks=1) is ErrorCode.NONE
        await brokers.until(lambda: brokers.image("t").isr == (1,))
        (found,) = await why(brokers, "t-0")
        assert found["state"] == UNDER_REPLICATED
        (directory,) = found["log_dirs"]
        assert directory["why"].startswith(f"{held.path} of broker 2 is offline: ")
        assert "Input/output error" in directory["why"]
        (awaited,) = found["awaited"]
        assert f"its log directory {held.path} is offline" in awaited["why"]
        assert "log_dir_offline" in [each["kind"] for each in found["events"]]

    play(script, count=2, log_dirs="/a,/b", scriba_metrics_listener=LISTENING)


# ---- moves ----


def test_a_partition_on_its_way_to_another_broker_is_well_and_the_move_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The target's device takes no more, so that the move stays as far as it is."""

    async def unwell_now(brokers: Brokers) -> list[dict[str, Any]]:
        options = argparse.Namespace(topics=["t"], offline=False, json=True)
        async with Admin(bootstrap_servers=f"b1:{PORT}", _ports=brokers.client) as admin:
            await unwell.show(admin, options)
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return found

    async def script(brokers: Brokers) -> None:
        await brokers.create("t", (1, 2))
        for at in range(20):
            assert await brokers.produce(1, "t", b"%d" % at + b"." * 100_000) is ErrorCode.NONE
        host = brokers.sim.host("b3")
        host.disk_faults.capacity = host.volume.used + 1_500_000
        host.disk_faults.full_in = "/t-0"
        await brokers.reassign("t", (3, 2))
        await brokers.until(lambda: brokers.nodes[3].counters.refused_writes)
        (found,) = await why(brokers, "t-0")
        assert found["state"] == WELL
        assert found["move"]["to"] == [3, 2]
        (copy,) = found["move"]["copies"]
        assert copy["broker"] == 3
        assert 0 < copy["records"] < copy["of"] == 20
        assert copy["stuck"], "its device has no room"
        assert found["choices"][-1]["command"] == "scriba cluster reassign t:0 --cancel"
        assert await unwell_now(brokers) == []

        brokers.kill(2)
        await brokers.until(lambda: brokers.image("t").isr == (1,))
        (missed,) = await unwell_now(brokers)
        assert (missed["missing"], missed["adding"]) == ([2], [3])

        host.disk_faults.full_in = "nowhere"
        await brokers.until(lambda: 3 in brokers.image("t").isr)
        (found,) = await why(brokers, "t-0")
        assert [each["broker"] for each in found["awaited"]] == [2]

    play(script, scriba_metrics_listener=LISTENING)
