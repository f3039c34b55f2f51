"""The corpus: inputs that took new branches when they were found, and all that once failed.

One file for each target, one input on each line, in hexadecimal; a name before it says what failed.
"""

from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")


def targets() -> list[str]:
    return sorted(path.stem for path in CORPUS.glob("*.txt"))


def inputs(target: str) -> dict[str, bytes]:
    """By name, or by number where they have none."""
    found: dict[str, bytes] = {}
    for number, line in enumerate((CORPUS / f"{target}.txt").read_text().splitlines(), 1):
        name, _, digits = line.rpartition(" ")
        found[name or str(number)] = bytes.fromhex(digits)
    return found


def unpack(target: str, folder: Path) -> None:
    """Into files, as libFuzzer wants them."""
    for name, data in inputs(target).items():
        (folder / name).write_bytes(data)


def keep(target: str, folder: Path) -> None:
    """The files of a folder, and the inputs that have a name."""
    named = {name: data for name, data in inputs(target).items() if not name.isdigit()}
    others = {path.read_bytes() for path in folder.iterdir()} - set(named.values())
    lines = [f"{name} {data.hex()}" for name, data in sorted(named.items())]
    lines += [data.hex() for data in sorted(others, key=lambda data: (len(data), data)) if data]
    (CORPUS / f"{target}.txt").write_text("".join(f"{line}\n" for line in lines))
