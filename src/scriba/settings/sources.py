"""Where a node's settings come from: a properties file, the environment, arguments.

All three speak Kafka's names. The stronger source wins, key by key: `--set`, then the environment,
then the file, then the built-in default. Nothing here touches a file or the environment itself;
texts are handed in.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from scriba.config import ConfigError, nearest
from scriba.settings.keys.node import NodeKeys
from scriba.settings.unsupported import known_names

ENVIRONMENT_PREFIX: Final = "KAFKA_"

NOT_SETTINGS: Final = frozenset(
    {
        "KAFKA_CLASSPATH",
        "KAFKA_DEBUG",
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_HEAP_OPTS",
        "KAFKA_HOME",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_JMX_OPTS",
        "KAFKA_JMX_PORT",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_OPTS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_VERSION",
    }
)
"""Variables of the container images that speak to the JVM or the image, not to the broker."""

MISSPELT: Final = 0.85
"""How alike a variable and a key must be for the variable to count as that key misspelt."""

_SPACE: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LINE_END: Final = re.compile(r"\r\n|\r|\n")


class Given(NamedTuple):
    """A setting as it was given, and the place to look at when it is wrong."""

    text: str
    origin: str


def parse_properties(text: str, file: str) -> dict[str, Given]:
    """Reads Java's properties format: comments, continued lines, escapes; the last word wins."""
    given: dict[str, Given] = {}
    for number, line in _logical_lines(text):
        origin = f"{file}, line {number}"
        end = _key_end(line)
        key = _unescape(line[:end], origin)
        rest = line[end:].lstrip(_SPACE)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_SPACE)
        given[key] = Given(_unescape(rest, origin), origin)
    return given


def parse_environment(variables: Mapping[str, str]) -> tuple[dict[str, Given], list[str]]:
    """Settings from variables such as KAFKA_LOG_RETENTION_MS, and the variables left aside.

    A program's own KAFKA_BOOTSTRAP_SERVERS may well be in the environment, so an unknown name is
    left aside, unless it so resembles a setting that it must be one misspelt.
    """
    known = [*NodeKeys.table, *known_names()]
    given: dict[str, Given] = {}
    aside: list[str] = []
    for variable, text in sorted(variables.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in NOT_SETTINGS:
            continue
        name = setting_of(variable)
        if name in known or nearest(name, known, MISSPELT) or name.startswith("zookeeper."):
            given[name] = Given(text, f"environment variable {variable}")
        else:
            aside.append(variable)
    return given, aside


def setting_of(variable: str) -> str:
    """KAFKA_LOG_RETENTION_MS is log.retention.ms; `__` stands for `_` and `___` for `-`."""
    name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
    return re.sub("_+", lambda run: {1: ".", 2: "_", 3: "-"}.get(len(run[0]), run[0]), name)


def parse_arguments(pairs: Iterable[str]) -> dict[str, Given]:
    """Settings from `--set key=value`."""
    given: dict[str, Given] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise ConfigError("--set", "must be key=value", pair)
        given[name.strip()] = Given(text, f"--set {name.strip()}")
    return given


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with continuations joined and comments gone, each with the number of its first."""
    started, parts = 0, ""
    for number, natural in enumerate(_LINE_END.split(text), 1):
        line = natural.lstrip(_SPACE)
        if not started:
            if not line or line[0] in "#!":
                continue
            started = number
        stripped = line.rstrip("\\")
        if (len(line) - len(stripped)) % 2:
            parts += line[:-1]
            continue
        yield started, parts + line
        started, parts = 0, ""
    if started and parts:
        yield started, parts


def _key_end(line: str) -> int:
    escaped = False
    for at, char in enumerate(line):
        if not escaped and (char in "=:" or char in _SPACE):
            return at
        escaped = char == "\\" and not escaped
    return len(line)


def _unescape(text: str, origin: str) -> str:
    if "\\" not in text:
        return text

    def one(match: re.Match[str]) -> str:
        code = match[1]
        if code == "u":
            raise ConfigError(origin, "a \\u must be followed by four hexadecimal digits")
        if len(code) == 5:
            return chr(int(code[1:], 16))
        return _ESCAPES.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, text, flags=re.DOTALL)
