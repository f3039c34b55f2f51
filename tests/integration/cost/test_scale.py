"""Many partitions on one node: files are lent, none is missed."""

import sys
from pathlib import Path

import pytest

from tools.kafka.brokers import ScribaBroker, running
from tools.kafka.rawkafka import Connection, batch, create_topic, fetch, fetched, produce, produced

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

FILES = 160
PARTITIONS = 300


class Confined(ScribaBroker):
    """A node that may open few files, and cannot ask for more."""

    def command(self) -> list[str]:
        return ["sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", *super().command()]


@linux_only
def test_a_node_serves_more_logs_than_it_may_have_files_open(tmp_path: Path) -> None:
    with running(Confined(tmp_path)) as node, Connection(node.port) as connection:
        create_topic(connection, "wide", PARTITIONS)
        for offset in (0, 1):
            for partition in range(PARTITIONS):
                record = batch([f"{partition}".encode()]).encode()
                answer = produced(connection.call(produce(record, "wide", partition), 9))
                assert (answer.error_code, answer.base_offset) == (0, offset), partition
        for partition in range(PARTITIONS):
            answer = fetched(connection.call(fetch(0, "wide", [partition]), 12))
            assert (answer.error_code, answer.high_watermark) == (0, 2), partition
            assert answer.records.count(f"{partition}".encode()) >= 2
        assert sum(1 for _ in Path(f"/proc/{node.pid}/fd").iterdir()) < FILES
        assert b"offline" not in node.output.read_bytes()
