"""Regular expressions that members subscribe with, in RE2's syntax and in bounded time.

Python's `re` backtracks, and one bad expression could hold the loop for minutes. Here an
expression becomes states of a nondeterministic automaton, and a name is matched by following all
states at once; sets of states met before are remembered, so that matching soon costs one look-up
per character. What bounds it:

- an expression has at most MAX_LENGTH characters, MAX_DEPTH groups inside each other and
  MAX_STATES states, a repetition counts to RE2's 1000;
- a character costs at most one visit of every state; `regex_search` adds the visits up and gives
  up beyond MAX_VISITS.

Topic names are ASCII, so a set of characters is a number with one bit for each. Of RE2's syntax
names of scripts (`\\p{Greek}`) and `\\C` are refused; general categories (`\\pL`, `\\p{Nd}`) are
known. As in RE2 there are no backreferences and no lookaround. A name must match as a whole.
"""

import re
import unicodedata
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn

from scriba.errors import ErrorCode, KafkaError

MAX_LENGTH: Final = 4_000
MAX_DEPTH: Final = 100
MAX_STATES: Final = 5_000
MAX_REPEAT: Final = 1_000
_MAX_REMEMBERED: Final = 1_000

_ALL: Final = (1 << 128) - 1


class BadExpression(KafkaError):
    def __init__(self, text: str, why: str) -> None:
        super().__init__(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{text}` is not a valid regular expression: {why}.",
        )


def _set(chars: str) -> int:
    return sum(1 << ord(char) for char in set(chars))


def _span(first: str, last: str) -> int:
    return (1 << ord(last) + 1) - (1 << ord(first))


_LOWER: Final = _span("a", "z")
_UPPER: Final = _span("A", "Z")
_DIGIT: Final = _span("0", "9")
_ALNUM: Final = _LOWER | _UPPER | _DIGIT
_WORD: Final = _ALNUM | _set("_")
_SPACE: Final = _set("\t\n\f\r ")
_GRAPH: Final = _span("!", "~")

_PERL: Final = {"d": _DIGIT, "s": _SPACE, "w": _WORD}
_NAMED: Final = {
    "alnum": _ALNUM,
    "alpha": _LOWER | _UPPER,
    "ascii": _ALL,
    "blank": _set("\t "),
    "cntrl": _span("\x00", "\x1f") | _set("\x7f"),
    "digit": _DIGIT,
    "graph": _GRAPH,
    "lower": _LOWER,
    "print": _GRAPH | _set(" "),
    "punct": _GRAPH & ~_ALNUM,
    "space": _SPACE | _set("\v"),
    "upper": _UPPER,
    "word": _WORD,
    "xdigit": _DIGIT | _span("a", "f") | _span("A", "F"),
}
_ESCAPES: Final = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_CATEGORIES: Final = re.compile(r"[LMNPSZC][a-z]?")

_BEGIN, _END, _INSIDE, _OUTSIDE = "begin", "end", "inside", "outside"
"""What stands before or after a position: an end of the name, or a character in a word or not."""

_ASSERTIONS: Final[dict[str, Callable[[str, str], bool]]] = {
    "A": lambda before, after: before == _BEGIN,
    "z": lambda before, after: after == _END,
    "b": lambda before, after: (before == _INSIDE) != (after == _INSIDE),
    "B": lambda before, after: (before == _INSIDE) == (after == _INSIDE),
}


class _Eat(NamedTuple):
    chars: int
    follow: int


class _Fork(NamedTuple):
    follow: tuple[int, ...]


class _Assert(NamedTuple):
    kind: str
    follow: int


class _Program:
    """States by number; state 0 accepts. Built backwards: each part is told what follows it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.states: list[_Eat | _Fork | _Assert] = [_Fork(())]

    def add(self, state: _Eat | _Fork | _Assert) -> int:
        if len(self.states) >= MAX_STATES:
            raise BadExpression(self.text, f"it has more than {MAX_STATES} states")
        self.states.append(state)
        return len(self.states) - 1


_Part = Callable[[_Program, int], int]
"""Adds the states of a part of the expression before `follow`, and returns the first of them."""


def _eat(chars: int) -> _Part:
    return lambda program, follow: program.add(_Eat(chars, follow))


def _assert(kind: str) -> _Part:
    return lambda program, follow: program.add(_Assert(kind, follow))


def _chain(parts: list[_Part]) -> _Part:
    def build(program: _Program, follow: int) -> int:
        for part in reversed(parts):
            follow = part(program, follow)
        return follow

    return build


def _either(parts: list[_Part]) -> _Part:
    if len(parts) == 1:
        return parts[0]
    return lambda program, follow: program.add(_Fork(tuple(p(program, follow) for p in parts)))


def _repeat(part: _Part, least: int, most: int | None) -> _Part:
    def build(program: _Program, follow: int) -> int:
        if most is None:
            loop = program.add(_Fork(()))
            program.states[loop] = _Fork((part(program, loop), follow))
            follow = loop
        else:
            end = follow
            for _ in range(most - least):
                follow = program.add(_Fork((part(program, follow), end)))
        for _ in range(least):
            follow = part(program, follow)
        return follow

    return build


class _Flags(NamedTuple):
    fold: bool = False
    dot_all: bool = False


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.flags = _Flags()

    def parse(self) -> _Part:
        part = self.alternatives()
        if self.at < len(self.text):
            self.bad("unexpected )")
        return part

    def bad(self, why: str) -> NoReturn:
        raise BadExpression(self.text, why)

    def peek(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    def take(self, why: str = "it ends too early") -> str:
        if self.at >= len(self.text):
            self.bad(why)
        self.at += 1
        return self.text[self.at - 1]

    def accept(self, literal: str) -> bool:
        if not self.text.startswith(literal, self.at):
            return False
        self.at += len(literal)
        return True

    def until(self, end: str, why: str) -> str:
        stop = self.text.find(end, self.at)
        if stop < 0:
            self.bad(why)
        taken = self.text[self.at : stop]
        self.at = stop + len(end)
        return taken

    def alternatives(self) -> _Part:
        branches = [self.sequence()]
        while self.accept("|"):
            branches.append(self.sequence())
        return _either(branches)

    def sequence(self) -> _Part:
        parts: list[_Part] = []
        while self.peek() not in ("", "|", ")"):
            if self.times() is not None:
                self.bad("missing argument to repetition operator")
            fresh = self.quoted() if self.accept("\\Q") else self.atom()
            if fresh:
                parts += [*fresh[:-1], self.repeated(fresh[-1])]
        return _chain(parts)

    def quoted(self) -> list[_Part]:
        end = self.text.find("\\E", self.at)
        text = self.text[self.at :] if end < 0 else self.text[self.at : end]
        self.at = len(self.text) if end < 0 else end + 2
        return [_eat(self.literal(char)) for char in text]

    def repeated(self, part: _Part) -> _Part:
        times = self.times()
        if times is None:
            return part
        self.accept("?")
        if self.times() is not None:
            self.bad("a repetition is repeated")
        return _repeat(part, *times)

    def times(self) -> tuple[int, int | None] | None:
        """Of a repetition that stands here. Braces that count nothing stand for themselves."""
        for sign, times in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.accept(sign):
                return times
        found = re.compile(r"\{([0-9]{1,9})(,?)([0-9]{0,9})\}").match(self.text, self.at)
        if found is None or (found[3] and not found[2]):
            return None
        self.at = found.end()
        least = int(found[1])
        most = int(found[3]) if found[3] else None if found[2] else least
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            self.bad(f"invalid repeat count {found[0]}")
        return least, most

    def atom(self) -> list[_Part]:
        """The next part; none for flags, which match nothing themselves."""
        char = self.take()
        if char == "(":
            return self.group()
        if char == "[":
            return [_eat(self.chars())]
        if char == ".":
            return [_eat(_ALL if self.flags.dot_all else _ALL & ~_set("\n"))]
        if char in "^$":
            return [_assert("A" if char == "^" else "z")]
        if char == "\\":
            if self.peek() in ("A", "z", "b", "B"):
                return [_assert(self.take())]
            return [_eat(self.escaped())]
        return [_eat(self.literal(char))]

    def literal(self, char: str) -> int:
        """A character outside ASCII is in no topic's name, and its set is empty."""
        return self.folded(1 << ord(char) if ord(char) < 128 else 0)

    def folded(self, chars: int) -> int:
        if not self.flags.fold:
            return chars
        return chars | (chars & _LOWER) >> 32 | (chars & _UPPER) << 32

    def group(self) -> list[_Part]:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.bad(f"more than {MAX_DEPTH} groups inside each other")
        flags = self.flags
        if self.accept("?"):
            if self.accept("P<") or (self.peek(2) not in ("<=", "<!") and self.accept("<")):
                name = self.until(">", "a group's name does not end")
                if not re.fullmatch(r"[A-Za-z0-9_]+", name):
                    self.bad(f"invalid named capture: {name}")
            elif not self.set_flags():
                self.depth -= 1
                return []
        part = self.alternatives()
        if not self.accept(")"):
            self.bad("missing closing )")
        self.flags = flags
        self.depth -= 1
        return [part]

    def set_flags(self) -> bool:
        """Reads `flags:`, and then a group follows, or `flags)`, and then none does."""
        on = True
        seen = ""
        while (char := self.take("missing closing )")) not in ":)":
            seen += char
            if char == "-" and on:
                on = False
            elif char == "i":
                self.flags = self.flags._replace(fold=on)
            elif char == "s":
                self.flags = self.flags._replace(dot_all=on)
            elif char not in "mU":
                self.bad(f"invalid or unsupported syntax: (?{seen}")
        if seen.endswith("-"):
            self.bad(f"missing argument to flags: (?{seen}")
        return char == ":"

    def chars(self) -> int:
        """Inside brackets."""
        negated = self.accept("^")
        found = 0
        first = True
        while first or self.peek() != "]":
            first = False
            if self.accept("[:"):
                name = self.until(":]", "missing closing ]")
                inverse = name.startswith("^")
                if name.removeprefix("^") not in _NAMED:
                    self.bad(f"invalid character class: [:{name}:]")
                named = self.folded(_NAMED[name.removeprefix("^")])
                found |= _ALL & ~named if inverse else named
                continue
            found |= self.one_or_span()
        self.at += 1
        return _ALL & ~found if negated else found

    def one_or_span(self) -> int:
        if self.peek() == "\\" and self.peek(2)[1:] in (*"dDsSwWpP",):
            self.at += 1
            return self.escaped()
        low = self.code()
        if self.peek() != "-" or self.peek(2) in ("-", "-]"):
            return self.literal(chr(low))
        self.at += 1
        high = self.code()
        if high < low:
            self.bad("invalid character class range")
        bits = (1 << min(high, 127) + 1) - (1 << low) if low < 128 else 0
        return self.folded(bits)

    def code(self) -> int:
        char = self.take("missing closing ]")
        return ord(char) if char != "\\" else self.escaped_code()

    def escaped(self) -> int:
        """What follows a backslash, as a set."""
        char = self.peek()
        if char.lower() in _PERL and char:
            self.at += 1
            chars = self.folded(_PERL[char.lower()])
            return chars if char.islower() else _ALL & ~chars
        if char in ("p", "P"):
            return self.category()
        return self.literal(chr(self.escaped_code()))

    def escaped_code(self) -> int:
        char = self.take("trailing backslash at end of expression")
        if char in _ESCAPES:
            return ord(_ESCAPES[char])
        if char == "x":
            digits = self.until("}", "a code does not end") if self.accept("{") else self.peek(2)
            braced = self.text[self.at - 1] == "}"
            pattern = r"[0-9A-Fa-f]{1,6}" if braced else r"[0-9A-Fa-f]{2}"
            if not re.fullmatch(pattern, digits) or int(digits, 16) > 0x10FFFF:
                self.bad("invalid escape sequence: \\x")
            self.at += 0 if braced else 2
            return int(digits, 16)
        if char == "0" or (char in "1234567" and self.peek() in (*"01234567",)):
            octal = re.compile(r"[0-7]{1,3}").match(self.text, self.at - 1)
            assert octal is not None
            self.at = octal.end()
            return int(octal[0], 8)
        if not char.isascii() or char.isalnum():
            self.bad(f"invalid escape sequence: \\{char}")
        return ord(char)

    def category(self) -> int:
        negated = self.take() == "P"
        name = self.until("}", "missing closing }") if self.accept("{") else self.take()
        if name.startswith("^"):
            negated, name = not negated, name[1:]
        if name == "Any":
            chars = _ALL
        else:
            if not _CATEGORIES.fullmatch(name):
                self.bad(f"unknown or unsupported character class: \\p{{{name}}}")
            chars = sum(
                1 << code for code in range(128) if unicodedata.category(chr(code)).startswith(name)
            )
        chars = self.folded(chars)
        return _ALL & ~chars if negated else chars


class _Point:
    """Where a match may stand: the states reached, and what was read last."""

    __slots__ = ("before", "final", "moves", "states")

    def __init__(self, states: frozenset[int], before: str) -> None:
        self.states = states
        self.before = before
        self.moves: dict[str, _Point] = {}
        self.final: bool | None = None


class Expression:
    """A compiled expression; BadExpression where it is none."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise BadExpression(text[:100] + "...", f"it is longer than {MAX_LENGTH} characters")
        self.text = text
        program = _Program(text)
        self._start = frozenset({_Parser(text).parse()(program, 0)})
        self._program = program.states
        self._points: dict[tuple[frozenset[int], str], _Point] = {}
        self.visits = 0
        """Of states, since it was compiled."""

    def matches(self, name: str) -> bool:
        point = self._point(self._start, _BEGIN)
        for char in name:
            point = point.moves.get(char) or self._advance(point, char)
            if not point.states:
                return False
        if point.final is None:
            point.final = 0 in self._closure(point, _END)
        return point.final

    def _point(self, states: frozenset[int], before: str) -> _Point:
        point = self._points.get((states, before))
        if point is None:
            if len(self._points) >= _MAX_REMEMBERED:
                self._points.clear()
            point = self._points[states, before] = _Point(states, before)
        return point

    def _advance(self, point: _Point, char: str) -> _Point:
        bit = 1 << ord(char) if ord(char) < 128 else 0
        kind = _INSIDE if bit & _WORD else _OUTSIDE
        reached = []
        for number in self._closure(point, kind):
            state = self._program[number]
            if isinstance(state, _Eat) and state.chars & bit:
                reached.append(state.follow)
        after = self._point(frozenset(reached), kind)
        point.moves[char] = after
        return after

    def _closure(self, point: _Point, after: str) -> set[int]:
        """The states reached without reading on."""
        seen = set(point.states)
        open_ends = list(seen)
        while open_ends:
            state = self._program[open_ends.pop()]
            if isinstance(state, _Fork):
                follow: tuple[int, ...] = state.follow
            elif isinstance(state, _Assert) and _ASSERTIONS[state.kind](point.before, after):
                follow = (state.follow,)
            else:
                continue
            fresh = [number for number in follow if number not in seen]
            seen.update(fresh)
            open_ends += fresh
        self.visits += len(seen)
        return seen
