"""Incremental fetch sessions: what a request amounts to, and when a client must start over."""

import pytest

from scriba.broker.partitions import fetch_sessions
from scriba.broker.partitions.fetch_sessions import EVICTION_MS, LAST_EPOCH, FetchSessions
from scriba.errors import ErrorCode, KafkaError
from scriba.runtime.rng import SeededRng
from scriba.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic


def sessions(slots: int = 10) -> FetchSessions:
    return FetchSessions(slots, SeededRng(1))


def asking(
    *partitions: int, session: int = 0, epoch: int = 0, forget: tuple[int, ...] = ()
) -> FetchRequest:
    request = FetchRequest(session_id=session, session_epoch=epoch)
    if partitions:
        wanted = [FetchPartition(partition=index) for index in partitions]
        request.topics = [FetchTopic(topic="t", partitions=wanted)]
    if forget:
        request.forgotten_topics_data = [ForgottenTopic(topic="t", partitions=list(forget))]
    return request


def indexes(plan: object) -> list[int]:
    return [item.asked.partition for item in plan.watched]  # type: ignore[attr-defined]


def refusal(cache: FetchSessions, request: FetchRequest, by_id: bool = False) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        cache.plan(request, by_id, 0)
    return caught.value.code


def test_a_full_fetch_opens_a_session_and_the_next_one_need_not_repeat_itself() -> None:
    cache = sessions()
    first = cache.plan(asking(0, 1, 2), False, 0)
    assert (first.incremental, indexes(first)) == (False, [0, 1, 2])
    assert first.session_id > 0
    second = cache.plan(asking(session=first.session_id, epoch=1), False, 0)
    assert (second.incremental, indexes(second)) == (True, [0, 1, 2])


def test_partitions_join_and_leave_a_session() -> None:
    cache = sessions()
    opened = cache.plan(asking(0, 1), False, 0)
    changed = cache.plan(asking(2, session=opened.session_id, epoch=1, forget=(0,)), False, 0)
    assert indexes(changed) == [1, 2]


def test_an_answered_partition_goes_behind_the_others() -> None:
    cache = sessions()
    opened = cache.plan(asking(0, 1, 2), False, 0)
    assert opened.session is not None
    opened.session.answered(opened.watched[0])
    again = cache.plan(asking(session=opened.session_id, epoch=1), False, 0)
    assert indexes(again) == [1, 2, 0]


def test_a_gap_in_the_epochs_means_start_over() -> None:
    cache = sessions()
    opened = cache.plan(asking(0), False, 0)
    lost = asking(session=opened.session_id, epoch=3)
    assert refusal(cache, lost) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert refusal(cache, asking(session=77, epoch=1)) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_the_epoch_wraps_to_one_because_zero_would_open_a_session() -> None:
    cache = sessions()
    opened = cache.plan(asking(0), False, 0)
    assert opened.session is not None
    opened.session.epoch = LAST_EPOCH
    cache.plan(asking(session=opened.session_id, epoch=LAST_EPOCH), False, 0)
    assert opened.session.epoch == 1


def test_a_session_cannot_change_from_names_to_ids() -> None:
    cache = sessions()
    opened = cache.plan(asking(0), False, 0)
    by_id = asking(session=opened.session_id, epoch=1)
    assert refusal(cache, by_id, by_id=True) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_final_fetch_ends_the_session_and_reads_once_more() -> None:
    cache = sessions()
    opened = cache.plan(asking(0), False, 0)
    last = cache.plan(asking(0, session=opened.session_id, epoch=-1), False, 0)
    assert (last.session_id, indexes(last), len(cache)) == (0, [0], 0)


def test_a_session_that_forgets_its_last_partition_ends() -> None:
    cache = sessions()
    opened = cache.plan(asking(0), False, 0)
    last = cache.plan(asking(session=opened.session_id, epoch=1, forget=(0,)), False, 0)
    assert (last.session_id, indexes(last), len(cache)) == (0, [], 0)


def test_a_full_cache_serves_without_a_session_until_one_has_been_idle_for_long() -> None:
    cache = sessions(slots=1)
    held = cache.plan(asking(0), False, 0)
    assert cache.plan(asking(0), False, EVICTION_MS).session_id == 0
    taken = cache.plan(asking(0), False, EVICTION_MS + 1)
    assert taken.session_id > 0
    evicted = asking(session=held.session_id, epoch=1)
    assert refusal(cache, evicted) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_the_session_used_longest_ago_is_the_one_to_go() -> None:
    cache = sessions(slots=2)
    old = cache.plan(asking(0), False, 0)
    used = cache.plan(asking(0), False, 0)
    cache.plan(asking(session=old.session_id, epoch=1), False, 10)
    cache.plan(asking(0), False, EVICTION_MS + 5)
    assert refusal(cache, asking(session=used.session_id, epoch=1)) is (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )
    assert cache.plan(asking(session=old.session_id, epoch=2), False, EVICTION_MS + 6)


def test_sessions_of_many_partitions_have_a_bound_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "LARGE", 10)
    monkeypatch.setattr(fetch_sessions, "MAX_WATCHED", 50)
    cache = sessions()
    first = cache.plan(asking(*range(40)), False, 0)
    second = cache.plan(asking(*range(20)), False, 0)
    # ApiEntry all the same, but not remembered; small ones are.
    assert (second.session, len(second.watched)) == (None, 20)
    assert cache.plan(asking(*range(5)), False, 0).session is not None
    growing = asking(*range(40, 50), session=first.session_id, epoch=1)
    assert refusal(cache, growing) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.partitions == 5
    assert cache.plan(asking(*range(20)), False, 0).session is not None
