"""The pytest plugin as its users have it: found by pytest, in projects of their own."""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "examples" / "tested"


def run(where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """pytest in a process of its own, without what this run's environment says to it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *words],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def passed(where: Path, count: int, *words: str) -> str:
    done = run(where, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} passed" in done.stdout
    return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def test_pytest_finds_it() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert declared["pytest11"] == {"scriba": "scriba.testing.plugin"}
    found = [each.value for each in entry_points(group="pytest11") if each.name == "scriba"]
    assert found == ["scriba.testing.plugin"], "install the package again: make setup"


@pytest.mark.parametrize("beside", [(), ("-n", "2"), ("--scriba-process",)], ids=" ".join)
def test_the_sample_project_passes(beside: tuple[str, ...]) -> None:
    passed(SAMPLE, 8, *beside)


ISOLATION = """
import pytest

@pytest.mark.parametrize("turn", [1, 2])
def test_topics_are_ones_own(scriba_broker, scriba_topic, turn):
    assert scriba_broker.records(scriba_topic) == []
    scriba_broker.produce(scriba_topic, "v")

def test_a_prefix_is_a_legal_name(scriba_broker, scriba_prefix, request):
    scriba_broker.create_topic(scriba_prefix)

@pytest.mark.parametrize("odd", ["a b/c", "ä" * 300, "[x]"])
def test_so_is_that_of_an_odd_test(scriba_topic, odd):
    assert scriba_topic

@pytest.mark.parametrize("turn", [1, 2])
def test_a_fresh_broker_is_empty(scriba_fresh_broker, turn):
    assert scriba_fresh_broker.topics() == []
    scriba_fresh_broker.produce("left", "over")

def test_leaves_it_in_trouble(scriba_broker):
    scriba_broker.fail_next("Metadata", "LEADER_NOT_AVAILABLE", times=1000)
    scriba_broker.pause()

def test_finds_it_without_faults(scriba_broker, scriba_topic):
    from confluent_kafka import Producer
    producer = Producer({"bootstrap.servers": scriba_broker.bootstrap_servers})
    producer.produce(scriba_topic, b"v")
    assert producer.flush(60) == 0
    scriba_broker.stop(kill=True)

def test_finds_it_running(scriba_broker):
    assert scriba_broker.topics()
"""


@pytest.mark.parametrize("beside", [(), ("-n", "2")], ids=" ".join)
def test_tests_do_not_meet(project: Path, beside: tuple[str, ...]) -> None:
    (project / "test_isolation.py").write_text(ISOLATION)
    passed(project, 11, *beside)


PAUSED = """
import pytest

@pytest.fixture
def uses_it(scriba_broker):
    yield
    assert scriba_broker.topics() == [], "it answers, and has no faults"

def test_leaves_it_in_trouble(scriba_broker, uses_it):
    scriba_broker.fail_next("Metadata", "LEADER_NOT_AVAILABLE", times=1000)
    scriba_broker.stop()
"""


def test_fixtures_end_with_a_broker_that_is_well(project: Path) -> None:
    (project / "test_paused.py").write_text(PAUSED)
    passed(project, 1)


SETTINGS = """
def test_settings(scriba_broker):
    assert scriba_broker.pid is {pid}
    scriba_broker.create_topic("t", partitions=-1)
    scriba_broker.produce("t", "v", partition={last})
"""


def test_settings_come_from_the_ini_file_and_the_command_line(project: Path) -> None:
    (project / "pytest.ini").write_text(
        "[pytest]\nscriba_settings =\n    num.partitions=5\n    log.retention.ms = 5000\n"
    )
    test = project / "test_settings.py"
    test.write_text(SETTINGS.format(pid=None, last=4))
    passed(project, 1)
    test.write_text(SETTINGS.format(pid=None, last=6))
    passed(project, 1, "--scriba-setting", "num.partitions=7")
    test.write_text(SETTINGS.format(pid="not None", last=4))
    passed(project, 1, "--scriba-process")
    (project / "pytest.ini").write_text("[pytest]\nscriba_process = true\n")
    test.write_text(SETTINGS.format(pid="not None", last=0))
    passed(project, 1)


@pytest.mark.parametrize(
    ("given", "told"),
    [("num.partitons=1", "did you mean num.partitions?"), ("num.partitions", "NAME=VALUE")],
)
def test_settings_that_are_wrong_are_told(project: Path, given: str, told: str) -> None:
    (project / "test_settings.py").write_text(SETTINGS.format(pid=None, last=0))
    done = run(project, "--scriba-setting", given)
    assert done.returncode != 0
    assert told in done.stdout + done.stderr


def test_those_who_use_none_of_it_pay_nothing(project: Path) -> None:
    (project / "test_plain.py").write_text(
        "import sys, threading\n"
        "def test_plain():\n"
        "    loaded = {name for name in sys.modules if name.split('.')[0] == 'scriba'}\n"
        "    assert loaded == {'scriba', 'scriba.testing', 'scriba.testing.plugin'}\n"
        "    assert not [t for t in threading.enumerate() if 'scriba' in t.name]\n"
    )
    passed(project, 1)


def test_its_options_are_explained(project: Path) -> None:
    told = run(project, "--help").stdout
    for word in ("--scriba-setting", "--scriba-process", "scriba_settings", "scriba_process"):
        assert word in told
    fixtures = run(project, "--fixtures").stdout
    for name in ("scriba_broker", "scriba_topic", "scriba_prefix", "scriba_fresh_broker"):
        assert name in fixtures
