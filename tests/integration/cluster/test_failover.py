"""Three real processes: topics through any of them, and kill -9 of the active controller."""

import os
import signal
import time
from pathlib import Path

from scriba.client import NewTopic, SyncAdmin
from scriba.peers.errors import ClientError
from tests.integration.cluster.processes import PATIENCE, Cluster, up, wait_gone


def addresses(cluster: Cluster) -> dict[int, str]:
    return {node["node_id"]: node["address"] for node in cluster.told["nodes"]}


def create(address: str, name: str, replicas: int) -> None:
    with SyncAdmin(bootstrap_servers=address) as admin:
        admin.create_topics([NewTopic(name, partitions=3, replication_factor=replicas)])


def knows(address: str, name: str) -> bool:
    """Asked of this broker alone, right now."""
    with SyncAdmin(bootstrap_servers=address) as admin:
        return name in {topic.name for topic in admin.list_topics()}


def leader(address: str) -> int:
    with SyncAdmin(bootstrap_servers=address) as admin:
        return admin.describe_quorum().leader


def test_the_active_controller_is_killed_and_nothing_else_is_noticed(tmp_path: Path) -> None:
    with up(tmp_path, "--nodes", "3") as cluster:
        nodes = addresses(cluster)
        for at, address in nodes.items():
            create(address, f"through-{at}", replicas=3)
            assert all(knows(other, f"through-{at}") for other in nodes.values())
        for number in range(2):
            first = leader(nodes[1])
            pid = cluster.pids()[first]
            others = [address for at, address in nodes.items() if at != first]
            os.kill(pid, signal.SIGKILL)
            wait_gone(pid)
            create(others[0], f"after-{number}", replicas=2)
            assert all(knows(other, f"after-{number}") for other in others)
            assert leader(others[1]) != first
            assert cluster.node("start", str(first)).rstrip().endswith("up")
            deadline = time.monotonic() + PATIENCE
            while not _caught_up(nodes[first], f"after-{number}"):
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert cluster.end(signal.SIGTERM) == 0
        for at in nodes:
            assert (tmp_path / "scriba-data" / f"node-{at}" / ".kafka_cleanshutdown").exists()


def _caught_up(address: str, name: str) -> bool:
    try:
        return knows(address, name)
    except ClientError:
        return False
