"""What `scriba consume` gives its consumer."""

import pytest

from scriba.cli.parsing.arguments import parser
from scriba.cli.records.consume import _settings


@pytest.mark.parametrize(
    ("words", "group", "commits"),
    [
        ("", None, False),
        ("-X group.id=theirs", "theirs", False),
        ("-X group.id=theirs -X enable.auto.commit=true", "theirs", False),
        ("--group mine", "mine", None),
        ("--group mine -X group.id=theirs", "mine", None),
        ("--group mine -X enable.auto.commit=false", "mine", "false"),
    ],
)
def test_only_a_member_of_the_group_that_was_asked_for_commits(
    words: str, group: str | None, commits: object
) -> None:
    options = parser().parse_args(["consume", "t", "--exit", "-b", "broker:9092", *words.split()])
    settings = _settings(options)
    assert settings.get("group.id") == group
    assert settings.get("enable.auto.commit") == commits
