"""What the words of a command line become, and that reading them costs little."""

import argparse
import importlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from scriba import __version__
from scriba.cli.completing.table import places
from scriba.cli.main import main
from scriba.cli.parsing.arguments import parser
from scriba.cli.parsing.commands import below, inner
from scriba.cli.parsing.examples import EXAMPLES
from scriba.cli.parsing.positions import Position
from scriba.cli.records.produce import sort_words
from tests.typed import present

EVERY = [found for _, found in below(parser())]
LEAVES = [found for found in EVERY if not inner(found)]


@pytest.mark.parametrize("command", LEAVES, ids=lambda command: str(command.prog))
def test_every_command_names_a_function_that_exists_and_explains_itself(
    command: argparse.ArgumentParser,
) -> None:
    module, _, function = command.get_default("run").partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert present(command.description) in command.format_help().replace("\n", " ")


@pytest.mark.parametrize("command", EVERY, ids=lambda command: str(command.prog))
def test_every_help_has_examples_that_can_be_typed(command: argparse.ArgumentParser) -> None:
    lines = EXAMPLES[command.prog]
    assert lines
    shown = command.format_help()
    for line in lines:
        assert f"  $ {line}\n" in shown
        words = shlex.split(line.replace('eval "$(', "").replace(')"', "").rpartition("| ")[2])
        assert words[0] == "scriba"
        parser().parse_args(words[1:])


def test_no_example_is_of_a_command_that_is_gone() -> None:
    assert set(EXAMPLES) == {command.prog for command in EVERY}


def test_scriba_alone_and_help_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    alone = capsys.readouterr()
    assert alone.err == ""
    assert "commands:" in alone.out
    assert main(["help"]) == 0
    assert capsys.readouterr().out == alone.out
    assert main(["help", "topic", "create"]) == 0
    assert capsys.readouterr().out.startswith("usage: scriba topic create ")
    with pytest.raises(SystemExit) as ended:
        main(["help", "topik"])
    assert ended.value.code == 2
    assert "no command 'topik'; did you mean topic?" in capsys.readouterr().err


def test_a_group_of_commands_alone_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["txn"])
    told = capsys.readouterr().err
    assert "a command is missing; there are list, describe, abort" in told


@pytest.mark.parametrize(("switch", "mode"), [("1", "native"), ("0", "pure Python")])
def test_the_version_names_the_mode(switch: str, mode: str) -> None:
    for words in (["--version"], ["version"]):
        done = subprocess.run(
            [sys.executable, "-m", "scriba", *words],
            env=os.environ | {"SCRIBA_NATIVE": switch},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.startswith(f"scriba {__version__} ({mode}), Python ")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["topic", "list", "-X", "acks=1"], "-X acks: a setting of producers, and this command "),
        (
            ["produce", "t", "/dev/null", "-X", "group.id=g"],
            "-X group.id: a setting of consumers, and this ",
        ),
        (["topic", "list", "-X", "ack=1"], "ack: no such setting"),
        (["topic", "list", "-b", "nowhere"], "bootstrap.servers=nowhere: "),
    ],
)
def test_a_setting_that_cannot_be_taken_is_misuse(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"scriba: {line}")


def test_errors_are_json_where_json_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["topic", "create", "--json"])
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["message"].startswith("scriba topic create: ")
    assert (error["fix"], error["exit_code"]) == ("see scriba topic create --help", 2)
    assert main(["produce", "t", "/no/such/file", "--json"]) == 1
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["message"] == "/no/such/file: No such file or directory"


