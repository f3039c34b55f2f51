"""What tests leave in the folder for temporary files goes with the session."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEAVES_SOMETHING = """
import os, tempfile
def pytest_collection_finish(session):
    place = tempfile.mkdtemp(prefix="left-")
    print("left in", place, os.environ["SPARK_SUBMIT_OPTS"])
"""


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "leaves_something.py").write_text(LEAVES_SOMETHING)
    usual = tmp_path / "tmp"
    usual.mkdir()
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "SPARK_"))
    }
    environment |= {"TMPDIR": str(usual), "PYTHONPATH": str(tmp_path)}
    wanted = "tests/unit/cli/test_template.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "leaves_something", "-s", wanted],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert f"left in {usual}/scriba-" in done.stdout
    assert f"-Djava.io.tmpdir={usual}/scriba-" in done.stdout
    assert [path.name for path in usual.iterdir() if not path.name.startswith("pytest-of-")] == []
