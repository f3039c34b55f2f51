"""Expressions that members subscribe with: RE2's syntax, whole names, bounded time."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.errors import ErrorCode
from scriba.groups.regex import search as regex_search
from scriba.groups.regex.syntax import BadExpression, Expression

NAMES = [
    "",
    "orders",
    "orders.eu",
    "orders-1",
    "ORDERS",
    "order",
    "a",
    "ab",
    "aab",
    "a_b",
    "1",
    ".",
]


@pytest.mark.parametrize(
    ("text", "matching"),
    [
        ("orders", {"orders"}),
        ("orders.*", {"orders", "orders.eu", "orders-1"}),
        ("orders\\..*", {"orders.eu"}),
        ("^orders$", {"orders"}),
        ("(?i)orders", {"orders", "ORDERS"}),
        ("(?i:O)rders", {"orders"}),
        ("a|1", {"a", "1"}),
        ("(?:a+)b?", {"a", "ab", "aab"}),
        ("a{2}b", {"aab"}),
        ("a{1,2}b", {"ab", "aab"}),
        ("a{2,}.", {"aab"}),
        ("[a-c_]+", {"a", "ab", "aab", "a_b"}),
        ("[^a-z]", {"1", "."}),
        ("[[:digit:].]", {"1", "."}),
        ("\\d|\\pL", {"1", "a"}),
        ("\\Q.\\E", {"."}),
        ("a\\b.*", {"a"}),
        ("\\p{Lu}+", {"ORDERS"}),
        ("(?P<stem>order)s?", {"orders", "order"}),
        ("\\x61{x}?|a", {"a"}),
        ("", {""}),
        ("é", set()),
    ],
)
def test_a_whole_name_must_match(text: str, matching: set[str]) -> None:
    assert regex_search.matching(Expression(text), NAMES) == matching


@pytest.mark.parametrize(
    "text",
    [
        "(",
        ")",
        "a)",
        "[a",
        "*a",
        "a**",
        "a*+",
        "{2}",
        "a{2,1}",
        "a{1001}",
        "\\1",
        "\\Z",
        "\\y",
        "\\",
        "(?=a)",
        "(?<=a)",
        "(?<!a)",
        "(?x)a",
        "(?P<a-b>c)",
        "[z-a]",
        "[[:word]",
        "[[:none:]]",
        "\\p{Greek}",
        "\\C",
        "\\x6",
        "(" * 200 + ")" * 200,
        "a" * 5000,
        "(a{1000}){1000}",
    ],
)
def test_what_re2_does_not_know_or_would_not_end_is_refused(text: str) -> None:
    with pytest.raises(BadExpression) as refused:
        Expression(text)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_an_expression_that_makes_backtracking_explode_is_matched_at_once() -> None:
    assert not Expression("(a+)+(a|aa)*b").matches("a" * 249)
    assert Expression("(a+)+(a|aa)*b").matches("a" * 248 + "b")


def test_matching_many_names_by_a_huge_expression_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(regex_search, "MAX_VISITS", 1_000)
    names = [f"{n:b}".replace("0", "a").replace("1", "b") for n in range(200, 300)]
    with pytest.raises(BadExpression, match="too long"):
        regex_search.matching(Expression("(a|b)*a(a|b){6}"), names)


def test_names_are_matched_a_share_at_a_time_as_they_are_all_at_once() -> None:
    names = [f"{n:b}" for n in range(300)]
    expression = Expression("1(0|1)*1")
    search = regex_search.Search(expression, names)
    shares = 1
    while not search.advance(50):
        shares += 1
    assert shares > 10
    assert search.found() == regex_search.matching(Expression("1(0|1)*1"), names)


LITERAL = st.sampled_from(["a", "b", "-", "\\.", ".", "[ab]", "[^a]", "\\w", "\\d"])
EXPRESSION = st.recursive(
    LITERAL,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from("*+?")).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        st.tuples(inner, st.integers(0, 2), st.integers(0, 2)).map(
            lambda parts: f"({parts[0]}){{{parts[1]},{parts[1] + parts[2]}}}"
        ),
    ),
    max_leaves=6,
)


@given(EXPRESSION, st.lists(st.text("ab-.1", max_size=6), max_size=6))
def test_where_both_know_the_syntax_python_agrees(text: str, names: list[str]) -> None:
    expected = re.compile(text)
    expression = Expression(text)
    for name in names:
        assert expression.matches(name) == (expected.fullmatch(name) is not None)
