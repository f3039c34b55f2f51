"""Writes a class data archive of Spark, with which a JVM starts in a third of the time.

    python tools/demo/classes.py FILE

Runs the query of the shop's figures once over a few seconds of events, with a broker of its own;
the JVM writes the classes it has loaded when it ends. Java checks the archive against its class
path and does without it when they differ, so it can always be made again or deleted.
"""

import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

SCRIBA = (sys.executable, "-m", "scriba")


@contextlib.contextmanager
def broker(folder: Path) -> Iterator[str]:
    command = (*SCRIBA, "up", "--port", "0", "--data", str(folder / "data"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = next(
                filter(None, (re.search(r"listening on (\S+)", x) for x in process.stdout))
            )
            yield found[1]
        finally:
            process.terminate()


def main() -> None:
    archive = Path(sys.argv[1]).resolve()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, broker(Path(place)) as address:
        reach = ("-b", address)
        past = ("--backfill", "20s", "--duration", "1s", "--quiet")
        subprocess.run((*SCRIBA, "shop", "generate", *reach, *past), check=True)
        java = f"-XX:+UseSerialGC -XX:ArchiveClassesAtExit={archive}"
        where = ("--checkpoints", f"{place}/checkpoints", "--to-the-end", "--only", "figures")
        option = ("--spark", f"spark.driver.extraJavaOptions={java}")
        subprocess.run((*SCRIBA, "shop", "run", *reach, *where, *option), check=True)
    if not archive.exists():
        sys.exit(f"java wrote no {archive}")


if __name__ == "__main__":
    main()
