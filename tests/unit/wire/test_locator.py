"""Fields of stored values, found by a plan from the schema."""

import pytest

from scriba.native.implementation import Implementation
from scriba.wire.locator import stored_plan
from scriba.wire.messages.stored_groups import OffsetCommitValue
from tests.typed import present

KIND = b"\0\1"
WANTED = frozenset({"offset", "commit_timestamp"})


def stored(version: int, **fields: object) -> bytes:
    """As a record has it: the key of its kind, its version, itself."""
    value = OffsetCommitValue(offset=7, commit_timestamp=9, **fields)  # type: ignore[arg-type]
    return KIND + version.to_bytes(2, "big") + value.encode(version)


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("metadata", ["", "said", "x" * 200])
def test_fields_of_a_stored_value_are_found_in_every_version(
    chosen: Implementation, version: int, metadata: str
) -> None:
    data = stored(version, metadata=metadata)
    plan = stored_plan(OffsetCommitValue, version, WANTED)
    told = present(chosen.locate(plan, data, 0))
    assert [int.from_bytes(data[at : at + 8], "big") for at in told] == [7, 9]


def test_what_lies_behind_the_last_wanted_field_is_not_asked_for(chosen: Implementation) -> None:
    data = stored(4, metadata="", topic_id=bytes(range(16)))
    assert chosen.locate(stored_plan(OffsetCommitValue, 4, WANTED), data, 0) is not None


def test_a_field_that_the_version_does_not_have_is_an_error() -> None:
    stored_plan(OffsetCommitValue, 1, frozenset({"expire_timestamp"}))
    with pytest.raises(AssertionError, match="has no expire_timestamp"):
        stored_plan(OffsetCommitValue, 4, frozenset({"expire_timestamp"}))
