"""`scriba profile`: named clusters, and which of them commands talk to."""

import argparse
import os
from typing import Any

from scriba.cli.output import note, print_json, print_names, print_table
from scriba.cli.problems import CommandError, Misuse
from scriba.cli.profiles import store as profiles
from scriba.cli.profiles.store import NAME, Profile, Profiles


def add(options: argparse.Namespace) -> int:
    from scriba.cli.session import check_everywhere

    if not NAME.fullmatch(options.name):
        raise Misuse(
            f"{options.name!r} is no name for a profile",
            "use letters, digits, dots, dashes and underscores, at most 64",
        )
    path = profiles.where()
    book = profiles.load(path)
    if options.name in book.profiles and not options.replace:
        raise CommandError(f"there is a profile {options.name}", "--replace writes it anew")
    settings = dict(options.properties)
    check_everywhere({"bootstrap.servers": options.bootstrap} | settings)
    book.profiles[options.name] = Profile(options.bootstrap, settings)
    if options.use:
        book = book._replace(current=options.name)
    profiles.save(book, path)
    if options.json:
        print_json(_document(options.name, book))
    else:
        print(f"{options.name} is {options.bootstrap}" + (", in use" if options.use else ""))
        if book.current != options.name:
            note(f"`scriba profile use {options.name}` has commands go there from now on")
    return 0


def list_all(options: argparse.Namespace) -> int:
    book = profiles.load(profiles.where())
    documents = [_document(name, book) for name in sorted(book.profiles)]
    if options.names:
        print_names(sorted(book.profiles), options.json)
    elif options.json:
        print_json(documents)
    elif documents:
        rows = [
            ("*" if d["current"] else " ", d["name"], d["bootstrap"], _settings(d["settings"]))
            for d in documents
        ]
        print_table(["", "PROFILE", "BOOTSTRAP", "SETTINGS"], rows)
    else:
        note("there are no profiles; `scriba profile add NAME --bootstrap HOST:PORT` makes one")
    return 0


def use(options: argparse.Namespace) -> int:
    if (options.name is None) == (not options.none):
        raise Misuse("say which profile to use", "give a name, or --none for no profile; not both")
    path = profiles.where()
    book = profiles.load(path)
    if options.name is not None:
        book.find(options.name)
    profiles.save(book._replace(current=options.name), path)
    if options.json:
        print_json({"current": options.name})
    elif options.name is None:
        print("no profile is in use")
    else:
        print(f"{options.name} is in use: {book.profiles[options.name].bootstrap}")
    for variable in (profiles.VARIABLE, "SCRIBA_BOOTSTRAP"):
        if os.environ.get(variable):
            note(f"{variable} is set and comes before it")
    return 0


def show(options: argparse.Namespace) -> int:
    path = profiles.where()
    book = profiles.load(path)
    name = options.name or os.environ.get(profiles.VARIABLE) or book.current
    if name is None:
        raise CommandError("no profile is in use", "name one; `scriba profile list` has them")
    book.find(name)
    document = _document(name, book)
    if options.json:
        print_json(document | {"file": str(path)})
        return 0
    print(f"{name}{', in use' if document['current'] else ''}")
    print(f"  bootstrap: {document['bootstrap']}")
    for key, value in document["settings"].items():
        print(f"  {key}={value}")
    print(f"  from {path}")
    return 0


def remove(options: argparse.Namespace) -> int:
    path = profiles.where()
    book = profiles.load(path)
    for name in options.names:
        book.find(name)
    names = list(dict.fromkeys(options.names))
    for name in names:
        del book.profiles[name]
    current = None if book.current in names else book.current
    profiles.save(book._replace(current=current), path)
    if options.json:
        print_json({"removed": names})
    else:
        for name in names:
            print(f"removed {name}")
    return 0


def _document(name: str, book: Profiles) -> dict[str, Any]:
    profile = book.profiles[name]
    return {
        "name": name,
        "bootstrap": profile.bootstrap,
        "settings": profile.settings,
        "current": name == book.current,
    }


def _settings(settings: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items())
