"""Every page can be typed, block after block, into an empty folder (see tests/pages.py)."""

from pathlib import Path

import pytest

from tests import pages
from tests.pages import Block, PageError, Reader, blocks, commands, fits

LIGHT = [page for page in pages.PAGES if page not in pages.HEAVY]


@pytest.mark.parametrize("page", LIGHT)
def test_page_can_be_typed_in_order(page: str, tmp_path: Path) -> None:
    pages.read(page, tmp_path)


def test_blocks_that_are_not_run_are_known_by_number() -> None:
    left_out = {
        page: sum(block.reason is not None for block in blocks(page)) for page in pages.PAGES
    }
    assert {page: count for page, count in left_out.items() if count} == pages.NOT_RUN


def console(text: str) -> Block:
    return Block("page.md", 1, "console", text)


def test_blocks_are_found_with_their_lines_and_reasons() -> None:
    source = (
        "a\n\n```sh\nls\n```\n\n<!-- not run: no printer -->\n\n   ```console\n   $ lpr\n   ```\n"
    )
    first, second = blocks("page.md", source)
    assert first == Block("page.md", 4, "sh", "ls", None)
    assert second == Block("page.md", 10, "console", "$ lpr", "no printer")


def test_the_address_of_the_repository_is_one_that_can_be_typed() -> None:
    (block,) = blocks("page.md", f"```console\n$ git clone {pages.ADDRESS} scriba\n```\n")
    assert block.text == f"$ git clone {pages.HOME}.git scriba"


def test_no_page_installs_from_an_address_that_does_not_exist() -> None:
    for page in pages.PAGES:
        assert pages.HOME not in (pages.ROOT / page).read_text(), page


def test_commands_reach_over_lines_while_a_shell_waits_for_more() -> None:
    text = "$ echo 'a\n> b' \\\n  c\na\nb c\n$ cat <<X\n> one\n> X\none"
    assert [(c.text, c.shown) for c in commands(console(text))] == [
        ("echo 'a\nb' \\\n  c", "a\nb c"),
        ("cat <<X\none\nX", "one"),
    ]


@pytest.mark.parametrize(
    ("shown", "printed", "fit"),
    [
        ("apple: +10, now 10", "apple: +10, now 10\n", True),
        ("apple: +10, now 10", "apple: +10, now 11\n", False),
        ("apple: +10", "apple: +10\npear: +4\n", False),
        ("A  B\n...\nZ", "A B\nC\nD\nZ\n", True),
        ("A\n...", "A\n", True),
        ("A\n...", "A\nB\nC", True),
        ("...", "A\nB\n", True),
        ("id addGVRuKScaw0ydbZxqpwQ", "id 0000000000000000000001", True),
        ("id addGVRuKScaw0ydbZxqpwQ", "id short", False),
        ("at 2026-11-15T10:05:25.372Z", "at 2027-01-01T00:00:00.000Z", True),
        ("in 8.1 s", "in 12 s", True),
        ("in 8 s", "in 12 s", False),
        ("receive-...  x", "receive-77  x", True),
    ],
)
def test_what_is_shown_is_compared_by_its_shape(shown: str, printed: str, fit: bool) -> None:
    assert fits(shown, printed) is fit


def test_reader_keeps_one_shell_and_saves_files(tmp_path: Path) -> None:
    with Reader.sits_down("page.md", tmp_path) as reader:
        reader.types(console("$ export WORD=hello\n$ mkdir in && cd in"))
        reader.types(console("$ echo $WORD $(basename $PWD)\nhello in"))
        reader.types(Block("page.md", 1, "python", "# in/say.py\nprint('said')"))
        reader.types(console("$ python say.py\nsaid"))


@pytest.mark.parametrize(
    "text",
    [
        "$ false",
        "$ echo one\ntwo",
        "$ echo fine\nscriba: it is refused",
        "$ false  # in another terminal",
        "$ bash -c 'trap \"exit 3\" INT; echo ready; sleep 60 & wait'  # Ctrl-C\nready",
        "no prompt",
    ],
)
def test_page_that_does_not_hold_is_told(text: str, tmp_path: Path) -> None:
    def typed() -> None:
        with Reader.sits_down("page.md", tmp_path) as reader:
            reader.types(console(text))
            reader.leaves_all()

    with pytest.raises(PageError):
        typed()


def test_command_in_another_terminal_goes_on_and_is_ended(tmp_path: Path) -> None:
    with Reader.sits_down("page.md", tmp_path) as reader:
        reader.types(console("$ scriba up\n$ echo hello | scriba produce demo"))
        reader.types(console("$ scriba consume demo  # until Ctrl-C\nhello"))
        assert len(reader.terminals) == 1
        reader.leaves_all()
        assert "stop:" in (reader.scratch / "0.log").read_text()


def test_command_in_another_terminal_has_a_java_of_its_own(tmp_path: Path) -> None:
    with Reader.sits_down("page.md", tmp_path) as reader:
        reader.types(console("$ export PYSPARK_GATEWAY_PORT=1"))
        reader.types(console("$ echo java ${PYSPARK_GATEWAY_PORT-none}\njava 1"))
        lasting = "echo java ${PYSPARK_GATEWAY_PORT-none}; sleep 60  # in another terminal"
        reader.types(console(f"$ {lasting}\njava none"))
