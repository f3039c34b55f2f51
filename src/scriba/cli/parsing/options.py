"""What the arguments of commands are made of: the options they share, and single words."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from scriba.cli.parsing.positions import Position

BOOTSTRAP = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE = "SCRIBA_BOOTSTRAP"
TIMEOUT_SECONDS = 10.0
INT16, INT32, INT64 = ((1 << bits - 1) - 1 for bits in (16, 32, 64))
"""The greatest numbers of so many bits."""

N = TypeVar("N", int, float)
Commands = Any
"""What `add_subparsers` returns; argparse has no public name for it."""


class Help(argparse.HelpFormatter):
    """Explanations in one column beside all that they explain."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=36)

    def _format_action(self, action: argparse.Action) -> str:
        if isinstance(action, argparse._SubParsersAction):  # its title stands above it already
            return "".join(map(self._format_action, action._get_subactions()))
        return super()._format_action(action)


class Parser(argparse.ArgumentParser):
    """Takes words and options in any order, `produce TOPIC -K : FILE` as well, and says in one line
    what is wrong with them."""

    _by_words = False
    _early: str | None = None
    """The option that stands where a command is due."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        if self._subparsers is not None:
            first = (sys.argv[1:] if args is None else args)[:1]
            self._early = next((word for word in first if word.startswith("-")), None)
        if self._by_words or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._by_words = True  # it calls this method again, once for options, once for words
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._by_words = False

    def format_help(self) -> str:
        """With examples that can be typed, which stand in a table of their own."""
        from scriba.cli.parsing.examples import EXAMPLES

        text = super().format_help()
        lines = EXAMPLES.get(self.prog, ())
        return (
            text + "\nexamples:\n" + "".join(f"  $ {line}\n" for line in lines) if lines else text
        )

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        from difflib import get_close_matches

        choices = list(map(str, action.choices))
        advice = f"there are {', '.join(choices)}"
        if near := get_close_matches(str(value), choices, 1):
            advice = f"did you mean {near[0]}?"
        elif self._early is not None and isinstance(action, argparse._SubParsersAction):
            advice = f"{self._early} and what it is given belong behind the command"
        raise argparse.ArgumentError(action, f"no {value!r}; {advice}")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """Words that are left over are told by the command that they were given to."""
        options, rest = self.parse_known_args(args, namespace)
        if rest:
            chosen = getattr(options, "chosen", self)
            chosen.error(f"unrecognized arguments: {' '.join(rest)}{_nearest(chosen, rest)}")
        return options

    def error(self, message: str) -> NoReturn:
        if message.endswith("required: COMMAND"):
            from scriba.cli.parsing.commands import inner

            message = f"a command is missing; there are {', '.join(inner(self))}"
        from scriba.cli.output import print_event
        from scriba.cli.problems import MISUSED

        fix = f"see {self.prog} --help"
        told = {"message": f"{self.prog}: {message}", "fix": fix, "code": None}
        print_event(f"{self.prog}: {message} ({fix})", {"error": told | {"exit_code": MISUSED}})
        self.exit(MISUSED)


def _nearest(parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """The option that a misspelt one was probably meant to be."""
    from difflib import get_close_matches

    known = [
        name
        for action in parser._actions
        if action.help != argparse.SUPPRESS
        for name in action.option_strings
        if name.startswith("--")
    ]
    for word in words:
        if word.partition("=")[0] in parser._option_string_actions:
            return f"; it belongs behind the command: {parser.prog} {word}"
        near = get_close_matches(word.partition("=")[0], known, 1) if word.startswith("--") else []
        if near:
            return f"; did you mean {near[0]}?"
    return ""


def group(commands: Commands, name: str, summary: str) -> Commands:
    made = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        formatter_class=Help,
    )
    return made.add_subparsers(title="commands", metavar="COMMAND", required=True)


def command(
    commands: Commands, name: str, run: str, summary: str, description: str, epilog: str = ""
) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=epilog,
        formatter_class=Help,
        allow_abbrev=False,
    )
    made.set_defaults(run=run, chosen=made)
    return made


def of_what(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--topic", metavar="TOPIC", help="settings of a topic")
    what.add_argument("--broker", type=at_least(int, 0), metavar="ID", help="settings of a broker")
    what.add_argument("--cluster", action="store_true", help="defaults of all brokers")


def asks(parser: argparse.ArgumentParser, json: str = "write JSON") -> None:
    """Options of every command that asks a cluster something."""
    parser.add_argument("--json", action="store_true", help=json)
    connects(parser)
    parser.add_argument(
        "--timeout",
        type=positive,
        default=TIMEOUT_SECONDS,
        metavar="SECONDS",
        help=f"how long to wait for an answer (default: {TIMEOUT_SECONDS:.0f})",
    )


def connects(parser: argparse.ArgumentParser) -> None:
    """Options of every command that talks to a cluster, for a moment or for good."""
    parser.add_argument(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        help=f"one broker or more, with commas (default: {BOOTSTRAP_VARIABLE}, the profile, or "
        f"{BOOTSTRAP})",
    )
    parser.add_argument(
        "--profile",
        metavar="NAME",
        help="the cluster of this name (default: SCRIBA_PROFILE, or the profile in use)",
    )
    properties(parser, "a setting of the client; may be repeated")
    parser.add_argument("-v", "--verbose", action="store_true", help="log what the client does")


def properties(parser: argparse.ArgumentParser, text: str) -> None:
    """Settings of clients, as many as are given."""
    parser.add_argument(
        "-X",
        "--property",
        type=pair,
        action="append",
        default=[],
        dest="properties",
        metavar="KEY=VALUE",
        help=text,
    )


# -- single words --------------------------------------------------------------------------------


def port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError("must be from 0 to 65535")
    return number


def address(text: str) -> tuple[str, int]:
    from scriba.config import ConfigError
    from scriba.settings.listeners import parse_addresses

    try:
        [found] = parse_addresses("", [text])
    except ConfigError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form HOST:PORT") from None
    return found


def addresses(text: str) -> str:
    """One or more, with commas; they stay as they were typed."""
    for each in text.split(","):
        address(each)
    return text


def directory_id(text: str) -> str:
    import re

    if not re.fullmatch(r"[A-Za-z0-9_-]{22}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a UUID of 22 characters, as shown")
    return text


def at_least(kind: type[N], least: N, most: N | None = None) -> Callable[[str], N]:
    """A number in these bounds. Kafka's ids and counts have 32 bits where nothing else is said."""
    limit: float = most if most is not None else INT32 if kind is int else float("inf")

    def number(text: str) -> N:
        try:
            found = kind(text)
        except ValueError:
            what = "whole number" if kind is int else "number"
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a {what}; write it in digits, without a unit"
            ) from None
        if found < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}")
        if found > limit:
            raise argparse.ArgumentTypeError(f"must be at most {limit}")
        return found

    return number


def positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError("must be more than 0")
    return number


def pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    return name, value


def pattern(text: str) -> str:
    import re

    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None
    return text


def place(text: str) -> "Position":
    from scriba.cli.parsing.positions import parse_position

    try:
        return parse_position(text, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def template(text: str) -> str:
    """Checked here, so that a wrong token is a misuse; compiled where it is used."""
    from scriba.cli.records.template import compile_template

    try:
        compile_template(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def duration_ms(text: str) -> int:
    from scriba.cli.parsing.positions import parse_duration

    seconds = parse_duration(text)
    if seconds is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 90s, 15m, 2h or 3d")
    return round(seconds * 1000)
