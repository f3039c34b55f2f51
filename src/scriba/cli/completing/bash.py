"""The table for bash."""

from collections.abc import Iterable

from scriba.cli.completing.table import ASK, CommandNode, Source, Value


def script(places: list[CommandNode]) -> str:
    return "\n".join(
        [
            "# bash completion for scriba; made by `scriba completion bash`",
            "_scriba() {",
            "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}",
            "    local at=scriba i",
            "    COMPREPLY=()",
            "    for ((i = 1; i < COMP_CWORD; i++)); do",
            '        case "$at ${COMP_WORDS[i]}" in',
            f"        {_any(p.path for p in places if p.path != 'scriba')})",
            '            at="$at ${COMP_WORDS[i]}" ;;',
            "        esac",
            "    done",
            '    case "$at $prev" in',
            *_values(places),
            "    esac",
            '    case "$at" in',
            *(line for place in places for line in _after(place)),
            "    esac",
            "}",
            "complete -o bashdefault -F _scriba scriba",
            "",
        ]
    )


def _any(words: Iterable[str]) -> str:
    return " | ".join(f"'{word}'" for word in words)


def _values(places: list[CommandNode]) -> list[str]:
    lines = []
    for place in places:
        for option in place.options:
            if option.value is not None:
                lines.append(f"    {_any(f'{place.path} {name}' for name in option.names)})")
                lines.append(f"        {_reply(option.value)}; return ;;")
    return lines


def _after(place: CommandNode) -> list[str]:
    names = [name for option in place.options for name in option.names]
    words = _words([*place.commands, *names])
    lines = [f"    '{place.path}')"]
    if place.value.source is Source.NOWHERE:
        return [*lines, f"        {words} ;;"]
    return [
        *lines,
        f"        if [[ $cur == -* ]]; then {words}; else {_reply(place.value)}; fi ;;",
    ]


def _reply(value: Value) -> str:
    match value.source:
        case Source.NOWHERE:
            return ":"
        case Source.WORDS:
            return _words(value.words)
        case Source.FILES:
            return 'COMPREPLY=($(compgen -f -- "$cur")); compopt -o filenames 2>/dev/null'
        case Source.DIRECTORIES:
            return 'COMPREPLY=($(compgen -d -- "$cur")); compopt -o filenames 2>/dev/null'
        case _:
            return f'COMPREPLY=($(compgen -W "$({ASK[value.source]} 2>/dev/null)" -- "$cur"))'


def _words(words: Iterable[str]) -> str:
    return f"COMPREPLY=($(compgen -W '{' '.join(words)}' -- \"$cur\"))"
