"""Tests, tools and benchmarks are packages: found by their names, and helpers have modules."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(
    path for room in ("tests", "tools", "bench") for path in ROOT.glob(f"{room}/**/*.py")
)


def breaches(source: str) -> Iterator[str]:
    """Imports from where pytest collects tests or fixtures, and edits of the search path."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            modules = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            if any(name == "conftest" or name.startswith("test_") for name in modules):
                yield f"line {node.lineno}: a helper is imported from a module of tests"
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
            if any(name == "conftest" or name.startswith("test_") for name in names):
                yield f"line {node.lineno}: a helper is imported from a module of tests"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path":
            yield f"line {node.lineno}: sys.path is used; modules are found by their names"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_helpers_have_modules_of_their_own(path: Path) -> None:
    assert list(breaches(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "from tests.unit.broker.fastpath.test_repeated_produce import Writer",
        "from .conftest import Desk",
        "from tests.unit.client import test_consumer",
        "import tests.unit.conftest",
        "import sys\nsys.path.insert(0, 'bench')",
    ],
)
def test_a_breach_is_noticed(source: str) -> None:
    assert list(breaches(source))
