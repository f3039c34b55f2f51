"""Where a log would be cut."""

import pytest

from scriba.cli.parsing.positions import END, Position
from scriba.cli.topics.trim import cuts
from scriba.client import TopicPartition

FULL, SHORT = TopicPartition("t", 0), TopicPartition("t", 1)
STARTS = {FULL: 10, SHORT: 0}
ENDS = {FULL: 100, SHORT: 5}


@pytest.mark.parametrize(
    ("before", "full", "short"),
    [
        (END, 100, 5),
        (Position("offset", 50), 50, 5),
        (Position("offset", 3), 10, 3),
        (Position("last", 20), 80, 0),
        (Position("time", 1), 40, 5),
    ],
)
def test_a_cut_never_leaves_the_log(before: Position, full: int, short: int) -> None:
    found = {cut.where: cut for cut in cuts(before, STARTS, ENDS, {FULL: 40})}
    assert (found[FULL].before, found[SHORT].before) == (full, short)
    assert (found[FULL].records, found[SHORT].records) == (full - 10, short)
