"""Transactions request by request: what Kafka answers to right and wrong ones, in every version."""

from collections.abc import Iterator

import pytest

from tests.integration.coordinators.raw_txn import Producer, Raw
from tools.kafka.brokers import Broker
from tools.kafka.rawkafka import LATEST, batch, create_topic, list_offset, produce, produced

UNKNOWN_SERVER_ERROR = -1
NONE = 0
CORRUPT = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_GROUP_ID = 24
TOPIC_AUTHORIZATION_FAILED = 29
INVALID_REQUEST = 42
OUT_OF_ORDER = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
INVALID_TRANSACTION_TIMEOUT = 50
CONCURRENT_TRANSACTIONS = 51
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
OPERATION_NOT_ATTEMPTED = 55
INVALID_RECORD = 87
PRODUCER_FENCED = 90
TRANSACTIONAL_ID_NOT_FOUND = 105
TRANSACTION_ABORTABLE = 120


@pytest.fixture
def raw(cluster: Broker, topic: str) -> Iterator[Raw]:
    """A producer named after its test, with a topic of that name."""
    with Raw(cluster.port, topic) as made:
        create_topic(made.connection, topic, 2)
        yield made


# ---- InitProducerId ----


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_time_out_outside_its_bounds_is_refused(raw: Raw, timeout_ms: int) -> None:
    answer = raw.settled(lambda: raw.init(timeout_ms))
    assert answer.error_code == INVALID_TRANSACTION_TIMEOUT
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


def test_an_empty_transactional_id_is_refused(raw: Raw) -> None:
    assert raw.init(tid="").error_code == INVALID_REQUEST


def test_half_a_producer_is_refused(raw: Raw) -> None:
    raw.begin()
    assert raw.init(producer=(5, -1)).error_code == INVALID_REQUEST
    assert raw.init(producer=(-1, 5)).error_code == INVALID_REQUEST


def test_a_producer_that_comes_again_has_the_next_epoch(raw: Raw) -> None:
    first = raw.begin()
    assert raw.begin() == (first[0], first[1] + 1)


@pytest.mark.parametrize(("version", "code"), [(3, INVALID_PRODUCER_EPOCH), (4, PRODUCER_FENCED)])
def test_a_replaced_producer_that_names_itself_is_fenced(raw: Raw, version: int, code: int) -> None:
    old = raw.begin()
    raw.begin()
    assert raw.init(producer=old, version=version).error_code == code


def test_a_repeated_question_gets_the_same_epoch(raw: Raw) -> None:
    first = raw.begin()
    second = raw.init(producer=first)
    again = raw.init(producer=first)
    assert (again.producer_id, again.producer_epoch) == (second.producer_id, first[1] + 1)


def test_taking_over_an_id_aborts_the_transaction_that_is_open(raw: Raw, topic: str) -> None:
    old = raw.begin()
    assert raw.write(topic, old, 0) == NONE
    assert raw.init().error_code == CONCURRENT_TRANSACTIONS
    raw.complete()
    assert raw.describe().transaction_state == "CompleteAbort"
    new = raw.begin()
    assert new == (old[0], old[1] + 2)
    assert raw.write(topic, old, 1) == INVALID_PRODUCER_EPOCH
    (aborted,) = raw.read(topic).aborted_transactions
    assert (aborted.producer_id, aborted.first_offset) == (old[0], 0)


# ---- AddPartitionsToTxn, AddOffsetsToTxn ----


