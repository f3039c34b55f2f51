"""The hash of a group's topics; the numbers were computed by the libraries of Kafka 4.3."""

import pytest

from scriba.groups.consumer.topic_hash import metadata_hash, xxh3
from scriba.groups.facts import TopicFacts
from tests.unit.groups.shard import TopicTable


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, 3244421341483603138),
        (1, 1433843135270481901),
        (3, 12180141160879835164),
        (4, 7895465118229274323),
        (8, 6941064856527638883),
        (9, 18374517719163151272),
        (16, 13314990914799711621),
        (17, 8163341949877205007),
        (32, 1873302701886544469),
        (33, 4486878507168070088),
        (65, 9408609914592003654),
        (97, 2137665177113230204),
        (128, 7440608504995537343),
        (129, 14295761343243267012),
        (240, 7229805477010515663),
        (241, 10082113959289486871),
        (256, 4339360625268998362),
        (1024, 11205349619999208113),
        (1025, 9253807012321506678),
        (1088, 3424848841118183642),
        (1089, 3067025562774136808),
        (5000, 8762507191635236893),
    ],
)
def test_xxh3_of_every_size_class(size: int, expected: int) -> None:
    assert xxh3(bytes((n * 7 + 3) & 255 for n in range(size))) == expected


def test_a_topic_with_racks_hashes_to_kafkas_number() -> None:
    topics = TopicTable()
    racks = (frozenset({"rack2", "rack1"}), frozenset({"rack1"}))
    topics.topics["foo"] = TopicFacts("foo", bytes(range(1, 17)), 2, racks)
    assert metadata_hash(["foo", "gone"], topics) == -2476442438836974864
    assert metadata_hash(["gone"], topics) == 0


def test_whatever_changes_about_a_topic_changes_the_hash() -> None:
    def hashed(*facts: TopicFacts) -> int:
        topics = TopicTable()
        topics.topics = {each.name: each for each in facts}
        return metadata_hash(topics.topics, topics)

    t = TopicFacts("t", bytes(16), 1, (frozenset({"a"}),))
    others = [
        t._replace(name="u"),
        t._replace(id=bytes(15) + b"\1"),
        t._replace(partitions=2),
        t._replace(racks=(frozenset({"b"}),)),
    ]
    assert len({hashed(t), hashed(t, others[0]), *map(hashed, others)}) == 6
