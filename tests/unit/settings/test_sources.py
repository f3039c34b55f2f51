"""Properties files, environment and arguments, as Kafka's users write them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scriba.config import ConfigError
from scriba.settings.sources import (
    parse_arguments,
    parse_environment,
    parse_properties,
    setting_of,
)


def read(text: str) -> dict[str, str]:
    return {name: value.text for name, value in parse_properties(text, "f").items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a:b\nc d\r\ne\rf =  g", {"a": "b", "c": "d", "e": "", "f": "g"}),
        ("# note\n ! note\n\n\t a = b ", {"a": "b "}),
        ("a=1,\\\n   2,\\\r\n\t3", {"a": "1,2,3"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a\\=b\\:c\\ d=e", {"a=b:c d": "e"}),
        ("a=\\t\\u00e9\\q", {"a": "\té" + "q"}),
        ("a=b=c:d", {"a": "b=c:d"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=b\\", {"a": "b"}),
        ("a\\\n=b\\\n# c", {"a": "b# c"}),
        ("", {}),
    ],
)
def test_javas_properties_format(text: str, expected: dict[str, str]) -> None:
    assert read(text) == expected


def test_a_setting_remembers_its_first_line() -> None:
    parsed = parse_properties("#\n\na=1,\\\n2\nb=3", "server.properties")
    assert parsed["a"].origin == "server.properties, line 3"
    assert parsed["b"].origin == "server.properties, line 5"


def test_a_broken_escape_names_its_line() -> None:
    with pytest.raises(ConfigError, match="f, line 2"):
        read("a=1\nb=\\u12x")


@given(st.text(max_size=80))
def test_no_text_breaks_the_reader(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse_properties(text, "f")


KEY = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=10)


@given(KEY, KEY)
def test_what_is_escaped_comes_back(key: str, value: str) -> None:
    def escape(text: str) -> str:
        return "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else c for c in text)

    assert read(f"{escape(key)}={escape(value)}") == {key: value}


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("KAFKA_LOG_RETENTION_MS", "log.retention.ms"),
        ("KAFKA_A__B___C_D", "a_b-c.d"),
    ],
)
def test_variables_map_to_names_as_in_the_container_images(variable: str, name: str) -> None:
    assert setting_of(variable) == name


def test_the_environment_gives_settings_and_leaves_strangers_aside() -> None:
    settings, aside = parse_environment(
        {
            "HOME": "/root",
            "KAFKA_NODE_ID": "3",
            "KAFKA_NUM_PARTITION": "3",
            "KAFKA_ZOOKEEPER_CONNECT": "z:2181",
            "KAFKA_HEAP_OPTS": "-Xmx1g",
            "KAFKA_BOOTSTRAP_SERVERS": "elsewhere:9092",
        }
    )
    assert {name: value.text for name, value in settings.items()} == {
        "node.id": "3",
        "num.partition": "3",
        "zookeeper.connect": "z:2181",
    }
    assert settings["node.id"].origin == "environment variable KAFKA_NODE_ID"
    assert aside == ["KAFKA_BOOTSTRAP_SERVERS"]


def test_arguments_are_pairs() -> None:
    assert parse_arguments(["a=b=c", "d="]).keys() == {"a", "d"}
    assert parse_arguments(["a=b=c"])["a"].text == "b=c"
    with pytest.raises(ConfigError, match="must be key=value"):
        parse_arguments(["a"])
