"""The arguments of `scriba profile`, and where commands talk to when nothing says so."""

import argparse
import os
from collections.abc import Mapping

from scriba.cli.parsing.options import BOOTSTRAP, BOOTSTRAP_VARIABLE, Commands, command, properties


def profiles(commands: Commands) -> None:
    _add(commands)
    listing = command(
        commands,
        "list",
        "scriba.cli.profiles.profile:list_all",
        "list profiles",
        "Lists profiles; the one in use has a star.",
    )
    listing.add_argument("--names", action="store_true", help="names alone, one a line")
    _json(listing)

    use = command(
        commands,
        "use",
        "scriba.cli.profiles.profile:use",
        "have commands talk to this cluster",
        "Has commands talk to this cluster from now on, unless something else is named.",
    )
    use.add_argument("name", nargs="?", metavar="NAME")
    use.add_argument("--none", action="store_true", help="use no profile")
    _json(use)

    show = command(
        commands,
        "show",
        "scriba.cli.profiles.profile:show",
        "show a profile",
        "Shows a profile with its settings.",
    )
    show.add_argument("name", nargs="?", metavar="NAME", help="the one in use when none is named")
    _json(show)

    remove = command(
        commands,
        "remove",
        "scriba.cli.profiles.profile:remove",
        "remove profiles",
        "Removes profiles. Clusters notice nothing of it.",
    )
    remove.add_argument("names", nargs="+", metavar="NAME")
    _json(remove)


def _add(commands: Commands) -> None:
    add = command(
        commands,
        "add",
        "scriba.cli.profiles.profile:add",
        "name a cluster",
        "Keeps the address of a cluster, and settings for clients there, under a name.",
    )
    add.add_argument("name", metavar="NAME")
    add.add_argument(
        "-b", "--bootstrap", required=True, metavar="HOST:PORT", help="one broker or more"
    )
    properties(add, "a setting for the clients that know it; may be repeated")
    add.add_argument("--use", action="store_true", help="have commands go there from now on")
    add.add_argument("--replace", action="store_true", help="write over one of that name")
    _json(add)


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="write JSON")


def settle(options: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> None:
    """Where a command talks to, and by which settings of a profile.

    The address is that of --bootstrap, else of --profile, else of the variables, the address before
    the profile, else of the profile in use, else the default. The profile in use counts only where
    nothing names another place: its settings belong to its cluster.
    """
    options.profile_settings = {}
    address = options.bootstrap or ""
    named = options.profile or environment.get("SCRIBA_PROFILE", "")
    if not options.profile:
        address = address or environment.get(BOOTSTRAP_VARIABLE, "")
    if named or not address:
        _take_profile(options, named, environment)
        address = address or options.profile_address
    options.bootstrap = address or BOOTSTRAP


def _take_profile(options: argparse.Namespace, named: str, environment: Mapping[str, str]) -> None:
    from scriba.cli.profiles import store

    options.profile_address = ""
    path = store.where(environment)
    if not named and not path.exists():
        return
    book = store.load(path)
    name = named or book.current
    if name is not None:
        found = book.find(name, "" if options.profile or not named else store.VARIABLE)
        options.profile_settings = found.settings
        options.profile_address = found.bootstrap or ""
