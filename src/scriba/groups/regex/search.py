"""Topics that an expression names, found a share at a time: there may be thousands of them."""

from collections.abc import Iterable
from typing import Final

from scriba.groups.regex.syntax import BadExpression, Expression

MAX_VISITS: Final = 2_000_000
NAME_VISITS: Final = 5
"""What it costs to follow a name through states that are known, in visits of new ones."""


def matching(expression: Expression, names: Iterable[str]) -> frozenset[str]:
    """Those of the names that match, all at once; BadExpression where that takes too long."""
    search = Search(expression, names)
    while not search.advance(MAX_VISITS):
        pass
    return search.found()


class Search:
    """Names held against an expression."""

    def __init__(self, expression: Expression, names: Iterable[str]) -> None:
        self._expression = expression
        self._left = iter(names)
        self._found: list[str] = []
        self._visits = 0

    def advance(self, effort: int) -> bool:
        """Goes on for about `effort` visits; whether it is done. A name counts as NAME_VISITS.

        BadExpression where it takes too long in all.
        """
        expression = self._expression
        spent = 0
        for name in self._left:
            before = expression.visits
            if expression.matches(name):
                self._found.append(name)
            visits = expression.visits - before
            self._visits += visits
            if self._visits > MAX_VISITS:
                raise BadExpression(expression.text, "it takes too long to match")
            spent += NAME_VISITS + visits
            if spent >= effort:
                return False
        return True

    def found(self) -> frozenset[str]:
        return frozenset(self._found)
