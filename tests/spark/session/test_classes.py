"""The archive of Spark's classes: made of a run that is over, tried once, never waited for."""

import subprocess
import sys
from pathlib import Path

import pytest

from scriba.spark import classes

RUN = """
import sys
from scriba.spark import end, session
spark = session("classes", master="local[1]", config={
    "spark.driver.extraJavaOptions": " ".join(["-XX:+UseSerialGC", *sys.argv[1:]])})
assert spark.range(10).selectExpr("sum(id)").first()[0] == 45
assert end(spark)
"""


def run(*java: str) -> None:
    subprocess.run([sys.executable, "-c", RUN, *java], check=True, timeout=600)


def test_archive_is_made_of_what_a_run_loaded_and_the_next_one_starts_with_it(
    tmp_path: Path,
) -> None:
    archive = tmp_path / "with a space" / "classes.jsa"
    run(*classes.options(archive))
    assert not archive.exists()
    assert classes.make(archive)
    options = classes.options(archive)
    assert "SharedArchiveFile" in options[0]
    run(*options, "-Xshare:on")  # ends where the archive cannot be used
    assert classes.options(archive) == options
    assert not classes.keep(archive), "it is there"


@pytest.fixture
def names(tmp_path: Path) -> Path:
    """What a run wrote down, of which Java can make nothing."""
    archive = tmp_path / "classes.jsa"
    assert "DumpLoadedClassList" in classes.options(archive)[0]
    (tmp_path / "classes.names").write_text("java/lang/Object id: 0\n@nonsense\ncut o")
    return archive


def test_version_is_tried_once_and_another_one_anew(
    names: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classes, "PATIENCE_S", 0.01)
    assert not classes.make(names)
    assert classes.options(names) == []
    assert not classes.keep(names)
    monkeypatch.setattr(classes, "version", lambda: "the next one")
    assert "DumpLoadedClassList" in classes.options(names)[0]


def test_archive_of_another_version_is_not_used(names: Path) -> None:
    names.write_bytes(b"of another Spark")
    names.with_suffix(".version").write_text("another Spark")
    assert "DumpLoadedClassList" in classes.options(names)[0]


def test_nobody_waits_for_the_archive(tmp_path: Path) -> None:
    """Without names, since the run was cut short, nothing is begun; the next run writes them."""
    archive = tmp_path / "classes.jsa"
    assert not classes.keep(archive)
    assert list(tmp_path.iterdir()) == []
