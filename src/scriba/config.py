"""The mechanism of a setting: what one is, how its text is read, written and explained.

A setting is declared once, as an attribute of a `Settings` class::

    class TopicSettings(Settings):
        segment_bytes: int = setting(Kind.INT, default=1 << 30, at_least=1 << 20, doc="...")

The attribute's name is Kafka's name with `_` for `.`, so code reads `topic.segment_bytes` and never
asks for a setting by string. Everything else that knows settings (parsing, DescribeConfigs,
`--help`, the reference page) walks `TopicSettings.table`, which holds the declarations by Kafka's
name. Objects are frozen: a changed setting is a new object, and whoever holds the old one finishes
with it.

Values given in Python are trusted; text from outside goes through `parse` and is checked there.
"""

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, NamedTuple, Self, dataclass_transform

from scriba.errors import ErrorCode


class ConfigError(ValueError):
    """A setting that cannot be taken. The message is one line: which, why, and what to do."""

    def __init__(self, name: str, complaint: str, given: str | None = None) -> None:
        super().__init__(
            f"{name}: {complaint}" if given is None else f"{name}={given}: {complaint}"
        )
        self.name = name


class StartError(Exception):
    """A node that cannot start. The message is one line: cause, then what to do."""


class StorageLost(StartError):
    """A node that ran and cannot go on, as it has no disk to go on with. Told like the above."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class Kind(enum.IntEnum):
    """Type of a value, numbered as DescribeConfigs does."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Source(enum.IntEnum):
    """Where a value comes from, numbered as DescribeConfigs does; a lower number wins."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8


class Scope(enum.Enum):
    """Whether a running node takes a new value, and for whom it is given."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Importance(enum.Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Synonym(NamedTuple):
    """One layer's word on a setting; the first in a row is the one in force."""

    name: str
    value: str | None
    source: Source


class ConfigRow(NamedTuple):
    """One setting as DescribeConfigs shows it."""

    name: str
    value: str | None
    source: Source
    read_only: bool
    is_sensitive: bool
    kind: Kind
    doc: str
    synonyms: tuple[Synonym, ...]

    @property
    def is_default(self) -> bool:
        return self.source is Source.DEFAULT_CONFIG


_BITS: Final = {Kind.SHORT: 15, Kind.INT: 31, Kind.LONG: 63}
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)


_JAVA_TURNS_TO_POWERS: Final = 1e7


def _power_of_ten(value: float) -> str:
    """A large number as Java writes it, such as 5.0E7."""
    from decimal import Decimal  # rarely needed

    digits, _, power = f"{Decimal(repr(value)).normalize():E}".partition("E")
    return f"{digits}{'' if '.' in digits else '.0'}E{int(power)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One declaration. `default` is a Python value, None where Kafka has no default."""

    kind: Kind
    default: Any
    doc: str
    at_least: float | None
    at_most: float | None
    also: int | None
    choices: tuple[str, ...]
    check: Callable[[Any], str | None] | None
    synonyms: tuple[str, ...]
    scope: Scope
    importance: Importance
    internal: bool
    feature: str
    name: str = ""

    @property
    def attribute(self) -> str:
        return self.name.replace(".", "_")

    @property
    def sensitive(self) -> bool:
        return self.kind is Kind.PASSWORD

    @property
    def read_only(self) -> bool:
        return self.scope is Scope.READ_ONLY

    def parse(self, text: str) -> Any:
        """The value that `text` means; ConfigError when it means none that is allowed."""
        value = self._convert(text.strip())
        complaint = self._complaint(value) or (self.check(value) if self.check else None)
        if complaint:
            raise self.refuse(text, complaint)
        if self.feature and value != self.default:
            usable = (
                "leave it out"
                if self.default is None
                else f"leave it at {self.render(self.default)}"
            )
            raise self.refuse(text, f"needs {self.feature} (not served yet); {usable}")
        return value

    def refuse(self, text: str, complaint: str) -> ConfigError:
        shown = "[hidden]" if self.sensitive else text.strip()
        return ConfigError(self.name, complaint, shown)

    def render(self, value: Any) -> str | None:
        """The text Kafka would show for `value`; None for a value that is not set."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        if isinstance(value, float) and value >= _JAVA_TURNS_TO_POWERS:
            return _power_of_ten(value)
        return str(value)

    def bounds(self) -> str:
        """What values are allowed, in words for the reference page; empty when any is."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        low, high = self.at_least, self.at_most
        if low is not None and high is not None:
            text = f"from {low} to {high}"
        elif low is not None:
            text = f"at least {low}"
        elif high is not None:
            text = f"at most {high}"
        else:
            return ""
        return text if self.also is None else f"{text}, or {self.also}"

    def _convert(self, text: str) -> Any:
        match self.kind:
            case Kind.BOOLEAN:
                flag = {"true": True, "false": False}.get(text.lower())
                if flag is None:
                    raise self.refuse(text, "must be true or false")
                return flag
            case Kind.SHORT | Kind.INT | Kind.LONG:
                if not _WHOLE_NUMBER.fullmatch(text) or len(text) > 32:
                    raise self.refuse(text, "must be a whole number")
                number = int(text)
                limit = 1 << _BITS[self.kind]
                if not -limit <= number < limit:
                    raise self.refuse(text, f"must be from {-limit} to {limit - 1}")
                return number
            case Kind.DOUBLE:
                try:
                    return float(text)
                except ValueError:
                    raise self.refuse(text, "must be a number") from None
            case Kind.LIST:
                items = [item.strip() for item in text.split(",")] if text else []
                if not all(items):
                    raise self.refuse(text, "has an empty item; remove the extra comma")
                return tuple(dict.fromkeys(items))
            case _:
                return text

    def _complaint(self, value: Any) -> str | None:
        if self.choices:
            given = value if isinstance(value, tuple) else (value,)
            wrong = next((item for item in given if item not in self.choices), None)
            return None if wrong is None else f"must be {self.bounds()}"
        if isinstance(value, int | float) and not isinstance(value, bool):
            inside = (self.at_least is None or value >= self.at_least) and (
                self.at_most is None or value <= self.at_most
            )
            if not inside and value != self.also:
                return f"must be {self.bounds()}"
        return None


