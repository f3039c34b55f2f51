"""Writes src/scriba/client/keywords.py, the clients' settings as types, from their declarations."""

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from scriba.client.settings import AdminSettings, ClientSettings, ConsumerSettings, ProducerSettings
from scriba.config import Kind, Setting

MODULE = Path(__file__).resolve().parents[1] / "src" / "scriba" / "client" / "keywords.py"

HEAD = '''\
"""The clients' settings as keywords, for type checkers and editors.

Written by `make docs` from the declarations in `scriba.client.settings`; do not edit.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict
'''

NUMBERS = {"acks": "-1, 0, 1"}
"""Texts that people write as numbers, too."""

IN_OVERLOADS = {"key_deserializer", "value_deserializer"}
"""Declared by the consumers themselves: the types of their records follow from these."""


def module() -> str:
    shared = ClientSettings.table
    parts = [HEAD, *section("ClientKeywords", "TypedDict, total=False", "every client", {})]
    parts += section("AdminKeywords", "ClientKeywords, total=False", "`Admin`", shared)
    parts += section("ProducerKeywords", "ClientKeywords, total=False", "`Producer`", shared)
    parts += section("ConsumerKeywords", "ClientKeywords, total=False", "`Consumer`", shared)
    return "".join(parts)


CLASSES = {
    "ClientKeywords": ClientSettings,
    "AdminKeywords": AdminSettings,
    "ProducerKeywords": ProducerSettings,
    "ConsumerKeywords": ConsumerSettings,
}


def section(name: str, bases: str, whose: str, known: Any) -> Iterator[str]:
    yield f'\n\nclass {name}({bases}):\n    """Keywords that {whose} takes."""\n\n'
    settings = CLASSES[name]
    hints = get_type_hints(settings)
    for key, declared in settings.table.items():
        if key not in known and declared.attribute not in IN_OVERLOADS:
            yield from one(declared, hints[declared.attribute])


def one(declared: Setting, hint: Any) -> Iterator[str]:
    line = f"    {declared.attribute}: {spelt(declared, hint)}\n"
    if len(line) > 100 and line.endswith("]\n"):
        start, _, rest = line.rstrip("\n").partition("[")
        line = f"{start}[\n        {rest[:-1]}\n    ]\n"
    yield line


def spelt(declared: Setting, hint: Any) -> str:
    if declared.kind is Kind.LIST:
        return "str | Sequence[str]"
    if declared.kind is Kind.STRING and declared.choices:
        allowed = (declared.default,) if declared.feature else declared.choices
        texts = ", ".join(f'"{choice}"' for choice in allowed)
        more = NUMBERS.get(declared.attribute)
        return f"Literal[{texts}, {more}]" if more else f"Literal[{texts}]"
    if declared.kind is Kind.CLASS:
        return "str | Callable[..., Any]"
    if get_origin(hint) in (Union, types.UnionType):
        return " | ".join("None" if a is type(None) else a.__name__ for a in get_args(hint))
    name: str = hint.__name__
    return name


if __name__ == "__main__":
    MODULE.write_text(module(), "utf-8")
    sys.stdout.write(f"wrote {MODULE.relative_to(Path.cwd())}\n")
