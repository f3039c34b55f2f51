"""What a type checker cannot know, and a test does: said once, and checked when the test runs."""

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """The value, which is there."""
    assert value is not None
    return value