def test_help_loads_neither_clients_nor_settings() -> None:
    program = (
        "import sys\n"
        "from scriba.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stderr.split())
    assert "scriba.cli.parsing.arguments" in loaded
    assert not loaded & {"asyncio", "logging", "dataclasses", "scriba.client", "scriba.config"}


def test_the_broker_comes_from_the_option_then_the_environment_then_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SCRIBA_BOOTSTRAP", raising=False)
    assert parser().parse_args(["topic", "list"]).bootstrap == "127.0.0.1:9092"
    monkeypatch.setenv("SCRIBA_BOOTSTRAP", "kafka:1")
    assert parser().parse_args(["topic", "list"]).bootstrap == "kafka:1"
    assert parser().parse_args(["topic", "list", "-b", "kafka:2"]).bootstrap == "kafka:2"


def test_words_and_options_come_in_any_order() -> None:
    for words in (
        ["produce", "t", "-K", ":", "lines.txt"],
        ["produce", "-K", ":", "t", "lines.txt"],
        ["produce", "t", "lines.txt", "-K", ":"],
    ):
        read = parser().parse_args(words)
        assert (read.words, read.key_separator) == (["t", "lines.txt"], ":")
    assert parser().parse_args(["topic", "delete", "a", "--json", "b"]).topics == ["a", "b"]


def test_the_list_of_commands_stands_in_two_columns(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--help"])
    listed = capsys.readouterr().out.partition("commands:\n")[2].partition("\n\n")[0].splitlines()
    assert all(line[2:].split() and line[2] != " " for line in listed), listed
    assert len({len(line) - len(line[2:].partition(" ")[2].lstrip()) for line in listed}) == 1


def test_a_place_may_begin_with_a_minus() -> None:
    options = parser().parse_args(["consume", "t", "--from", "-5"])
    assert options.start == Position("last", 5)


@pytest.mark.parametrize(
    "words",
    [
        ["topic"],
        ["topic", "create"],
        ["topic", "create", "t", "--partitions", "0"],
        ["topic", "create", "t", "--plan", "-3"],
        ["topic", "create", "t", "--config", "retention.ms"],
        ["topic", "alter", "t"],
        ["config", "get", "--topic", "t", "--broker", "1"],
        ["consume", "t", "--from", "tomorrow"],
        ["consume", "t", "--format", "%z"],
        ["consume", "t", "--cou", "3"],
        ["produce", "--pattern", "shop.*"],
        ["group"],
        ["group", "reset", "g"],
        ["group", "reset", "g", "--to", "latest", "--shift", "1"],
        ["group", "reset", "g", "--to", "somewhere"],
        ["group", "list", "--type", "share"],
        ["group", "delete"],
        ["txn", "list", "--longer-than", "long"],
        ["txn", "describe"],
        ["up", "--port", "70000"],
    ],
)
def test_misuse_exits_with_2_and_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("scriba")
    assert line.endswith("--help)")


def test_a_word_that_is_nearly_right_is_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["topic", "crate", "t"])
    told = capsys.readouterr().err
    assert told.startswith("scriba topic: argument COMMAND: no 'crate'; did you mean create?")
    with pytest.raises(SystemExit):
        main(["quit"])
    assert "there are up, demo, topic, " in capsys.readouterr().err
    for words in (["-b", "kafka:9092", "topic", "list"], ["topic", "-b", "kafka:9092", "list"]):
        with pytest.raises(SystemExit):
            main(words)
        told = capsys.readouterr().err
        assert "no 'kafka:9092'; -b and what it is given belong behind the command (see" in told
    for words, near in (
        (["up", "--prot", "1"], "--prot 1; did you mean --port?"),
        (["consume", "t", "--fromat=%s"], "--fromat=%s; did you mean --format?"),
        (["topic", "list", "--no-such-thing"], "--no-such-thing (see"),
        (
            ["--json", "topic", "list"],
            "--json; it belongs behind the command: scriba topic list --json",
        ),
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert f"unrecognized arguments: {near}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["config", "set", "--topic", "t"],
            "nothing to change; give KEY=VALUE or --delete KEY",
        ),
        (
            ["config", "set", "--topic", "t", "a=1", "--delete", "a"],
            "a is to be set and deleted at once; drop one of the two",
        ),
        (
            ["topic", "create", "t", "--per-consumer", "3"],
            "--per-consumer and --per-partition say nothing without --plan",
        ),
        (
            ["produce", "t", "--json", "-K", ":"],
            "--key-separator says nothing about --json; drop one of the two",
        ),
        (["produce", "-K", ":"], "say where to write; name one topic or more"),
        (
            ["produce", "t", "shop.*"],
            "shop.* is not the name of a topic; records are written to topics by name, only "
            "consume takes a --pattern",
        ),
        (["produce", "a,b"], "a,b is not the name of a topic; put spaces between topics"),
        (["consume", "a,b"], "a,b is not the name of a topic; put spaces between topics"),
        (
            ["produce", "./lines", "t"],
            "./lines is not the name of a topic; a file to read comes last",
        ),
        (
            ["consume", "t", "--json", "-f", "%s"],
            "--json and --format both say how to write a record; drop one of the two",
        ),
        (
            ["consume", "t", "--group", "g", "--from", "end"],
            "a group decides itself which partitions it reads, and from where; drop --partition "
            "and --from; `scriba group reset` moves a group",
        ),
    ],
)
def test_words_that_do_not_go_together_exit_with_2_and_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    told = capsys.readouterr().err
    if "--json" in words:
        error = json.loads(told)["error"]
        assert f"{error['message']}; {error['fix']}" == line
        assert (error["code"], error["exit_code"]) == (None, 2)
    else:
        assert told == f"scriba: {line}\n"


def test_a_word_that_may_be_a_topic_or_a_file_is_asked_back(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lines.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["produce", "t", "lines.txt"]) == 2
    assert capsys.readouterr().err == (
        "scriba: lines.txt may be a topic, and is a file here; write ./lines.txt to read it, or - "
        "at the end to read standard input\n"
    )


@pytest.mark.parametrize(
    ("words", "topics", "file"),
    [
        (["a"], ["a"], None),
        (["a", "b", "a"], ["a", "b"], None),
        (["a", "-"], ["a"], "-"),
        (["a", "b", "./here"], ["a", "b"], "./here"),
        (["a", "here", "-"], ["a", "here"], "-"),
        (["here"], ["here"], None),
        (["/in"], [], "/in"),
        ([], [], None),
    ],
)
def test_words_of_produce_are_topics_and_a_file(
    words: list[str], topics: list[str], file: str | None
) -> None:
    assert sort_words(words, lambda word: word.endswith("here")) == (topics, file)


def test_options_that_no_help_shows_are_not_completed() -> None:
    offered = {name for node in places(parser()) for o in node.options for name in o.names}
    assert "--quiet" in offered
    assert not offered & {"--child", "--unsynced"}
    (produce,) = [node for node in places(parser()) if node.path == "scriba produce"]
    assert not [option for option in produce.options if "--pattern" in option.names]


def test_a_file_that_is_not_there_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["produce", "t", "/no/such/file"]) == 1
    assert capsys.readouterr().err == "scriba: /no/such/file: No such file or directory\n"


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(options: argparse.Namespace) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr("scriba.cli.topics.topic.list_all", broken)
    with pytest.raises(ZeroDivisionError):
        main(["topic", "list"])
