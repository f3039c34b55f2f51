"""Partitioners: the hash of Java's client, sticking to a partition, taking turns."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from scriba.client.producing.partitioner import RoundRobin, Sticky, by_key
from scriba.runtime.rng import SeededRng


@pytest.mark.parametrize(
    ("key", "java"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_a_key_goes_where_java_puts_it(key: bytes, java: int) -> None:
    assert by_key(key, 1_000_003) == (java & 0x7FFFFFFF) % 1_000_003


@given(st.binary(max_size=40), st.integers(1, 1000))
def test_a_key_goes_where_other_clients_put_it(key: bytes, partitions: int) -> None:
    assert by_key(key, partitions) == (kafka_python_murmur2(key) & 0x7FFFFFFF) % partitions


def append(sticky: Sticky, size: int, batch_full: bool) -> None:
    sticky.bytes += size
    sticky.leave(batch_full)


def test_sticky_stays_until_a_full_batch_has_gone_there() -> None:
    sticky = Sticky(1000, SeededRng(1))
    first = sticky.draw([0, 1, 2], None)
    append(sticky, 600, batch_full=False)
    append(sticky, 399, batch_full=True)
    assert sticky.partition == first
    append(sticky, 1, batch_full=True)
    assert sticky.partition is None


def test_sticky_does_not_wait_for_ever_for_a_batch_to_fill() -> None:
    sticky = Sticky(1000, SeededRng(1))
    sticky.draw([0, 1], None)
    append(sticky, 1999, batch_full=False)
    assert sticky.partition is not None
    append(sticky, 1, batch_full=False)
    assert sticky.partition is None


def test_partitions_with_long_queues_are_drawn_less_often() -> None:
    sticky = Sticky(1000, SeededRng(1))
    drawn = Counter(sticky.draw([4, 5, 6], [0, 3, 1]) for _ in range(7000))
    # Weights 4, 1 and 3.
    assert drawn[4] == pytest.approx(3500, rel=0.1)
    assert drawn[5] == pytest.approx(875, rel=0.2)
    assert drawn[6] == pytest.approx(2625, rel=0.1)


def test_round_robin_takes_turns_for_each_topic() -> None:
    choose = RoundRobin()
    assert [choose("a", None, None, 3) for _ in range(4)] == [0, 1, 2, 0]
    assert choose("b", b"key", None, 3) == 0
