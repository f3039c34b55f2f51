"""Marked files: they count while the machine's memory does, and no longer."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scriba.runtime.files import marks


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file on a kernel that keeps hints with inodes, as Linux does since 4.13."""
    hints: dict[tuple[int, int], int] = {}

    def inode(fd: int) -> tuple[int, int]:
        found = os.fstat(fd)
        return found.st_dev, found.st_ino

    monkeypatch.setattr(marks, "_hint", lambda fd: hints.get(inode(fd), 0))
    monkeypatch.setattr(marks, "_set_hint", lambda fd, hint: hints.update({inode(fd): hint}))
    boot = tmp_path / "boot_id"
    boot.write_text("the first\n")
    monkeypatch.setattr(marks, "BOOT_ID", str(boot))
    monkeypatch.setattr(marks, "file_system", lambda directory: "ext4")
    return str(tmp_path / "marked")


def test_what_was_marked_is_read_back_by_another_process(path: str) -> None:
    first = marks.mark(path, b"one")
    assert marks.marked(path) == b"one"
    second = marks.mark(path, b"two")
    first.close()
    second.close()
    assert marks.marked(path) == b"two"


def test_another_boot_of_the_machine_ends_it(path: str) -> None:
    mark = marks.mark(path, b"one")
    Path(marks.BOOT_ID).write_text("the second\n")
    assert marks.marked(path) is None
    mark.close()


def test_where_the_machine_does_not_say_which_boot_it_is_nothing_is_marked(path: str) -> None:
    mark = marks.mark(path, b"one")
    os.unlink(marks.BOOT_ID)
    assert marks.marked(path) is None
    with pytest.raises(OSError, match="nobody can tell"):
        marks.mark(path, b"two")
    mark.close()


def test_a_copy_does_not_count(path: str) -> None:
    """Containers share the boot id of their machine, so that alone proves nothing."""
    mark = marks.mark(path, b"one")
    shutil.copy2(path, path + ".backup")
    assert marks.marked(path + ".backup") is None
    os.replace(path + ".backup", path)
    assert marks.marked(path) is None
    mark.close()


def test_a_revoked_mark_does_not_count_though_its_file_is_there(path: str) -> None:
    mark = marks.mark(path, b"one")
    mark.revoke()
    assert os.path.exists(path)
    assert marks.marked(path) is None
    mark.revoke()


def test_what_is_kept_by_another_machine_is_not_marked(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("nfs4", "fuse.sshfs", "9p", ""):
        monkeypatch.setattr(marks, "file_system", lambda directory, kind=kind: kind)
        with pytest.raises(OSError, match="nobody can tell"):
            marks.mark(path, b"one")
        assert not os.path.exists(path)


def test_a_mark_that_cannot_be_made_leaves_no_older_one(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(fd: int, hint: int) -> None:
        raise OSError(22, "Invalid argument")

    marks.mark(path, b"one").close()
    monkeypatch.setattr(marks, "_set_hint", unsupported)
    with pytest.raises(OSError, match="Invalid argument"):
        marks.mark(path, b"two")
    assert os.listdir(os.path.dirname(path)) == ["boot_id"]


def test_the_file_system_is_that_of_the_innermost_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
        "31 27 0:29 / /mnt/far\\040away rw,relatime shared:7 - nfs4 server:/ rw\n"
        "32 31 0:30 / /mnt/far\\040away/near rw - xfs /dev/vdb rw\n"
    )
    monkeypatch.setattr(marks, "MOUNTS", str(table))
    assert marks.file_system("/mnt") == "ext4"
    assert marks.file_system("/mnt/far away") == "nfs4"
    assert marks.file_system("/mnt/far away/data") == "nfs4"
    assert marks.file_system("/mnt/far away/near/data") == "xfs"
    monkeypatch.setattr(marks, "MOUNTS", str(tmp_path / "none"))
    assert marks.file_system("/mnt") == ""


def test_this_kernel_keeps_the_hint_or_refuses_it(tmp_path: Path) -> None:
    """Another process sees the mark while this one holds it, or there is none at all."""
    path = str(tmp_path / "marked")
    try:
        mark = marks.mark(path, b"one")
    except OSError:
        assert not os.path.exists(path)
        return
    look = "import sys; from scriba.runtime.files.marks import marked; print(marked(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", look, path], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "b'one'"
    mark.revoke()
    assert marks.marked(path) is None
