"""A shard of the group coordinator for every story."""

from collections.abc import Callable

import pytest

from tests.unit.groups.shard import Shard


@pytest.fixture
def make_shard() -> Callable[..., Shard]:
    return Shard


@pytest.fixture
def shard() -> Shard:
    """With topics t (4 partitions) and u (2)."""
    shard = Shard()
    shard.topics.create("t", 4)
    shard.topics.create("u", 2)
    return shard
