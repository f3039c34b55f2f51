"""tools/setup.sh on a machine that lacks something, with an apt-get that only writes down what it
is asked for."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
USUAL = ("sh", "dirname", "sed", "env", "cat")
APT = """#!/bin/sh
echo "$@" >> "{log}"
case "$*" in *" install "*) exit {code};; esac
"""


def machine(place: Path, *programs: str, code: int = 0) -> dict[str, str]:
    """One that has little more than a shell, and is ours."""
    place.mkdir()
    for name in USUAL:
        (place / name).symlink_to(shutil.which(name) or name)
    for name in programs:
        (place / name).symlink_to("/bin/true")
    for name, text in {
        "apt-get": APT.format(log=place / "asked", code=code),
        "id": "#!/bin/sh\necho 0\n",
        "sleep": "#!/bin/sh\n",
    }.items():
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    return {"PATH": str(place)}


def setup(what: str, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(ROOT / "tools" / "setup.sh"), what],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def asked(environment: dict[str, str]) -> str:
    log = Path(environment["PATH"]) / "asked"
    return log.read_text() if log.exists() else ""


def test_run_brings_java_and_a_compiler_to_a_fresh_machine(tmp_path: Path) -> None:
    environment = machine(tmp_path / "bin")
    assert setup("running", environment).returncode == 0
    installed = asked(environment).splitlines()[-1]
    assert installed.endswith("build-essential openjdk-17-jre-headless")


def test_run_brings_nothing_that_is_there(tmp_path: Path) -> None:
    environment = machine(tmp_path / "bin", "cc", "java")
    assert setup("running", environment).returncode == 0
    assert asked(environment) == ""


def test_release_without_that_java_gives_its_own(tmp_path: Path) -> None:
    environment = machine(tmp_path / "bin", "cc", code=1)
    setup("running", environment)
    assert asked(environment).splitlines()[-1].endswith("default-jre-headless")


def test_run_goes_on_where_java_cannot_be_had_and_tests_do_not(tmp_path: Path) -> None:
    environment = machine(tmp_path / "bin", code=1)
    done = setup("running", environment)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "setup: going on without")
    assert setup("programs", environment).returncode != 0


@pytest.mark.parametrize("target", ["run", "test"])
def test_nothing_is_archived_before_a_demo_or_a_test(target: str) -> None:
    planned = subprocess.run(
        ["make", "-n", "-B", target], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "tools/setup.sh python" in planned
    assert "classes.py" not in planned
    assert "setup.sh classes" not in planned
