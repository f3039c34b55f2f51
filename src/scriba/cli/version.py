"""`scriba version`: what runs here."""

import argparse
import platform

from scriba import __version__
from scriba.cli.output import print_json


def run(options: argparse.Namespace) -> int:
    if options.json:
        print_json(
            {
                "version": __version__,
                "mode": mode(),
                "python": platform.python_version(),
                "platform": platform.platform(),
            }
        )
    else:
        print(line())
    return 0


def line() -> str:
    return f"scriba {__version__} ({mode()}), Python {platform.python_version()}"


def mode() -> str:
    """Who works on single records, decided where that is decided for clients and broker."""
    from scriba.native import implementation

    return "native" if implementation.chosen.native else "pure Python"


def without_extension() -> list[str]:
    """A line where single records are handled in Python: why, what it costs, what to do. The build
    says so too, but pip shows nothing of a build that went well."""
    from scriba.native import implementation

    unused = implementation.UNUSED
    if unused is None:
        return []
    cost = "records are handled in Python, several times slower"
    return [f"native extension {unused.why}: {cost}; {unused.fix}"]
