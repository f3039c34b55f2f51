"""Questions about transactions that another broker coordinates: what goes with one request."""

import asyncio

import pytest

from scriba.broker.coordinators.verification import (
    ADD_PARTITIONS_VERSION,
    ASKED_AT_ONCE,
    Question,
    take,
)
from scriba.broker.net.large_requests import LIMITS
from scriba.wire.apis import ApiKey
from scriba.wire.messages.txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)


def questions(count: int, partitions: int, topics: int = 1) -> list[Question]:
    loop = asyncio.new_event_loop()
    try:
        return [
            Question(
                AddPartitionsToTxnTransaction(
                    transactional_id=f"t{number}",
                    producer_id=number,
                    producer_epoch=0,
                    verify_only=False,
                    topics=[
                        AddPartitionsToTxnTopic(name=str(topic), partitions=list(range(partitions)))
                        for topic in range(topics)
                    ],
                ),
                loop.create_future(),
            )
            for number in range(count)
        ]
    finally:
        loop.close()


@pytest.mark.parametrize(
    ("transactions", "partitions", "topics"),
    [(ASKED_AT_ONCE, 50, 1), (150, 150, 1), (24, 900, 1), (500, 1, 60), (3, 90_000, 1)],
)
def test_a_request_holds_no_more_than_its_receiver_takes_and_all_get_their_turn(
    transactions: int, partitions: int, topics: int
) -> None:
    waiting = questions(transactions, partitions, topics)
    limit = LIMITS[ApiKey.ADD_PARTITIONS_TO_TXN].elements
    asked = 0
    while taken := take(waiting, ASKED_AT_ONCE):
        request = AddPartitionsToTxnRequest(transactions=[each.transaction for each in taken])
        data = memoryview(request.encode(ADD_PARTITIONS_VERSION))
        for _ in AddPartitionsToTxnRequest.decode_in_slices(data, 0, ADD_PARTITIONS_VERSION, limit):
            pass
        asked += len(taken)
    assert asked == transactions


def test_small_transactions_share_a_request() -> None:
    waiting = questions(ASKED_AT_ONCE + 1, 10)
    assert len(take(waiting, ASKED_AT_ONCE)) == ASKED_AT_ONCE
    assert len(waiting) == 1
