"""Commands about all topics: one that is deleted between two of their questions is left out.

Who names a topic is told that it is not there; who asks for all of them did not ask for that one.
"""

from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from scriba.client import Admin, BrokerError, ErrorCode, PartlyFailed
from scriba.client.admin.model import TopicDescription

K = TypeVar("K")
V = TypeVar("V")


def is_gone(failed: BrokerError | PartlyFailed[Any]) -> bool:
    """Whether all that went wrong is that topics were deleted meanwhile."""
    errors = [failed] if isinstance(failed, BrokerError) else failed.errors.values()
    return all(each.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for each in errors)


async def still_there(asked: Awaitable[dict[K, V]]) -> dict[K, V]:
    """What is told of topics, without those that were deleted meanwhile."""
    try:
        return await asked
    except PartlyFailed as failed:
        if not is_gone(failed):
            raise
        return dict(failed.results)
    except BrokerError as refused:
        if not is_gone(refused):
            raise
        return {}


async def described(
    admin: Admin, named: Sequence[str] = (), *, include_internal: bool = True
) -> dict[str, TopicDescription]:
    """The topics that were named, or all that there are."""
    if named:
        return await admin.describe_topics(named)
    listed = await admin.list_topics(include_internal=include_internal)
    return await still_there(admin.describe_topics([topic.name for topic in listed]))
