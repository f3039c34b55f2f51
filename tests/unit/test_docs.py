"""The pages: their links lead somewhere, their commands are commands, decisions have one number."""

import re
import shlex
from pathlib import Path

import pytest

from scriba.cli.parsing.arguments import parser

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"))
    if page.is_file()
)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in a link."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_that_are_shown_are_commands(page: Path) -> None:
    for line in re.findall(r"^\$? ?(scriba [a-z].*)$", page.read_text(), re.MULTILINE):
        if not in_a_block(page, line):
            continue
        for command in line.split(" | "):
            words = shlex.split(command, comments=True)
            if words[0] != "scriba":
                continue
            parser().parse_args(words[1:-1] if words[-1] == "&" else words[1:])


def in_a_block(page: Path, line: str) -> bool:
    blocks = re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return any(line in block for block in blocks)


def test_every_page_and_every_decision_is_listed() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    decisions = (ROOT / "docs" / "adr" / "README.md").read_text()
    for page in ROOT.glob("docs/*.md"):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name
    numbers = []
    for page in sorted(ROOT.glob("docs/adr/0*.md")):
        number, title = re.findall(r"\A# (\d+)\. (.*)$", page.read_text(), re.MULTILINE)[0]
        assert page.name.startswith(f"{int(number):04}-")
        assert f"{number}. [{title}]({page.name})" in decisions
        numbers.append(int(number))
    assert numbers == list(range(1, len(numbers) + 1))


def test_every_example_is_run_by_a_test() -> None:
    """Named by a test, or a part of a program that is."""
    folder = ROOT / "examples"
    tests = "\n".join(test.read_text() for test in ROOT.glob("tests/**/test_*.py"))
    for program in folder.rglob("*.py"):
        if program.name.startswith("test_") or program.name == "conftest.py":
            continue  # of a sample project, whose tests are run together
        beside = "\n".join(p.read_text() for p in program.parent.rglob("*.py") if p != program)
        whole = program.stem if program.parent == folder else program.parent.name
        assert re.search(rf"\b{whole}\b", tests), program
        assert program.parent == folder or re.search(rf"\b{program.stem}\b", tests + beside), (
            program
        )
        assert f"]({program.relative_to(folder).parts[0]}" in (folder / "README.md").read_text()
