"""Python workers of Spark on this machine: which modules they take, and what else they keep."""

import os
import subprocess
import sys
from pathlib import Path

import scriba.spark

LAUNCHER = Path(scriba.spark.__file__).with_name("python.sh")


def path_of_a_worker(*places: str) -> list[str]:
    environment = {**os.environ, "SCRIBA_SPARK_PYTHON": sys.executable}
    said = subprocess.run(
        [LAUNCHER, "-c", "import os; print(os.environ.get('PYTHONPATH', ''))"],
        env={**environment, "PYTHONPATH": ":".join(places)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [place for place in said.strip().split(":") if place]


def test_a_worker_takes_the_installed_modules_and_keeps_the_places_of_its_user() -> None:
    archives = "/spark home/python/lib/pyspark.zip", "/spark home/python/lib/py4j-0.10.9.9-src.zip"
    assert path_of_a_worker(*archives, "/jobs/my code", "/jobs/wheel.zip") == [
        "/jobs/my code",
        "/jobs/wheel.zip",
    ]


def test_a_worker_with_nothing_but_archives_has_no_path_of_its_own() -> None:
    assert path_of_a_worker("/lib/pyspark.zip") == []
