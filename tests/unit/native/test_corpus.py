"""What fuzzing kept, played back: both implementations answer alike, and read no byte too many.

In `test_sanitized` this runs with an extension that ends the process where it does.
"""

import pytest

from tests.fuzz import inputs
from tests.fuzz.targets import TARGETS, exact

pytestmark = pytest.mark.usefixtures("extension")


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_no_input_of_the_corpus_sets_them_apart(target: str) -> None:
    kept = inputs.inputs(target)
    assert len(kept) > 10
    for name, data in kept.items():
        try:
            TARGETS[target](exact(data))
        except Exception as error:
            error.add_note(f"{inputs.CORPUS}/{target}.txt: {name}")
            raise


def test_every_part_of_the_corpus_is_that_of_a_target() -> None:
    assert inputs.targets() == sorted(TARGETS)
