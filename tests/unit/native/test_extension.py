"""How the extension is built and chosen."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from scriba.native import implementation
from scriba.records.crc import crc32c

ROOT = Path(__file__).parents[3]
SEED = bytes(range(16))


def run(*arguments: str, **environment: str) -> str:
    return ended(*arguments, **environment).stdout


def ended(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def build(folder: Path, **environment: str) -> tuple[list[Path], list[str]]:
    """What was built, and what was said of it."""
    where = ("--build-lib", str(folder / "lib"), "--build-temp", str(folder / "temp"))
    said = ended("setup.py", "--quiet", "build_ext", *where, **environment).stderr.splitlines()
    return list((folder / "lib").rglob("_native*")), [x for x in said if x.startswith("scriba:")]


@pytest.mark.parametrize("value", ["0", "1", ""])
def test_the_environment_switches_the_extension_off(value: str) -> None:
    code = "from scriba.native import implementation; print(implementation.chosen.native)"
    printed = run("-c", code, SCRIBA_NATIVE=value)
    assert printed.strip() == str(value != "0" and implementation.NATIVE is not None)


def test_the_package_works_where_the_extension_is_missing() -> None:
    code = (
        "import sys; sys.modules['scriba.native._native'] = None\n"
        "from scriba.native import implementation\n"
        "from scriba.records import batch\n"
        "made = batch.encode_batch([batch.Record(value=b'v')])\n"
        "print(implementation.chosen.native, batch.decode_records(made)[0].value)"
    )
    assert run("-c", code).strip() == "False b'v'"


def test_an_extension_that_lacks_something_is_left_alone_and_named() -> None:
    """It stays behind where sources were updated and nothing was built."""
    code = (
        "import sys, types; sys.modules['scriba.native._native'] = types.ModuleType('_native')\n"
        "import warnings; warnings.simplefilter('error')\n"
        "try:\n"
        "    from scriba.native import implementation\n"
        "except RuntimeWarning as warning:\n"
        "    print(warning)\n"
        "warnings.simplefilter('ignore')\n"
        "from scriba.native import implementation\n"
        "print(implementation.chosen is implementation.FALLBACK)"
    )
    warning, fell_back = run("-c", code).splitlines()
    assert "no attribute 'decode_records'" in warning
    assert "pip install -e ." in warning
    assert fell_back == "True"


SPEAKING = (
    "import sys, types, warnings; warnings.simplefilter('ignore')\n"
    "sys.modules.update({given})\n"
    "from scriba.spark.doctor import check_records\n"
    "(finding,) = check_records()\n"
    "print(finding.found, '->', finding.fix)"
)


@pytest.mark.parametrize(
    ("given", "switch", "said"),
    [
        ("{'scriba.native._native': None}", "1", "was not built -> install a C compiler"),
        (
            "{'scriba.native._native': types.ModuleType('_native')}",
            "1",
            "is older than this code (module '_native' has no attribute 'decode_records') -> build",
        ),
        ("{}", "0", "is switched off by SCRIBA_NATIVE=0 -> unset SCRIBA_NATIVE"),
        ("{}", "1", "decoded by the native extension -> "),
    ],
    ids=["missing", "outdated", "off", "native"],
)
@pytest.mark.usefixtures("extension")
def test_the_doctor_tells_whether_the_extension_is_used_and_if_not_why(
    given: str, switch: str, said: str
) -> None:
    assert said in run("-c", SPEAKING.replace("{given}", given), SCRIBA_NATIVE=switch)


def test_a_failing_compiler_does_not_fail_the_build_which_says_what_is_missing(
    tmp_path: Path,
) -> None:
    built, [said] = build(tmp_path, CC="false")
    assert built == []
    assert "built without its extension (is there a C compiler" in said


class TestExtension:
    """Where there is a compiler all of this has to hold."""

    pytestmark = pytest.mark.usefixtures("extension")

    def test_it_compiles_without_a_warning(self, tmp_path: Path) -> None:
        [_], said = build(tmp_path, CFLAGS="-O2 -Wall -Wextra -Werror")
        assert said == []

    def test_the_one_in_use_was_built_from_these_sources(self) -> None:
        from scriba.native import _native

        current = run("-c", "import setup; print(setup.fingerprint())").strip()
        assert current == _native.SOURCES, "run: pip install -e . --no-deps --no-build-isolation"

    def test_its_checksum_is_crc32c_whoever_computes_it(self) -> None:
        from scriba.native import _native

        assert _native.crc32c_of(b"123456789")[0] == 0xE3069283
        noise = random.Random(7).randbytes(300)
        for start in range(9):
            for end in range(start, len(noise)):
                data = noise[start:end]
                assert _native.crc32c_of(data)[0] == crc32c(data)

    def test_its_checksum_is_the_same_where_the_library_takes_over(self) -> None:
        from scriba.native import _native

        noise = random.Random(8).randbytes(8 << 10)
        for size in (*range(1400, len(noise), 61), *range(2040, 2060)):
            for start in range(3):
                data = noise[start : start + size]
                assert _native.crc32c_of(data)[0] == crc32c(data)

    @pytest.mark.parametrize(
        ("length", "digest"),
        [
            (0, "a3817f04ba25a8e66df67214c7550293"),
            (15, "5493e99933b0a8117e08ec0f97cfc3d9"),
            (63, "5150d1772f50834a503e069a973fbd7c"),
        ],
    )
    def test_its_hash_is_siphash(self, length: int, digest: str) -> None:
        from scriba.native import _native

        assert _native.siphash(SEED, bytes(range(length))).hex() == digest
