"""A scraper: asks a simulated node over HTTP, and reads with Prometheus' own client for Python."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from scriba.runtime.ports import EOF, WOULD_BLOCK, Stream
from scriba.testing.sim.world.world import ProcessWorld

WHERE = "http://127.0.0.1:9404"

REPLICATION_METRICS = (
    "kafka_server_replicamanager_isrshrinks_total",
    "kafka_server_replicamanager_isrexpands_total",
    "kafka_server_replicamanager_failedisrupdates_total",
    "kafka_server_replicamanager_underminisrpartitioncount",
    "scriba_follower_lag_records",
    "kafka_server_replicafetchermanager_maxlag",
    "kafka_server_replicafetchermanager_failedpartitionscount",
    "kafka_server_brokertopicmetrics_replicationbytesin_total",
    "kafka_server_brokertopicmetrics_replicationbytesout_total",
    "scriba_committed_records_lost_total",
)
"""What takes more than one node to move."""


async def read(stream: Stream) -> bytes:
    """Everything until the other side hangs up."""
    got, room = bytearray(), memoryview(bytearray(1 << 16))
    while True:
        n = stream.recv_into(room)
        if n == EOF:
            stream.close()
            return bytes(got)
        if n == WOULD_BLOCK:
            readable = asyncio.Event()
            stream.want(readable.set, None)
            await readable.wait()
            stream.want(None, None)
        else:
            got += room[:n]


async def ask(world: ProcessWorld, *pieces: bytes) -> tuple[str, str]:
    """Status and body of an answer."""
    stream = await world.net.connect("127.0.0.1", 9404)
    for piece in pieces:
        stream.send((piece,))
        await asyncio.sleep(0.01)
    head, _, body = (await read(stream)).decode().partition("\r\n\r\n")
    return head.split("\r\n")[0].removeprefix("HTTP/1.1 "), body


async def scrape(world: ProcessWorld) -> dict[str, float]:
    status, body = await ask(world, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status == "200 OK"
    return parsed(body)


def parsed(body: str) -> dict[str, float]:
    """As another program reads it: Prometheus' own client for Python."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(body):
        assert family.documentation, family.name
        assert family.type in ("counter", "gauge", "histogram"), family.name
        for sample in family.samples:
            inside = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            name = f"{sample.name}{{{inside}}}" if inside else sample.name
            assert name not in found, name
            found[name] = sample.value
    return found
