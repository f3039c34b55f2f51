"""What a group's coordinator has stored changes in replay alone, whoever commits, and however."""

import ast
from pathlib import Path

import scriba

PACKAGE = Path(scriba.__file__).parent
CHANGES = {"put_offset", "put_pending", "drop_offset", "end_txn"}
"""What changes the offsets of a `Store`."""


class Writers(ast.NodeVisitor):
    """Functions that change committed offsets, or what is stored of a group."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._within: list[str] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._within.append(node.name)
        self.generic_visit(node)
        self._within.pop()

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            self.found.add(self._within[-1])
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Attribute) and target.attr == "stored":
                self.found.add(self._within[-1])
        self.generic_visit(node)


def writers_in(path: Path) -> set[str]:
    visitor = Writers()
    visitor.visit(ast.parse(path.read_text()))
    return visitor.found


def test_only_functions_of_replay_change_what_is_stored() -> None:
    store = PACKAGE / "groups" / "store.py"
    rooms = [*(PACKAGE / "groups").rglob("*.py"), *(PACKAGE / "broker" / "fastpath").rglob("*.py")]
    found = {name for path in rooms if path != store for name in writers_in(path)}
    made = {"__init__", "read"}  # a group that begins, or is read back by a replay
    assert {name for name in found - made if not name.startswith("replay")} == set()
    assert {"replay_offset", "replay_repeat", "replay_marker", "replay_group"} <= found
