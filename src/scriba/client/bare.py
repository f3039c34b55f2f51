"""A bare request over the public protocol: one connection, one question, one answer."""

import asyncio
from typing import Final, TypeVar

from scriba.errors import ErrorCode, KafkaError, error_code
from scriba.wire.admin import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from scriba.wire.frame import decode_response, encode_request
from scriba.wire.schema import Message

CLIENT_ID: Final = "scriba-cli"
CREATE_TOPICS_VERSION: Final = 7
LONGEST_ANSWER: Final = 1 << 20

M = TypeVar("M", bound=Message)


async def create_topic(host: str, port: int, name: str, partitions: int) -> None:
    """Creates a topic with the broker's default replication; one that is there stays as it is."""
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1)
    request = CreateTopicsRequest(topics=[topic])
    response = await ask(host, port, request, CreateTopicsResponse, CREATE_TOPICS_VERSION)
    for result in response.topics:
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise KafkaError(error_code(result.error_code), result.error_message or "")


async def ask(host: str, port: int, request: Message, answer: type[M], version: int) -> M:
    """One request and its answer on a connection of their own."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        frame = encode_request(request, version, 0, CLIENT_ID)
        writer.write(len(frame).to_bytes(4, "big") + frame)
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > LONGEST_ANSWER:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"an answer of {size} bytes")
        _, response = decode_response(answer, await reader.readexactly(size), version)
        return response
    finally:
        writer.close()
