"""Keys, nulls, several topics and patterns, and what a terminal is shown."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.commands import PATIENCE, Scriba, piped, start
from tools.kafka.brokers import Broker


def test_keys_and_tombstones_are_written_and_read_without_json(
    cluster: Broker, scriba: Scriba, topic: str
) -> None:
    scriba("topic", "create", topic)
    assert piped(cluster, b"a=1\nb=\n=3\n", "produce", topic, "-K", "=")[0] == 0
    assert piped(cluster, b"c=\n", "produce", topic, "-K", "=", "--null-marker", "")[0] == 0
    assert piped(cluster, b"a\n", "produce", topic, "--tombstone")[0] == 0
    assert piped(cluster, b"plain\n", "produce", topic, "--key", "k")[0] == 0
    assert piped(cluster, b"NULL\nvalue\n", "produce", topic, "--null-marker", "NULL")[0] == 0
    read = [(r["key"], r["value"]) for r in scriba("consume", topic, "-e", "--json").json_lines]
    assert read == [
        ("a", "1"),
        ("b", ""),
        ("", "3"),
        ("c", None),
        ("a", None),
        ("k", "plain"),
        (None, None),
        (None, "value"),
    ]
    lines = scriba("consume", topic, "-e", "-K", "=", "--null-marker", "~").text.splitlines()
    assert lines == ["a=1", "b=", "=3", "c=~", "a=~", "k=plain", "~=~", "~=value"]
    words = ["-f", "%k %s\\n", "--null-marker", "~", "--from", "-2"]
    assert scriba("consume", topic, "-e", *words).text == "~ ~\n~ value\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--tombstone", "-K", ":"], "with --tombstone a line is a key"),
        (["--key", "k", "-K", ":"], "--key and --key-separator both say what the key is"),
    ],
)
def test_options_that_contradict_each_other_are_misuse(
    scriba: Scriba, words: list[str], line: str
) -> None:
    done = scriba("produce", "t", *words)
    assert done.code == 2
    assert line in done.err


def test_several_topics_are_read_by_name_and_by_pattern(
    cluster: Broker, scriba: Scriba, new_topic: Callable[[], str]
) -> None:
    first, second = new_topic(), new_topic()
    for name in (first, second):
        scriba("topic", "create", name)
        piped(cluster, name.encode() + b"\n", "produce", name)
    assert sorted(scriba("consume", first, second, "-e").text.split()) == sorted([first, second])
    pattern = f"{first.rpartition('-')[0]}-[0-9]+"
    assert sorted(scriba("consume", "--pattern", pattern, "-e").text.split()) == sorted(
        [first, second]
    )
    group = ["--group", first, "--pattern", pattern, "-e"]
    assert sorted(scriba("consume", *group).text.split()) == sorted([first, second])
    assert scriba("consume", *group).text == "", "the group has read both"
    assert scriba("consume").code == 2
    assert scriba("consume", first, "--pattern", "x").code == 2


def test_every_line_is_written_to_all_topics_that_are_named(
    cluster: Broker, scriba: Scriba, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    first, second = new_topic(), new_topic()
    for name in (first, second):
        scriba("topic", "create", name)
    assert piped(cluster, b"a=1\nb=2\n", "produce", first, second, "-K", "=") == (0, b"", b"")
    (tmp_path / "in").write_text("c=3\n")
    told = scriba("produce", first, second, str(tmp_path / "in"), "-K", "=", "--partition", "0")
    assert told.err.startswith("2 records, 4 B in ")
    for name in (first, second):
        assert scriba("consume", name, "-e", "-K", "=").text.split() == ["a=1", "b=2", "c=3"]


def test_a_topic_that_cannot_be_found_is_told_before_a_line_is_written(
    cluster: Broker, scriba: Scriba, topic: str
) -> None:
    scriba("topic", "create", topic)
    code, out, err = piped(cluster, b"1\n", "produce", topic, "no topic")
    assert (code, out) == (1, b"")
    assert b"no topic" in err
    assert err.count(b"\n") == 1
    assert scriba("consume", topic, "-e").text == ""


def test_a_line_that_one_of_two_topics_refuses_is_named_with_it(
    cluster: Broker, scriba: Scriba, new_topic: Callable[[], str]
) -> None:
    first, second = new_topic(), new_topic()
    scriba("topic", "create", first, "-p", "2")
    scriba("topic", "create", second)
    lines = b'{"value": "1", "partition": 0}\n{"value": "2", "partition": 1}\n'
    code, _, err = piped(cluster, lines, "produce", first, second, "--json", "-q")
    assert code == 1
    message = json.loads(err)["error"]["message"]
    assert message.startswith(f"line 2: {second} has no partition 1 ")
    assert message.endswith("; 3 records were written")


def test_lines_go_to_the_topics_that_they_name(
    cluster: Broker, scriba: Scriba, new_topic: Callable[[], str]
) -> None:
    first, second, copy = new_topic(), new_topic(), new_topic()
    for name in (first, second, copy):
        scriba("topic", "create", name)
        piped(cluster, name.encode() + b"\n", "produce", name)
    copied = scriba("consume", first, second, "-e", "--json").text.encode()
    assert piped(cluster, copied, "produce", "--json") == (0, b"", b"")
    for name in (first, second):
        assert scriba("consume", name, "-e").text.split() == [name, name]
    assert piped(cluster, copied, "produce", copy, "--json") == (0, b"", b"")
    assert sorted(scriba("consume", copy, "-e").text.split()) == sorted([first, second, copy])
    code, _, err = piped(cluster, copied + b'{"value": "?"}\n', "produce", "--json")
    assert code == 1
    assert json.loads(err)["error"]["message"] == (
        "line 3 has no topic, and none is named after `produce`; 2 records were written"
    )
    code, _, err = piped(cluster, b'{"value": "?", "topic": "no topic"}\n', "produce", "--json")
    assert code == 1
    assert json.loads(err)["error"]["message"].startswith("line 1: ")


def test_a_topic_that_comes_later_is_read_when_it_matches(
    cluster: Broker, scriba: Scriba, topic: str
) -> None:
    with start(cluster, "consume", "--pattern", f"{topic}-.*") as process:
        assert process.stderr is not None
        assert process.stdout is not None
        assert b"no topic matches" in process.stderr.readline()
        scriba("topic", "create", f"{topic}-a")
        piped(cluster, b"there\n", "produce", f"{topic}-a")
        assert process.stdout.readline() == b"there\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 143


HOSTILE = b"\x1b]0;owned\x07 \xff \xc2\x9b31m \xe2\x80\xae tab\there"


def shown(cluster: Broker, *words: str) -> bytes:
    """What a command writes to a terminal."""
    process, terminal = pty.fork()
    if process == 0:
        environment = os.environ | {"SCRIBA_BOOTSTRAP": cluster.bootstrap}
        os.execve(sys.executable, [sys.executable, "-m", "scriba", *words], environment)
    seen = b""
    try:
        while piece := os.read(terminal, 4096):
            seen += piece
    except OSError:  # how Linux tells that the other side is closed
        pass
    os.close(terminal)
    os.waitpid(process, 0)
    return seen


def test_a_terminal_is_shown_control_characters_and_a_pipe_gets_them(
    cluster: Broker, scriba: Scriba, topic: str
) -> None:
    scriba("topic", "create", topic)
    piped(cluster, HOSTILE + b"\n", "produce", topic)
    safe = rb"\x1b]0;owned\x07 \xff \x9b31m \u202e tab" + b"\there\r\n"
    assert shown(cluster, "consume", topic, "-e") == safe
    assert shown(cluster, "consume", topic, "-e", "-f", "%s\n") == safe
    assert shown(cluster, "consume", topic, "-e", "--raw") == HOSTILE + b"\r\n"
    assert b"\x1b" not in shown(cluster, "consume", topic, "-e", "--json")
    done = piped(cluster, b"", "consume", topic, "-e")
    assert done == (0, HOSTILE + b"\n", b"")


def test_names_that_others_chose_are_written_out_in_tables(
    cluster: Broker, scriba: Scriba, topic: str
) -> None:
    """A group's name may be anything."""
    scriba("topic", "create", topic)
    piped(cluster, b"1\n", "produce", topic)
    group = f"{topic}\x1b[2J"
    assert scriba("consume", topic, "-e", "--group", group).code == 0
    listed = scriba("group", "list").out
    assert rf"{topic}\x1b[2J" in listed
    assert "\x1b" not in listed
    assert "\x1b" not in scriba("group", "describe", group).out
    scriba("group", "delete", group)


def test_records_go_through_a_pipe_of_commands(cluster: Broker, scriba: Scriba, topic: str) -> None:
    scriba("topic", "create", topic)
    copy = f"{topic}-copy"
    scriba("topic", "create", copy)
    piped(cluster, b"a\tone\nb\ttwo\n", "produce", topic, "-K", "\t")
    with (
        start(cluster, "consume", topic, "-e", "-K", "\t") as reading,
        subprocess.Popen(
            [sys.executable, "-m", "scriba", "produce", copy, "-K", "\t"],
            env=os.environ | {"SCRIBA_BOOTSTRAP": cluster.bootstrap},
            stdin=reading.stdout,
        ) as writing,
    ):
        assert reading.wait(PATIENCE) == 0
        assert writing.wait(PATIENCE) == 0
    assert scriba("consume", copy, "-e", "-K", "\t").text == "a\tone\nb\ttwo\n"
