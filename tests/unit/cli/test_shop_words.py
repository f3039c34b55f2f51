"""Words of `scriba shop` that make sense only together."""

import pytest

from scriba.cli.main import main


@pytest.mark.parametrize("words", [[], ["--compact"], ["--format", "delta"]])
def test_what_is_kept_of_old_versions_is_a_matter_of_compacting_a_table(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shop", "archive", "--keep", "1h", *words]) == 2
    assert "give --compact --format delta with it" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["revenue", "--sql", "SELECT 1"]])
def test_one_question_is_asked_at_a_time(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shop", "query", *words]) == 2
    assert "ask one question" in capsys.readouterr().err
