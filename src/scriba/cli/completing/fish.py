"""The table for fish."""

from scriba.cli.completing.table import ASK, CommandNode, Option, Source, Value


def script(places: list[CommandNode]) -> str:
    paths = " ".join(_quoted(p.path) for p in places if p.path != "scriba")
    return "\n".join(
        [
            "# fish completion for scriba; made by `scriba completion fish`",
            "function __scriba_at",
            "    set -l found scriba",
            "    for word in (commandline -opc)[2..-1]",
            '        switch "$found $word"',
            f"            case {paths}",
            '                set found "$found $word"',
            "        end",
            "    end",
            '    test "$found" = "$argv[1]"',
            "end",
            "complete -c scriba -e",
            "complete -c scriba -f",
            *(line for place in places for line in _lines(place)),
            "",
        ]
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _lines(place: CommandNode) -> list[str]:
    start = f"complete -c scriba -n {_quoted(f'__scriba_at {_quoted(place.path)}')}"
    lines = [
        f"{start} -a {_quoted(name)} -d {_quoted(summary)}"
        for name, summary in place.commands.items()
    ]
    if not place.commands and place.value.source is not Source.NOWHERE:
        lines.append(f"{start} {_offer(place.value)}")
    return [*lines, *(f"{start} {_option(option)}" for option in place.options)]


def _option(option: Option) -> str:
    names = [
        f"-l {name.removeprefix('--')}" if name.startswith("--") else f"-s {name[1:]}"
        for name in option.names
    ]
    value = []
    if option.value is not None:
        value = ["-r" if option.value.source is Source.FILES else "-x", _offer(option.value)]
    return " ".join(part for part in [*names, *value, f"-d {_quoted(option.summary)}"] if part)


def _offer(value: Value) -> str:
    match value.source:
        case Source.NOWHERE:
            return ""
        case Source.WORDS:
            return f"-a {_quoted(' '.join(value.words))}"
        case Source.FILES:
            return "-F"
        case Source.DIRECTORIES:
            return "-a '(__fish_complete_directories)'"
        case _:
            return f"-a {_quoted(f'({ASK[value.source]} 2>/dev/null)')}"
