"""Who asks whether a node may go: what it is told, and by whose clock voters are judged."""

from scriba.cli.cluster.may_restart import heard_ms, page
from scriba.client.admin.model import QuorumDescription, QuorumReplica

LEADERS_CLOCK_MS = 1_700_000_000_000


def test_voters_are_judged_by_the_clock_of_their_leader() -> None:
    voters = tuple(
        QuorumReplica(n, "", 10, LEADERS_CLOCK_MS - ms, LEADERS_CLOCK_MS - ms)
        for n, ms in ((1, 0), (2, 400), (3, 60_000))
    )
    assert heard_ms(QuorumDescription(1, 3, 10, voters, ())) == {1: 0, 2: 400, 3: 60_000}


def test_the_page_says_yes_or_why_not() -> None:
    assert page(2, []) == ["node 2 may restart"]
    assert page(2, ["a"] * 25)[-1] == "  and 5 more"
