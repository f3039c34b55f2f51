"""What went wrong, told in one line: the cause, then what to do."""


class CommandError(Exception):
    """A command that cannot be carried out."""

    def __init__(self, cause: str, fix: str = "") -> None:
        super().__init__(f"{cause}; {fix}" if fix else cause)


class Misuse(CommandError):
    """Arguments that each make sense, but not together."""


def explain(error: Exception) -> str | None:
    """The line for an error that a person can do something about; None for a mistake of ours."""
    from scriba.client import ClientError
    from scriba.config import ConfigError, StartError

    if isinstance(error, CommandError | ClientError | ConfigError | StartError):
        told = str(error)
    elif isinstance(error, OSError) and error.strerror:
        told = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    else:
        return None
    return " ".join(told.split())