def test_all_partitions_join_or_none(raw: Raw, topic: str) -> None:
    producer = raw.begin()
    assert raw.add(producer, {topic: [0, 7], "no-such-topic": [0]}) == {
        (topic, 0): OPERATION_NOT_ATTEMPTED,
        (topic, 7): UNKNOWN_TOPIC_OR_PARTITION,
        ("no-such-topic", 0): UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert raw.describe().transaction_state == "Empty"


def test_nobody_writes_to_an_internal_topic_by_transaction(raw: Raw) -> None:
    producer = raw.begin()
    refused = raw.add(producer, {"__transaction_state": [0]})
    assert set(refused.values()) == {TOPIC_AUTHORIZATION_FAILED}


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_partitions_join_for_the_current_producer_only(raw: Raw, topic: str, version: int) -> None:
    pid, epoch = raw.begin()
    fenced = INVALID_PRODUCER_EPOCH if version < 2 else PRODUCER_FENCED
    assert raw.add((pid, epoch + 1), {topic: [0]}, version) == {(topic, 0): fenced}
    mapping = INVALID_PRODUCER_ID_MAPPING
    assert raw.add((pid + 10_000, epoch), {topic: [0]}, version) == {(topic, 0): mapping}
    assert raw.add((pid, epoch), {topic: [0]}, version) == {(topic, 0): NONE}
    assert raw.add((pid, epoch), {topic: [0]}, version) == {(topic, 0): NONE}
    assert raw.describe().transaction_state == "Ongoing"


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_the_offsets_of_a_group_join_like_a_partition(raw: Raw, version: int) -> None:
    pid, epoch = raw.begin()
    fenced = INVALID_PRODUCER_EPOCH if version < 2 else PRODUCER_FENCED
    assert raw.add_group((pid, epoch + 1), "g", version) == fenced
    assert raw.add_group((pid, epoch), "g", version) == NONE
    (joined,) = raw.describe().topics
    assert joined.topic == "__consumer_offsets"
    raw.ended((pid, epoch), True, 3)


@pytest.mark.parametrize("version", [4, 5])
def test_a_leader_asks_whether_a_partition_is_part_of_a_transaction(
    raw: Raw, topic: str, version: int
) -> None:
    producer = pid, epoch = raw.begin()
    ask = {topic: [0, 1]}
    abortable = dict.fromkeys([(topic, 0), (topic, 1)], TRANSACTION_ABORTABLE)
    assert raw.add_as_broker(producer, ask, True, version) == abortable
    assert raw.add_as_broker(producer, {topic: [0]}, False, version) == {(topic, 0): NONE}
    half = {(topic, 0): NONE, (topic, 1): TRANSACTION_ABORTABLE}
    assert raw.add_as_broker(producer, ask, True, version) == half
    fenced = {(topic, 0): PRODUCER_FENCED}
    assert raw.add_as_broker((pid, epoch + 1), {topic: [0]}, True, version) == fenced
    assert raw.add_as_broker((pid, epoch + 1), {topic: [0]}, False, version) == fenced
    unknown = {(topic, 9): UNKNOWN_TOPIC_OR_PARTITION}
    assert raw.add_as_broker(producer, {topic: [9]}, True, version) == unknown


# ---- EndTxn ----


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_a_classic_transaction_ends_and_ends_again(raw: Raw, topic: str, version: int) -> None:
    producer = pid, epoch = raw.begin()
    assert raw.end(producer, True, version).error_code == INVALID_TXN_STATE
    raw.add(producer, {topic: [0]})
    fenced = INVALID_PRODUCER_EPOCH if version < 2 else PRODUCER_FENCED
    assert raw.end((pid, epoch + 1), True, version).error_code == fenced
    assert raw.end((pid + 10_000, epoch), True, version).error_code == INVALID_PRODUCER_ID_MAPPING
    assert raw.ended(producer, True, version) == producer
    assert raw.end(producer, True, version).error_code == NONE
    assert raw.end(producer, False, version).error_code == INVALID_TXN_STATE


def test_ending_gives_the_next_epoch_and_the_same_one_when_asked_again(
    raw: Raw, topic: str
) -> None:
    producer = pid, epoch = raw.begin()
    assert raw.write(topic, producer, 0) == NONE
    following = raw.ended(producer, True)
    assert following == (pid, epoch + 1)
    again = raw.end(producer, True)
    assert (again.error_code, again.producer_id, again.producer_epoch) == (NONE, *following)
    assert raw.end(producer, False).error_code == INVALID_TXN_STATE
    assert raw.end(following, True).error_code == INVALID_TXN_STATE
    assert raw.end((pid, epoch + 5), True).error_code == PRODUCER_FENCED


def test_aborting_before_anything_was_written_also_gives_the_next_epoch(raw: Raw) -> None:
    producer = pid, epoch = raw.begin()
    assert raw.end(producer, True).error_code == INVALID_TXN_STATE
    assert raw.ended(producer, False) == (pid, epoch + 1)
    assert raw.describe().transaction_state == "CompleteAbort"


# ---- Produce ----


@pytest.mark.parametrize(
    ("version", "code"),
    [(9, INVALID_TXN_STATE), (10, INVALID_TXN_STATE), (11, TRANSACTION_ABORTABLE), (12, NONE)],
)
def test_a_write_to_a_partition_that_never_joined(
    raw: Raw, topic: str, version: int, code: int
) -> None:
    producer = raw.begin()
    assert raw.write(topic, producer, 0, version) == code
    state = "Ongoing" if code == NONE else "Empty"
    assert raw.describe().transaction_state == state


@pytest.mark.parametrize("version", [9, 11, 12])
def test_a_write_of_somebody_else(raw: Raw, topic: str, version: int) -> None:
    pid, epoch = raw.begin()
    raw.add((pid, epoch), {topic: [0]})
    stranger = (pid + 10_000, epoch)
    assert raw.write(topic, stranger, 0, version) == INVALID_PRODUCER_ID_MAPPING
    assert raw.write(topic, (pid, epoch + 1), 0, version) == INVALID_PRODUCER_EPOCH
    assert raw.read(topic, committed=False).high_watermark == 0


def test_a_transactional_batch_needs_a_transactional_id(raw: Raw, topic: str) -> None:
    producer = raw.begin()
    refused = TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert raw.write(topic, producer, 0, tid=None) == refused


def test_a_producer_in_a_transaction_writes_nothing_outside_of_it(raw: Raw, topic: str) -> None:
    producer = raw.begin()
    assert raw.write(topic, producer, 0) == NONE
    plain = raw.write(topic, producer, 1, tid=None, transactional=False)
    assert plain == INVALID_TXN_STATE


def test_after_an_end_the_old_epoch_is_over_and_the_new_one_begins_at_zero(
    raw: Raw, topic: str
) -> None:
    producer = raw.begin()
    assert raw.write(topic, producer, 0) == NONE
    following = raw.ended(producer, True)
    assert raw.write(topic, producer, 1) == INVALID_PRODUCER_EPOCH
    assert raw.write(topic, following, 1) == OUT_OF_ORDER
    assert raw.write(topic, following, 0) == NONE


def test_a_classic_producer_goes_on_counting_from_one_transaction_to_the_next(
    raw: Raw, topic: str
) -> None:
    producer = raw.begin()
    raw.add(producer, {topic: [0]})
    assert raw.write(topic, producer, 0, 9) == NONE
    raw.ended(producer, True, 3)
    assert raw.write(topic, producer, 1, 9) == INVALID_TXN_STATE
    raw.add(producer, {topic: [0]})
    assert raw.write(topic, producer, 1, 9) == NONE


def test_a_producer_unknown_to_the_partition_begins_at_zero_in_version_2(
    raw: Raw, topic: str
) -> None:
    producer = raw.begin()
    assert raw.write(topic, producer, 3) == OUT_OF_ORDER


@pytest.mark.parametrize("version", [3, 9, 12])
def test_of_two_batches_for_one_partition_the_last_is_taken(
    raw: Raw, topic: str, version: int
) -> None:
    first, last = batch([b"one"]).encode(), batch([b"two", b"three"]).encode()
    request = produce(first, topic)
    entries = request.topic_data[0].partition_data
    entries.append(produce(last, topic).topic_data[0].partition_data[0])
    (answer,) = raw.connection.call(request, version).responses[0].partition_responses
    assert (answer.error_code, answer.base_offset) == (NONE, 0)
    part = raw.read(topic)
    assert part.high_watermark == 2
    assert b"one" not in part.records


def test_a_refusal_tells_where_the_log_begins_if_the_log_was_asked(raw: Raw, topic: str) -> None:
    def told(records: bytes, partition: int = 0) -> tuple[int, int, str | None]:
        answer = produced(raw.connection.call(produce(records, topic, partition), 9))
        return answer.error_code, answer.log_start_offset, answer.error_message

    good = batch([b"v"])
    assert told(good.encode(), 7) == (UNKNOWN_TOPIC_OR_PARTITION, -1, None)
    assert told(good.encode() * 2) == (INVALID_RECORD, -1, None)
    assert told(good.but(base_offset=5).encode()) == (INVALID_RECORD, 0, None)
    assert told(good.but(crc=1).encode()) == (CORRUPT, -1, None)


def test_a_transactional_batch_without_an_id_is_refused_before_its_partition_is_looked_for(
    raw: Raw, topic: str
) -> None:
    producer = raw.begin()
    refused = TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert raw.write(topic, producer, 0, tid=None, partition=7) == refused


# ---- TxnOffsetCommit ----


@pytest.mark.parametrize("version", [0, 3, 5])
def test_offsets_of_what_does_not_exist_are_refused_whosever_they_are(
    raw: Raw, topic: str, version: int
) -> None:
    pid, epoch = raw.begin()
    mapping, unknown = INVALID_PRODUCER_ID_MAPPING, UNKNOWN_TOPIC_OR_PARTITION
    places = {topic: [0, 9], "no-such-topic": [0]}
    assert raw.commit_offsets((pid + 10_000, epoch), "g", places, version) == {
        (topic, 0): mapping,
        (topic, 9): unknown,
        ("no-such-topic", 0): unknown,
    }
    nowhere = {topic: [9], "no-such-topic": [0]}
    found = raw.commit_offsets((pid + 10_000, epoch), "", nowhere, version)
    assert set(found.values()) == {unknown}


def test_offsets_of_no_group_are_refused_before_anybody_asks_whose_they_are(
    raw: Raw, topic: str
) -> None:
    pid, epoch = raw.begin()
    refused = {(topic, 0): INVALID_GROUP_ID}
    assert raw.commit_offsets((pid + 10_000, epoch), "", {topic: [0]}) == refused


# ---- readers ----


def test_read_committed_stops_where_a_transaction_is_open(raw: Raw, topic: str) -> None:
    producer = raw.begin()
    assert raw.write(topic, producer, 0) == NONE
    part = raw.read(topic)
    assert (part.high_watermark, part.last_stable_offset) == (1, 0)
    assert not part.records
    assert raw.read(topic, committed=False).records
    raw.ended(producer, True)
    part = raw.read(topic)
    assert (part.high_watermark, part.last_stable_offset) == (2, 2)
    assert not part.aborted_transactions


def test_what_was_aborted_is_told_to_who_reads_committed(raw: Raw, topic: str) -> None:
    producer = raw.begin()
    for commit in (False, True, False):
        assert raw.write(topic, producer, 0) == NONE
        producer = raw.ended(producer, commit)
    part = raw.read(topic)
    told = [(a.producer_id, a.first_offset) for a in part.aborted_transactions]
    assert told == [(producer[0], 0), (producer[0], 4)]
    (later,) = raw.read(topic, offset=2).aborted_transactions
    assert later.first_offset == 4


def test_a_transaction_over_many_partitions_reaches_every_one_of_them(raw: Raw, topic: str) -> None:
    wide = topic + "-wide"
    create_topic(raw.connection, wide, 40)
    producer = raw.begin()
    assert set(raw.add(producer, {wide: list(range(40))}).values()) == {NONE}
    for partition in (0, 17, 39):
        assert raw.write(wide, producer, 0, 9, partition) == NONE
    raw.ended(producer, True, 3)
    ends = [list_offset(raw.connection, wide, p, LATEST).offset for p in range(40)]
    assert ends == [2 if p in (0, 17, 39) else 1 for p in range(40)]


# ---- by hand ----


def test_an_operator_ends_a_transaction_that_hangs(raw: Raw, topic: str) -> None:
    raw.begin()
    producer = raw.begin()
    assert raw.write(topic, producer, 0) == NONE
    assert raw.mark(producer, False, "no-such-topic") == UNKNOWN_TOPIC_OR_PARTITION
    assert raw.mark((producer[0], producer[1] - 1), False, topic) == INVALID_PRODUCER_EPOCH
    assert raw.mark((-1, 0), False, topic) == UNKNOWN_SERVER_ERROR
    assert raw.mark(producer, False, topic) == NONE
    part = raw.read(topic)
    assert part.last_stable_offset == part.high_watermark == 2
    assert [a.first_offset for a in part.aborted_transactions] == [0]


def test_a_transaction_is_told_of(raw: Raw, topic: str) -> None:
    missing = raw.describe()
    assert missing.error_code == TRANSACTIONAL_ID_NOT_FOUND
    producer: Producer = raw.begin(70_000)
    assert raw.write(topic, producer, 0) == NONE
    told = raw.describe()
    assert (told.producer_id, told.producer_epoch) == producer
    assert (told.transaction_state, told.transaction_timeout_ms) == ("Ongoing", 70_000)
    assert [(t.topic, list(t.partitions)) for t in told.topics] == [(topic, [0])]
    listed = raw.list(producers=[producer[0]])
    assert [(t.transactional_id, t.transaction_state) for t in listed.transaction_states] == [
        (topic, "Ongoing")
    ]
    assert not raw.list(producers=[producer[0]], states=["Empty"]).transaction_states
    assert list(raw.list(states=["Sleeping"]).unknown_state_filters) == ["Sleeping"]