def setting(
    kind: Kind,
    *,
    default: Any,
    doc: str,
    at_least: float | None = None,
    at_most: float | None = None,
    also: int | None = None,
    choices: tuple[str, ...] = (),
    check: Callable[[Any], str | None] | None = None,
    synonyms: tuple[str, ...] = (),
    scope: Scope = Scope.READ_ONLY,
    importance: Importance = Importance.MEDIUM,
    internal: bool = False,
    feature: str = "",
) -> Any:
    """Declares a setting.

    `also` is one value allowed outside the bounds. `check` returns a complaint or None.
    `synonyms` are the names that give the value when this one is not set, strongest first.
    `feature` names what is not served yet: until it is, only the default is taken.
    """
    return Setting(
        kind=kind,
        default=default,
        doc=doc,
        at_least=at_least,
        at_most=at_most,
        also=also,
        choices=choices,
        check=check,
        synonyms=synonyms,
        scope=scope,
        importance=importance,
        internal=internal,
        feature=feature,
    )


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting,))
class Settings:
    """Base of a class of settings; its subclasses' constructors take values by attribute name."""

    table: ClassVar[Mapping[str, Setting]] = {}

    def __init_subclass__(cls) -> None:
        declared: dict[str, Setting] = {}
        for base in cls.__bases__:
            declared |= getattr(base, "table", {})
        for attribute, declaration in list(vars(cls).items()):
            if isinstance(declaration, Setting):
                name = attribute.replace("_", ".")
                declared[name] = replace(declaration, name=name)
                # Left in place, it would answer for an instance that lacks the value.
                delattr(cls, attribute)
        cls.table = declared

    def __init__(self, **values: Any) -> None:
        mine = self.__dict__
        for declaration in self.table.values():
            attribute = declaration.attribute
            mine[attribute] = values.pop(attribute, declaration.default)
        if values:
            raise TypeError(f"{type(self).__name__} has no setting {', '.join(values)}")

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Reads text by Kafka's names. ConfigError for an unknown name or a bad value."""
        return cls(**cls.parse_values(given))

    @classmethod
    def parse_values(cls, given: Mapping[str, str]) -> dict[str, Any]:
        """The same as a dict of attribute to value, holding only what was given."""
        return {
            (declaration := cls.declaration(name)).attribute: declaration.parse(text)
            for name, text in given.items()
        }

    @classmethod
    def declaration(cls, name: str) -> Setting:
        found = cls.table.get(name)
        if found is None:
            raise ConfigError(name, f"no such setting{did_you_mean(name, cls.table)}")
        return found

    def replace(self, **values: Any) -> Self:
        """A copy with some values changed, by attribute name."""
        return type(self)(**{d.attribute: self.value(d.name) for d in self.table.values()} | values)

    def value(self, name: str) -> Any:
        """A value by Kafka's name, for code that walks the table."""
        return self.__dict__[name.replace(".", "_")]

    def __setattr__(self, attribute: str, value: Any) -> None:
        raise AttributeError(f"settings are frozen; use replace({attribute}=...)")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            self.value(name) == other.value(name) for name in self.table
        )

    def __repr__(self) -> str:
        changed = (
            f"{d.attribute}={'[hidden]' if d.sensitive else repr(self.value(d.name))}"
            for d in self.table.values()
            if self.value(d.name) != d.default
        )
        return f"{type(self).__name__}({', '.join(changed)})"


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that `name` was probably meant to be."""
    import difflib  # only a start that fails pays for it

    found = difflib.get_close_matches(name.lower(), known, n=1, cutoff=cutoff)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name."""
    match = nearest(name, known)
    return f"; did you mean {match}?" if match else ""
