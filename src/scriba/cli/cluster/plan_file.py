"""What is wrong with a plan in the form of Kafka's tools, told to whoever wrote it."""

import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from scriba.cli.problems import CommandError

T = TypeVar("T")

FIX: Final = 'write {"partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2]}]}'
_KINDS: Final = {dict: "an object", list: "a list", str: "a string", int: "a whole number"}


def no_plan(name: str, error: Exception, fix: str = FIX) -> CommandError:
    match error:
        case json.JSONDecodeError():
            cause = f"it is not JSON at line {error.lineno}, column {error.colno}"
        case UnicodeDecodeError():
            cause = "it is not text in UTF-8"
        case RecursionError():
            cause = "it is nested too deeply"
        case _:
            cause = str(error)
    return CommandError(f"{name} is no plan: {cause}", fix)


def of_kind(kind: type[T], value: Any, what: str) -> T:
    """The value, if it is of this kind: `"12"` is not the brokers 1 and 2, nor `true` broker 1."""
    if type(value) is not kind:
        given = json.dumps(value)
        shown = given if len(given) <= 40 else f"{given[:40]}..."
        raise ValueError(f"{what} is not {_KINDS[kind]}: {shown}")
    return value


def part(kind: type[T], holder: Mapping[str, Any], key: str) -> T:
    if key not in holder:
        raise ValueError(f'"{key}" is missing')
    return of_kind(kind, holder[key], f'"{key}"')
