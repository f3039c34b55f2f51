"""The tests beside this one again, with AddressSanitizer and UndefinedBehaviorSanitizer.

They watch every load, store and sum of the extension and end the process at the first wrong one.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import build

HERE = Path(__file__).parent
OTHERS = sorted(path for path in HERE.glob("test_*.py") if path != Path(__file__))
NOT_HERE = ("test_extension.py",)
"""They look at how it is built, in processes of their own."""


@pytest.fixture(scope="module")
def built(extension: object) -> Path:
    return build.sanitized()


def run(built: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        env={**build.environment(built), "HYPOTHESIS_PROFILE": "few"},
        cwd=build.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_test_makes_the_extension_reach_where_it_must_not(built: Path) -> None:
    files = [str(path) for path in OTHERS if path.name not in NOT_HERE]
    plain = ("-p", "no:cacheprovider", "--no-header", "-q")
    done = run(
        built, "-m", "pytest", "-p", "tests.fuzz.plugin", *plain, "-k", "not fallback", *files
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sanitized: in use" in done.stdout


def test_a_byte_too_many_is_noticed(built: Path) -> None:
    """Or all of the above could not fail."""
    code = (
        "from tests.fuzz import build; build.load()\n"
        "from scriba.native import _native\n"
        "from tests.fuzz.targets import exact\n"
        "import ctypes\n"
        "view = exact(bytes(40)); address = ctypes.addressof(view.obj)\n"
        "_native.murmur2((ctypes.c_ubyte * 41).from_address(address))\n"
    )
    done = run(built, "-c", code)
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
