"""`scriba`: reads the arguments, calls the command, turns what went wrong into one line."""

import importlib
import os
import sys
from collections.abc import Sequence

INTERRUPTED = 130
PIPE_CLOSED = 141
"""What a shell makes of SIGPIPE: nobody reads what would have come."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 when all went well, 1 when it did not, 2 for wrong arguments."""
    from scriba.cli.output import Style, print_event
    from scriba.cli.parsing.arguments import parser

    keep_standard_files()
    words = list(sys.argv[1:] if arguments is None else arguments)
    Style.json = "--json" in (words[: words.index("--")] if "--" in words else words)
    try:
        check_platform()
        options = parser().parse_args(words)
        module, _, function = options.run.partition(":")
        code: int = getattr(importlib.import_module(module), function)(options)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The interpreter flushes once more on its way out; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        from scriba.cli import problems

        if isinstance(error, problems.Stopped):
            return error.exit_code
        line = problems.explain(error)
        if line is None:
            raise
        print_event(f"scriba: {line}", {"error": problems.document(error, line)})
        return problems.exit_code(error)


def keep_standard_files() -> None:
    """Whichever of the three was closed (`2>&-`) leads nowhere. Else the next socket would get its
    number, be written to by whoever complains, and end the process when libuv is to close it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the first that is free
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 # print would take stdout instead


def check_platform() -> None:
    """Refuses where the data would not be safe."""
    from scriba.cli.problems import CommandError

    if sys.platform == "win32":
        raise CommandError("Windows is not supported; run it on Linux, macOS or in WSL")
    if not __debug__:
        raise CommandError(
            "python -O switches off the checks that guard the data; start without -O and "
            "PYTHONOPTIMIZE"
        )
