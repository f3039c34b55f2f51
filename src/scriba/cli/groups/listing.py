"""What coordinators list, when some of them cannot be asked: the rest, with a warning."""

from collections.abc import Awaitable
from typing import TypeVar

from scriba.cli.output import print_event
from scriba.cli.problems import FAILED
from scriba.client import PartlyListed

T = TypeVar("T")


async def listed(asked: Awaitable[list[T]]) -> tuple[list[T], int]:
    """What there is, and the exit code of a command that shows it."""
    try:
        return await asked, 0
    except PartlyListed as partly:
        told = f"{partly.args[0]} ({partly.fix})"
        offline = [str(where) for where in partly.offline]
        print_event(f"warning: {told}", {"warning": told, "offline": offline})
        return list(partly.results.values()), FAILED  # type: ignore[arg-type] # of the same kind
