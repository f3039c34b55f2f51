"""An address where something answers that is no broker: said at once, and by name."""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from scriba.client import Admin, Consumer, NotKafka, Producer, TimedOut
from scriba.peers.other_protocols import protocol_of

PAGE = b"<!DOCTYPE HTML>\r\n<html><body>400</body></html>"
TLS_ALERT = bytes.fromhex("15030100020246")
MYSQL = bytes.fromhex("4a0000000a382e302e3336") + bytes(60)


@contextlib.asynccontextmanager
async def answering(first: bytes, *, hang_up: bool = True) -> AsyncIterator[str]:
    """The address of a server that says this to whoever connects."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(first)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            if not hang_up:
                await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
        (PAGE, "HTTP"),
        (TLS_ALERT, "TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
        (b"-ERR unknown command\r\n", "Redis"),
        (MYSQL, "MySQL"),
        (b"500 hello\r\n", "'500 hello'"),
    ],
)
@pytest.mark.parametrize("hang_up", [True, False], ids=["hangs-up", "stays"])
async def test_what_answers_is_named(said: bytes, named: str, hang_up: bool) -> None:
    async with answering(said, hang_up=hang_up) as address, Admin(bootstrap_servers=address) as a:
        with pytest.raises(NotKafka, match="answers, but not in Kafka's protocol") as refused:
            await asyncio.wait_for(a.list_topics(), 30)
    assert address in str(refused.value)
    assert named in str(refused.value)


async def test_a_letter_is_not_taken_for_a_length() -> None:
    """`<!DO` read as a length is a gigabyte; nobody has sent that much."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with answering(PAGE, hang_up=False) as address, Admin(bootstrap_servers=address) as admin:
        with pytest.raises(NotKafka):
            await asyncio.wait_for(admin.list_topics(), 30)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


async def producing(address: str) -> None:
    async with Producer(bootstrap_servers=address) as producer:
        await producer.send("t", b"v")


async def reading(address: str) -> None:
    async with Consumer(bootstrap_servers=address) as consumer:
        consumer.assign([("t", 0)])
        while True:
            await consumer.poll(1000)


async def belonging(address: str) -> None:
    async with Consumer(bootstrap_servers=address, group_id="g") as consumer:
        consumer.subscribe("t")
        while True:
            await consumer.poll(1000)


@pytest.mark.parametrize("use", [producing, reading, belonging])
async def test_every_client_says_so_at_once(
    use: Callable[[str], Coroutine[Any, Any, None]],
) -> None:
    async with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        with pytest.raises(NotKafka, match="HTTP"):
            await asyncio.wait_for(use(address), 30)


async def test_another_bootstrap_server_may_still_be_a_broker() -> None:
    async with answering(PAGE) as address:
        servers = [address, "127.0.0.1:1"]
        admin = Admin(bootstrap_servers=servers, default_api_timeout_ms=600)
        async with admin:
            with pytest.raises(TimedOut) as late:
                await admin.list_topics()
    assert "127.0.0.1:1" in str(late.value)


async def test_one_that_hangs_up_without_a_word() -> None:
    async with answering(b"") as address:
        admin = Admin(bootstrap_servers=address, default_api_timeout_ms=500)
        with pytest.raises(TimedOut, match="closed it without an answer"):
            await admin.list_topics()
        await admin.close()


def test_a_brokers_answer_is_no_foreign_protocol() -> None:
    assert protocol_of(bytes.fromhex("000001a2000000010000")) is None
    assert protocol_of(b"") is None
