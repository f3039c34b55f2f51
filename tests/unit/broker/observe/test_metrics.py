"""What a scraper is told, over HTTP."""

import asyncio
import json
import re
from collections.abc import Callable

import pytest

from scriba.broker.metrics.http import MAX_CLIENTS, PATIENCE_S
from scriba.broker.node import Node
from scriba.config import ConfigError
from scriba.settings import NodeSettings
from scriba.testing.sim.world.world import ProcessWorld
from tests.unit.broker.repeating import Writer
from tests.unit.broker.scraping import WHERE, ask, read, scrape

InANode = Callable[..., None]


def test_a_scraper_sees_what_was_written_and_how_the_cleaner_does(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        writer = await Writer(node, world).open()
        for _ in range(3):
            await writer.send(writer.batch())
        found = await scrape(world)
        assert found["kafka_server_brokertopicmetrics_messagesin_total"] == 6
        assert found['kafka_network_requestmetrics_requests_total{request="Produce"}'] == 3
        assert found["kafka_server_replicamanager_leadercount"] == 1
        assert found["kafka_server_replicamanager_underreplicatedpartitions"] == 0
        assert found["kafka_log_logcleanermanager_uncleanable_partitions_count"] == 0
        assert found["scriba_cleaner_in_progress"] == 0
        await node.log_cleaner.run(world.clock.now())
        await asyncio.sleep(1)
        again = await scrape(world)
        assert 1_000 <= again["kafka_log_logcleanermanager_time_since_last_run_ms"] < 15_000
        node.counters.compaction_bytes_read = 123_456_789_012
        more = await scrape(world)
        assert more["scriba_cleaner_read_bytes_total"] == 123_456_789_012

    in_a_node(script, scriba_metrics_listener=WHERE)


def test_a_scraper_sees_the_controller_and_its_brokers(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        await asyncio.sleep(5.5)
        found = await scrape(world)
        prefix = "kafka_controller_kafkacontroller_"
        assert found[f"{prefix}activecontrollercount"] == 1
        assert found[f"{prefix}activebrokercount"] == 1
        assert found[f"{prefix}fencedbrokercount"] == 0
        assert found[f'{prefix}brokerregistrationstate{{broker="{node.id}"}}'] == 30
        age_ms = found[f'{prefix}timesincelastheartbeatreceivedms{{broker="{node.id}"}}']
        assert 0 <= age_ms <= 2_100
        assert 0 <= found["scriba_controller_answer_age_seconds"] <= 2.1
        applied = found["kafka_server_broker_metadata_metrics_last_applied_record_offset"]
        assert 0 < applied <= node.image.last_offset

    in_a_node(script, scriba_metrics_listener=WHERE)


def test_other_questions_are_refused(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        assert (await ask(world, b"GET / HTTP/1.1\r\n\r\n"))[0] == "404 Not Found"
        assert (await ask(world, b"POST /metrics HTTP/1.1\r\n\r\n"))[0] == "405 Method Not Allowed"
        for nonsense in (b"nonsense", b"GET /metrics", b"GET /metrics FTP/1.1", b""):
            assert (await ask(world, nonsense + b"\r\n\r\n"))[0] == "400 Bad Request"
        status, body = await ask(world, b"HEAD /metrics HTTP/1.1\r", b"\n\r\n")
        assert (status, body) == ("200 OK", "")

    in_a_node(script, scriba_metrics_listener=WHERE)


@pytest.mark.parametrize(
    "asked",
    [
        b"GET http://127.0.0.1:9404/events?limit=1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET HTTP://metrics.example/events?limit=1 HTTP/1.1\r\n\r\n",
        b"GET /events?limit=1 HTTP/1.1\nHost: x\n\n",
        b"GET /events?limit=1 HTTP/1.0\r\n\r\n",
    ],
)
def test_requests_of_every_shape_are_answered(in_a_node: InANode, asked: bytes) -> None:
    """A proxy names the host as well, and a bare newline ends a line."""

    async def script(node: Node, world: ProcessWorld) -> None:
        status, body = await asyncio.wait_for(ask(world, asked), PATIENCE_S / 2)
        assert status == "200 OK"
        assert json.loads(body).keys() == {"events", "next", "lost"}

    in_a_node(script, scriba_metrics_listener=WHERE)


@pytest.mark.parametrize("sizes", [[20_000], [5_000] * 4, [300_000]], ids=str)
def test_a_request_that_is_too_long_is_told_so(in_a_node: InANode, sizes: list[int]) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        stream = await world.net.connect("127.0.0.1", 9404)
        stream.send((b"GET /metrics HTTP/1.1\r\nX: ",))
        for size in sizes:
            stream.send((b"x" * size,))
            await asyncio.sleep(0.01)
        stream.send((b"\r\n\r\n",))
        await asyncio.sleep(1)
        room = bytearray(1000)
        told = room[: stream.recv_into(memoryview(room))].decode()
        assert told.startswith("HTTP/1.1 431 Request Header Fields Too Large\r\n")
        assert told.endswith("a request has at most 8192 bytes\n")
        assert await read(stream) == b"", "it hangs up by itself in the end"

    in_a_node(script, scriba_metrics_listener=WHERE)


def test_clients_that_say_nothing_do_not_shut_out_others_for_long(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        silent = [await world.net.connect("127.0.0.1", 9404) for _ in range(MAX_CLIENTS)]
        assert await ask(world) == ("", "")
        await asyncio.sleep(PATIENCE_S + 1)
        assert [await read(stream) for stream in silent] == [b""] * MAX_CLIENTS
        assert await scrape(world)

    in_a_node(script, scriba_metrics_listener=WHERE)


def test_without_an_address_nobody_is_told(in_a_node: InANode) -> None:
    async def script(node: Node, world: ProcessWorld) -> None:
        assert node.metrics.port is None
        with pytest.raises(ConnectionRefusedError):
            await world.net.connect("127.0.0.1", 9404)

    in_a_node(script)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("127.0.0.1:9404", "must be http://host:port"),
        ("https://127.0.0.1:9404", "must be http://host:port"),
        ("http://127.0.0.1:70000", "must be http://host:port"),
        ("http://0.0.0.0:9404", "scriba.allow.insecure.bind=true"),
    ],
)
def test_an_address_that_cannot_or_may_not_be_bound_is_refused(given: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        NodeSettings.parse({"scriba.metrics.listener": given})


def test_an_open_address_is_taken_where_that_is_allowed() -> None:
    settings = {
        "scriba.metrics.listener": "http://0.0.0.0:9404",
        "scriba.allow.insecure.bind": "true",
    }
    assert NodeSettings.parse(settings).scriba_metrics_listener == "http://0.0.0.0:9404"
