"""The one part of the package that pyproject.toml cannot declare: the optional extension.

Where no compiler is there the build goes on without it, and `scriba.records.pure` does its work.
One build serves every CPython from 3.11 on (the stable ABI).
"""

import hashlib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = Path("src/scriba")
SOURCES = sorted(FOLDER.glob("_native*.c"))
HEADERS = sorted(FOLDER.glob("_native*.h"))


def fingerprint() -> str:
    """Of all sources, so that a test can tell an extension built from older ones."""
    digest = hashlib.sha256()
    for path in (*SOURCES, *HEADERS):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class BuildAside(build_ext):
    """Gives a new extension a new file: a node that runs keeps the one it has in memory."""

    def copy_extensions_to_source(self) -> None:
        for built in FOLDER.glob("_native*.so"):
            built.unlink()
        super().copy_extensions_to_source()


if __name__ == "__main__":
    setup(
        cmdclass={"build_ext": BuildAside},
        ext_modules=[
            Extension(
                "scriba._native",
                sources=[str(path) for path in SOURCES],
                depends=[str(path) for path in HEADERS],
                define_macros=[
                    ("Py_LIMITED_API", "0x030B0000"),
                    ("SCRIBA_NATIVE_SOURCES", f'"{fingerprint()}"'),
                ],
                extra_compile_args=["-std=c11", "-O2", "-fvisibility=hidden"],
                py_limited_api=True,
                optional=True,
            )
        ],
        exclude_package_data={"scriba": ["*.c", "*.h"]},
        options={"bdist_wheel": {"py_limited_api": "cp311"}},
    )
