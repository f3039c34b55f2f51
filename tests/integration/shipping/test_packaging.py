"""The container and the service, as far as they go without an engine and without systemd: their
files, settings and commands are carried out by hand."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scriba.cli.parsing.arguments import parser
from tests.pages import Block, Reader

ROOT = Path(__file__).resolve().parents[3]
PACKAGING = ROOT / "packaging"
WHEELS = ROOT / ".cache" / "wheels"


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile, each in one line."""
    text = re.sub(r"^#.*\n", "", (PACKAGING / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(line.split()[0], line.partition(" ")[2]) for line in lines if line.strip()]


def given(name: str) -> list[str]:
    return [rest for word, rest in instructions() if word == name]


def test_image_is_built_of_what_it_copies(tmp_path: Path) -> None:
    for line in given("COPY"):
        *sources, target = line.split()
        place = tmp_path / target.lstrip("/")
        for source in sources:
            if (ROOT / source).is_dir():
                unwanted = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
                shutil.copytree(ROOT / source, place, ignore=unwanted)
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, place)
            kept = f"!{source}"
            assert kept in (ROOT / ".dockerignore").read_text().splitlines(), source
    (build,) = (line for line in given("RUN") if line.startswith("pip wheel"))
    build = re.sub(r"(?<= )/(?=source|wheels)", f"{tmp_path}/", build)
    words = shlex.split(build)
    offline = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(WHEELS)}
    subprocess.run([sys.executable, "-m", *words], check=True, env=offline)
    assert list((tmp_path / "wheels").glob("scriba-*-abi3-*.whl"))


def test_container_serves_this_machine_and_its_neighbours(tmp_path: Path) -> None:
    words = [word for line in given("ENV") for word in shlex.split(line)]
    variables = dict(word.split("=", 1) for word in words)
    variables["KAFKA_LOG_DIRS"] = "log"
    (health,) = (line.partition("CMD ")[2] for line in given("HEALTHCHECK"))
    healthy = shlex.join(eval(health))
    entry = shlex.join([*eval(given("ENTRYPOINT")[0]), *eval(given("CMD")[0])])
    with Reader.sits_down("packaging/Dockerfile", tmp_path) as reader:
        for command in (
            "export " + " ".join(f"{k}={shlex.quote(v)}" for k, v in variables.items()),
            entry,
            healthy,
            "echo hello | scriba produce demo -b localhost:9092",
            "scriba consume demo --exit -b localhost:9092",
            "kcat -L -b localhost:9092 | grep ' at localhost:9092'",
            "kcat -L -b localhost:19092 | grep ' at scriba:19092'",
        ):
            reader.types(Block("packaging/Dockerfile", 1, "console", f"$ {command}"))
        reader.leaves_all()


def test_compose_builds_that_image_and_opens_it_to_this_machine_alone() -> None:
    text = (PACKAGING / "compose.yaml").read_text()
    (dockerfile,) = re.findall(r"dockerfile: (\S+)", text)
    assert (ROOT / dockerfile).is_file()
    assert re.findall(r'- "([\d.:]+)"', text) == ["127.0.0.1:9092:9092"]
    (hostname,) = re.findall(r"hostname: (\S+)", text)
    assert f"NETWORK://{hostname}:19092" in (PACKAGING / "Dockerfile").read_text()


def test_service_starts_what_there_is_and_systemd_takes_it(tmp_path: Path) -> None:
    unit = (PACKAGING / "scriba.service").read_text()
    (start,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    program, *words = shlex.split(start)
    assert parser().parse_args(words).data == "/var/lib/scriba"
    assert "Type=notify" in unit  # see test_up
    if systemd := shutil.which("systemd-analyze"):
        here = tmp_path / "scriba.service"
        here.write_text(unit.replace(program, "/bin/true"))
        said = subprocess.run(
            [systemd, "verify", str(here)], capture_output=True, text=True, check=False
        )
        assert (said.returncode, said.stderr) == (0, "")


@pytest.mark.parametrize("file", ["compose.yaml", "scriba.service", "Dockerfile"])
def test_page_on_installing_names_each_file(file: str) -> None:
    assert f"packaging/{file}" in (ROOT / "docs" / "installing.md").read_text()
