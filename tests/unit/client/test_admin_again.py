"""What an `Admin` tries again: answers that a cluster with new leaders gives for a moment."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from scriba.client.admin.calls import Calls
from scriba.errors import ErrorCode
from scriba.peers.errors import BrokerError


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_a_new_leader_is_asked_until_it_knows(code: ErrorCode) -> None:
    answers = [BrokerError(code), BrokerError(code), 5]

    async def retry(work: Any, limit: int, what: str) -> Any:
        while True:
            try:
                return await work()
            except BrokerError:
                assert answers

    async def attempt(keys: list[str]) -> dict[str, Any]:
        return {key: answers.pop(0) for key in keys}

    cluster: Any = SimpleNamespace(retry=retry, stale=lambda: None)
    calls = Calls(cluster, 1_000, 1_000)
    assert asyncio.run(calls.each(["orders-0"], attempt, None, "the offsets")) == {"orders-0": 5}
