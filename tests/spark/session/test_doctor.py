"""`scriba spark doctor`: finds what is wrong, and says what to do."""

import json
import sys
from pathlib import Path

import pytest

from scriba.cli.main import main
from scriba.spark.doctor import check_jars, check_java, check_master, check_packages, check_python
from tests.spark.desk import JARS, Topics


def test_a_sound_machine_and_a_broker_pass(
    topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["spark", "doctor", "--bootstrap", topics.broker.bootstrap, "--json"]) == 0
    found = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert {"python", "pyspark", "pyarrow", "pandas", "java", "master", "cluster"} <= found.keys()
    assert found["transactions"]["ok"]


def test_a_broker_that_does_not_answer_is_told_with_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["spark", "doctor", "--bootstrap", "127.0.0.1:1", "--timeout", "0.5"]) == 1
    assert "-> start a node with `scriba up`" in capsys.readouterr().out


def test_java_is_looked_for_where_java_home_points(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (finding,) = check_java()
    assert "JAVA_HOME" in finding.fix
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    for version, well in (("1.8.0_292", False), ("11.0.2", False), ("17.0.1", True)):
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
        (finding,) = check_java()
        assert finding.well is well
    java.write_text("#!/bin/sh\necho 'openjdk version \"25\"' >&2\n")
    (finding,) = check_java()
    assert finding.optional


def test_tasks_must_find_scriba_in_their_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert [finding.well for finding in check_python()] == [True]
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    (finding,) = check_python()
    assert "install scriba there too" in finding.fix
    other.write_text("#!/bin/sh\necho 3.9\n")
    (finding,) = check_python()
    assert "set PYSPARK_PYTHON" in finding.fix


def test_packages_are_compared_with_what_is_needed() -> None:
    assert [finding.subject for finding in check_packages()] == ["pyspark", "pyarrow", "pandas"]
    assert all(finding.well for finding in check_packages())


def test_a_folder_of_jars_must_hold_the_connector(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SCRIBA_SPARK_JARS", raising=False)
    assert list(check_jars(official=False)) == []
    monkeypatch.setenv("SCRIBA_SPARK_JARS", str(tmp_path))
    (finding,) = check_jars(official=True)
    assert (finding.well, finding.optional) == (False, False)
    monkeypatch.setenv("SCRIBA_SPARK_JARS", str(JARS))
    (finding,) = check_jars(official=True)
    assert finding.found.startswith("connector ")


def test_a_master_that_does_not_answer_is_told() -> None:
    (finding,) = check_master("spark://127.0.0.1:1")
    assert "correct --master" in finding.fix
    assert all(finding.well for finding in check_master("local[2]"))
