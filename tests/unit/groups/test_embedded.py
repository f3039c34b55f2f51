"""Subscriptions and shares inside of JoinGroup and SyncGroup: read as far as is reasonable."""

import struct

import pytest

from scriba.errors import ParseError
from scriba.groups.classic.embedded import MAX_ELEMENTS, read_subscription, read_topics


def subscription(count: int) -> bytes:
    """To so many topics without a name: two bytes each."""
    return struct.pack(">hi", 0, count) + bytes(2 * count) + struct.pack(">i", -1)


def test_a_subscription_to_millions_of_topics_is_no_subscription() -> None:
    assert len(read_topics(subscription(MAX_ELEMENTS))) == MAX_ELEMENTS
    for read in (read_subscription, read_topics):
        with pytest.raises(ParseError, match="more elements"):
            read(subscription(MAX_ELEMENTS + 1))
