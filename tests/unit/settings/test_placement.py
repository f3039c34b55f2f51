"""`scriba.replica.placement`: what it means, and what is refused with which words."""

import pytest

from scriba.config import ConfigError
from scriba.settings import NodeSettings, TopicSettings
from scriba.settings.placement import parse


def test_it_says_how_many_replicas_vote_and_observe_in_which_rack() -> None:
    placement = parse(" voters=2@zone-a, 1@zone-b ; observers=1@zone-c ")
    assert placement.voters == {"zone-a": 2, "zone-b": 1}
    assert placement.observers == {"zone-c": 1}
    assert (placement.voter_count, placement.total) == (3, 4)
    assert placement.text() == "voters=2@zone-a,1@zone-b;observers=1@zone-c"
    assert parse("voters=3@a").text() == "voters=3@a"


def test_a_replica_observes_by_the_rack_of_its_broker_alone() -> None:
    placement = parse("voters=1@a;observers=1@c")
    racks = {1: "a", 2: "b", 3: "c", 4: None, 5: "c"}
    assert placement.observing(racks) == {3, 5}, "a rack that is not named votes"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "must be voters=COUNT@RACK"),
        ("zone-a", "must be voters=COUNT@RACK"),
        ("voters=", "must be voters=COUNT@RACK"),
        ("voters=zone-a:2", "must be voters=COUNT@RACK"),
        ("voters=-1@a", "must be voters=COUNT@RACK"),
        ("voters=1@a;watchers=1@b", "must be voters=COUNT@RACK"),
        ("voters=1@a;voters=1@b", "names voters twice"),
        ("voters=1@a,1@a", "names rack a twice"),
        ("voters=1@a;observers=1@a", "a rack has voters or observers"),
        ("voters=0@a", "asks for no replicas in rack a"),
        ("observers=1@a", "names no voters"),
    ],
)
def test_what_is_no_placement_is_refused_in_one_line(text: str, complaint: str) -> None:
    node = NodeSettings.parse({"node.id": "1"})
    with pytest.raises(ConfigError, match=r"scriba\.replica\.placement") as refused:
        TopicSettings.checked({"scriba.replica.placement": text}, node)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_new_replicas_are_where_it_says_exactly() -> None:
    placement = parse("voters=2@a,1@b;observers=1@c")
    assert placement.complaint(["a", "b", "a", "c"]) is None
    assert "puts 0 in rack c" in str(placement.complaint(["a", "b", "a"]))
    assert "puts 1 on brokers without a rack" in str(
        placement.complaint(["a", "b", "a", "c", None])
    )


def test_a_move_goes_towards_it_and_never_away() -> None:
    placement = parse("voters=2@a;observers=1@c")
    before = ["a", "b", "b"]
    assert placement.complaint(["a", "b", "b"], before) is None, "as far from it as before"
    assert placement.complaint(["a", "a", "c"], before) is None
    assert placement.complaint(["a", "b", "c"], before) is None
    assert "puts 0 in rack a" in str(placement.complaint(["b", "b", "c"], before))
    assert "puts 2 in rack c" in str(placement.complaint(["a", "c", "c"], before))
