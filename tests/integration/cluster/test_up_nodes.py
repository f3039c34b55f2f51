"""`scriba up --nodes` as a person types it: processes that are started, watched and stopped."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scriba.client import NewTopic, SyncAdmin
from tests.integration.cluster.processes import ENVIRONMENT, scriba, up, wait_gone


def test_a_node_is_killed_paused_and_started_from_a_second_terminal(tmp_path: Path) -> None:
    with up(tmp_path, "--nodes", "1") as cluster:
        (first,) = cluster.pids().values()
        line = cluster.node("list")
        assert f"pid {first}" in line
        assert line.rstrip().endswith("up")
        assert cluster.node("kill", "1").rstrip().endswith("killed")
        wait_gone(first)
        assert "node 1 is killed; scriba node start 1" in cluster.node("pause", "1", code=1)
        assert cluster.node("start", "1").rstrip().endswith("up")
        (second,) = cluster.pids().values()
        assert second != first
        assert cluster.node("pause", "1").rstrip().endswith("paused")
        status = Path(f"/proc/{second}/status").read_text()
        assert "State:\tT" in status
        assert "is paused; scriba node resume 1" in cluster.node("start", "1", code=1)
        assert cluster.node("resume", "1").rstrip().endswith("up")
        assert "is not paused" in cluster.node("resume", "1", code=1)
        assert "there is no node 2; there are 1" in cluster.node("kill", "2", code=1)
        assert cluster.node("stop", "1").rstrip().endswith("stopped")
        assert (tmp_path / "scriba-data" / "node-1" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    with up(tmp_path, "--nodes", "1") as cluster:
        pids = cluster.pids()
        assert cluster.node("pause", "1")  # a paused node stops, too
        assert cluster.end(number) == 0
    for node, pid in pids.items():
        assert not os.path.exists(f"/proc/{pid}")
        assert (tmp_path / "scriba-data" / f"node-{node}" / ".kafka_cleanshutdown").exists()
    told = scriba("node", "list", cwd=tmp_path, code=1)
    assert "no `scriba up --nodes` runs over scriba-data" in told


@pytest.mark.parametrize("paused", [False, True])
def test_nodes_end_with_the_process_that_runs_them(tmp_path: Path, paused: bool) -> None:
    with up(tmp_path, "--nodes", "1") as cluster:
        (pid,) = cluster.pids().values()
        if paused:
            cluster.node("pause", "1")
        cluster.process.kill()
        wait_gone(pid)
        assert (tmp_path / "scriba-data" / "node-1" / ".kafka_cleanshutdown").exists()
    with up(tmp_path, "--nodes", "1") as again:
        assert again.told["cluster_id"] == cluster.told["cluster_id"]


def test_a_start_waits_for_nodes_whose_process_was_killed(tmp_path: Path) -> None:
    with up(tmp_path, "--nodes", "1") as cluster:
        (pid,) = cluster.pids().values()
    os.kill(pid, signal.SIGSTOP)  # it was about to stop, which takes a while
    again = subprocess.Popen(
        [sys.executable, "-m", "scriba", "up", "--port", "0", "--json", "--nodes", "1"],
        env=ENVIRONMENT,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert again.stderr is not None
        assert again.stdout is not None
        assert "waiting for the node in scriba-data/node-1 to stop" in again.stderr.readline()
        os.kill(pid, signal.SIGCONT)
        assert json.loads(again.stdout.readline())["cluster_id"] == cluster.told["cluster_id"]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        again.terminate()
        again.communicate()


def test_the_same_directory_is_run_once(tmp_path: Path) -> None:
    with up(tmp_path, "--nodes", "1") as cluster:
        told = scriba("up", "--nodes", "1", cwd=tmp_path, code=1)
        assert f"its nodes are run by process {cluster.process.pid}" in told
        told = scriba("up", "--port", "0", cwd=tmp_path, code=1)
        assert "holds several nodes of a cluster; start them with --nodes auto" in told


def test_a_node_that_cannot_start_is_told_of_and_the_others_are_stopped(tmp_path: Path) -> None:
    with up(tmp_path, "--nodes", "1") as cluster:
        assert cluster.end(signal.SIGTERM) == 0
    meta = tmp_path / "scriba-data" / "node-1" / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=1", "node.id=7"))
    told = scriba("up", "--nodes", "1", cwd=tmp_path, code=1)
    assert "node 1 did not start: " in told


def test_what_no_node_takes_is_told_before_anything_is_made(tmp_path: Path) -> None:
    for words, code, told in (
        (["--set", "num.partitions=0"], 2, "num.partitions=0: must be at least 1"),
        (["--set", "node.id=4"], 2, "node.id is set (--set node.id)"),
        (["--controllers", "0"], 2, "must be at least 1"),
    ):
        assert told in scriba("up", "--nodes", "1", *words, cwd=tmp_path, code=code)
    assert "--controllers says nothing without --nodes" in scriba(
        "up", "--controllers", "1", cwd=tmp_path, code=2
    )
    assert list(tmp_path.iterdir()) == []


def test_topics_of_one_node_are_well(tmp_path: Path) -> None:
    with up(tmp_path, "--nodes", "1") as cluster:
        with SyncAdmin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topics([NewTopic("orders", partitions=2)])
            assert admin.elect_leaders([("orders", 0)]) == {("orders", 0): False}
            assert admin.elect_leaders() == {}
            assert admin.describe_quorum(broker=1).leader == 1
        asked = ["-b", cluster.bootstrap]
        for words in (["--under-replicated"], ["--offline"]):
            said = scriba("topic", "describe", *words, *asked, "--json", cwd=tmp_path)
            assert json.loads(said) == []
        quorum = json.loads(scriba("cluster", "quorum", *asked, "--json", cwd=tmp_path))
        assert [(v["id"], v["lag"]) for v in quorum["voters"]] == [(1, 0)]
        assert "node 1 leads in epoch" in scriba("cluster", "quorum", *asked, cwd=tmp_path)
        said = scriba("cluster", "elect", "orders", *asked, cwd=tmp_path)
        assert said == "2 partitions looked at: every leader is the right one\n"
        told = scriba("cluster", "elect", "--unclean", *asked, cwd=tmp_path, code=2)
        assert "name them" in told
