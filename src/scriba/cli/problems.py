"""What went wrong, told in one line: the cause, then what to do."""

from typing import Any, Final

FAILED: Final = 1
MISUSED: Final = 2
"""The exit code for wrong arguments."""


class CommandError(Exception):
    """A command that cannot be carried out."""

    def __init__(self, cause: str, fix: str = "") -> None:
        super().__init__(f"{cause}; {fix}" if fix else cause)
        self.cause = cause
        self.fix = fix


class Misuse(CommandError):
    """Arguments that each make sense, but not together."""


class Stopped(Exception):
    """A signal, by its number, ended the command."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.exit_code = 128 + number
        """What a shell makes of a program that the signal ended."""


def explain(error: Exception) -> str | None:
    """The line for an error that a person can do something about; None for a mistake of ours."""
    from scriba.client import ClientError
    from scriba.config import ConfigError, StartError

    if isinstance(error, CommandError | ClientError | ConfigError | StartError):
        told = str(error)
    elif isinstance(error, OSError) and error.strerror:
        told = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    elif (unsendable := _unsendable(error)) is not None:
        told = f"{ascii(unsendable)[:100]} is not UTF-8; give names and values in UTF-8"
    else:
        return None
    return " ".join(told.split())


def _unsendable(error: BaseException | None) -> str | None:
    """The text that could not be encoded, as an argument in another encoding cannot be: Python
    keeps its bytes as halves of characters, since it may be the name of a file."""
    while error is not None:
        if isinstance(error, UnicodeEncodeError):
            return error.object
        error = error.__cause__
    return None


def document(error: Exception, line: str) -> dict[str, Any]:
    """The same for programs: the cause, what to do about it, and the code if a broker refused."""
    told: dict[str, Any] = {"message": line, "fix": None, "code": None}
    fix = getattr(error, "fix", "")
    if fix:
        cause = getattr(error, "cause", None)
        told["message"] = cause if isinstance(cause, str) else str(error.args[0])
        told["fix"] = fix
    code = getattr(error, "code", None) or getattr(error.__cause__, "code", None)
    name = getattr(code, "name", None)
    if isinstance(name, str):
        told["code"] = name
    told["exit_code"] = exit_code(error)
    return told


def exit_code(error: Exception) -> int:
    """2 for what was typed wrong, a setting too; 1 for what could not be done."""
    from scriba.config import ConfigError

    wrong = isinstance(error, Misuse | ConfigError) or _unsendable(error) is not None
    return MISUSED if wrong else FAILED
