"""Profiles: named clusters, each with the settings that clients need there, in a file of the user.

    current = "staging"

    [profiles.staging]
    bootstrap = "kafka-1:9092,kafka-2:9092"

    [profiles.staging.settings]
    "client.id" = "ann"

The file is `scriba/profiles.toml` under XDG_CONFIG_HOME, which is ~/.config unless it is set. Only
its owner can read it. A key that is not known is refused with the nearest match: a misspelt setting
would otherwise be one that silently does nothing.
"""

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from scriba.cli.problems import CommandError, Misuse

VARIABLE: Final = "SCRIBA_PROFILE"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)

_TOP: Final = ("current", "profiles")
_OF_A_PROFILE: Final = ("bootstrap", "settings")


class Profile(NamedTuple):
    bootstrap: str | None
    settings: dict[str, str]


class Profiles(NamedTuple):
    """All profiles, and the one in use."""

    profiles: dict[str, Profile]
    current: str | None = None

    def find(self, name: str, origin: str = "") -> Profile:
        found = self.profiles.get(name)
        if found is None:
            known = ", ".join(sorted(self.profiles)) or "none"
            said = f" ({origin})" if origin else ""
            raise Misuse(
                f"there is no profile {name}{said}; there are: {known}",
                f"`scriba profile add {name} --bootstrap HOST:PORT` makes it",
            )
        return found


def where(environment: Mapping[str, str] = os.environ) -> Path:
    configured = environment.get("XDG_CONFIG_HOME", "")
    home = Path(configured) if os.path.isabs(configured) else Path.home() / ".config"
    return home / "scriba" / "profiles.toml"


def load(path: Path) -> Profiles:
    """What the file says; without a file there are no profiles."""
    import tomllib

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Profiles({})
    except (ValueError, UnicodeDecodeError) as error:
        raise CommandError(f"{path}: is no TOML ({error})", "mend it, or remove it") from None
    return read(document, str(path))


def read(document: dict[str, Any], path: str) -> Profiles:
    _refuse_strangers(document, _TOP, path)
    profiles: dict[str, Profile] = {}
    for name, content in _table(document.get("profiles", {}), f"{path}: profiles").items():
        at = f"{path}: profile {name}"
        _refuse_strangers(_table(content, at), _OF_A_PROFILE, at)
        settings = _table(content.get("settings", {}), f"{at}: settings")
        for key, value in settings.items():
            _text(value, f"{at}: {key}")
        bootstrap = content.get("bootstrap")
        profiles[name] = Profile(
            None if bootstrap is None else _text(bootstrap, f"{at}: bootstrap"), dict(settings)
        )
    current = document.get("current")
    if current is not None and _text(current, f"{path}: current") not in profiles:
        raise CommandError(
            f"{path}: the current profile {current!r} is not there", "mend or remove the file"
        )
    return Profiles(profiles, current)


def _table(found: object, at: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise CommandError(f"{at} is no table", "mend or remove the file")
    return found


def _text(found: object, at: str) -> str:
    if not isinstance(found, str):
        raise CommandError(f"{at} is no text", "put it in quotes")
    return found


def _refuse_strangers(found: dict[str, Any], known: tuple[str, ...], at: str) -> None:
    from difflib import get_close_matches

    for key in found:
        if key not in known:
            near = get_close_matches(key, known, 1)
            advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise CommandError(f"{at} has an unknown key {key!r}", advice)


def save(book: Profiles, path: Path) -> None:
    """Replaces the file in one step; its directory is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".profiles-")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(render(book))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def render(book: Profiles) -> str:
    """The file's text."""
    lines = [] if book.current is None else [f"current = {_quoted(book.current)}"]
    for name, profile in sorted(book.profiles.items()):
        lines += ["", f"[profiles.{_quoted(name)}]"]
        if profile.bootstrap is not None:
            lines.append(f"bootstrap = {_quoted(profile.bootstrap)}")
        if profile.settings:
            lines += ["", f"[profiles.{_quoted(name)}.settings]"]
            lines += [
                f"{_quoted(key)} = {_quoted(value)}" for key, value in profile.settings.items()
            ]
    return "\n".join(lines).lstrip("\n") + "\n"


def _quoted(value: str) -> str:
    """A string of JSON is one of TOML as well, but for DEL, and escapes in pairs."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
