"""What pyproject.toml cannot declare: the optional extension, and README's links elsewhere.

Where no compiler is there, or SCRIBA_PURE=1 asks for it, the package is built without the extension
and `scriba.native.fallback` does its work; such a wheel is tagged py3-none-any. One build with it
serves every CPython from 3.11 on (the stable ABI).
"""

import ast
import hashlib
import os
import re
import sys
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
SOURCES = sorted((ROOT / "src" / "native").glob("*.c"))
HEADERS = sorted((ROOT / "src" / "native").glob("*.h"))
WITHOUT = (
    "built without its extension (is there a C compiler, and Python.h?): records are handled in "
    "pure Python, several times slower"
)
PURE = os.environ.get("SCRIBA_PURE") == "1"


def fingerprint() -> str:
    """Of all sources, so that a test can tell an extension built from older ones."""
    digest = hashlib.sha256()
    for path in (*SOURCES, *HEADERS):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def readme() -> str:
    """README.md for a package index, where a path of this folder leads nowhere."""
    home = tomllib.loads(Path("pyproject.toml").read_text())["project"]["urls"]["Repository"]
    source = Path("src/scriba/__init__.py").read_text()
    (version,) = re.findall(r"^__version__ = (.+)$", source, re.M)
    tag = f"v{ast.literal_eval(version)}"
    text = Path("README.md").read_text()
    text = re.sub(r"\]\((?![a-z]+:|#)", f"]({home}/blob/{tag}/", text)
    return re.sub(r'(src|srcset)="(?![a-z]+:)', rf'\1="{home}/raw/{tag}/', text)


class BuildAside(build_ext):
    """Gives a new extension a new file: a node that runs keeps the one it has in memory. Says in
    one line that there is none, after all that a compiler has said."""

    def run(self) -> None:
        super().run()
        if not all(Path(self.get_ext_fullpath(each.name)).exists() for each in self.extensions):
            sys.stderr.write(f"scriba: {WITHOUT}\n")

    def copy_extensions_to_source(self) -> None:
        for built in Path("src/scriba/native").glob("_native*.so"):
            built.unlink()
        super().copy_extensions_to_source()


class Wheel(bdist_wheel):
    """Tagged by what became of the extension, not by what was hoped for."""

    def run(self) -> None:
        self.run_command("build")
        folder = Path(self.get_finalized_command("build").build_lib, "scriba", "native")
        if not any(folder.glob("_native*.so")):
            self.distribution.ext_modules = []
            self.root_is_pure = True
            self.py_limited_api = False
        super().run()


if __name__ == "__main__":
    extension = Extension(
        "scriba.native._native",
        sources=[str(path.relative_to(ROOT)) for path in SOURCES],
        depends=[str(path.relative_to(ROOT)) for path in HEADERS],
        define_macros=[
            ("Py_LIMITED_API", "0x030B0000"),
            ("SCRIBA_NATIVE_SOURCES", f'"{fingerprint()}"'),
        ],
        extra_compile_args=["-std=c11", "-O2", "-fvisibility=hidden"],
        py_limited_api=True,
        optional=True,
    )
    setup(
        cmdclass={"build_ext": BuildAside, "bdist_wheel": Wheel},
        ext_modules=[] if PURE else [extension],
        long_description=readme(),
        long_description_content_type="text/markdown",
        options={} if PURE else {"bdist_wheel": {"py_limited_api": "cp311"}},
    )
