"""The table for zsh."""

from scriba.cli.completing.table import ASK, CommandNode, Source, Value


def script(places: list[CommandNode]) -> str:
    paths = " | ".join(quoted(p.path) for p in places if p.path != "scriba")
    return "\n".join(
        [
            "#compdef scriba",
            "# zsh completion for scriba; made by `scriba completion zsh`",
            "_scriba() {",
            "    local at=scriba word",
            "    local -a told",
            "    for word in ${words[2,CURRENT-1]}; do",
            '        case "$at $word" in',
            f'        ({paths}) at="$at $word" ;;',
            "        esac",
            "    done",
            '    case "$at ${words[CURRENT-1]}" in',
            *(line for place in places for line in _values(place)),
            "    esac",
            '    case "$at" in',
            *(line for place in places for line in _after(place)),
            "    esac",
            "}",
            "# As a function of fpath it completes at once; read by a shell it registers itself.",
            "if [[ ${funcstack[1]} == _scriba ]]; then",
            '    _scriba "$@"',
            "else",
            "    compdef _scriba scriba",
            "fi",
            "",
        ]
    )


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _values(place: CommandNode) -> list[str]:
    lines = []
    for option in place.options:
        if option.value is not None:
            names = " | ".join(quoted(f"{place.path} {name}") for name in option.names)
            lines.append(f"    ({names}) {_offer(option.value)}; return ;;")
    return lines


def _after(place: CommandNode) -> list[str]:
    options = [_told(name, o.summary) for o in place.options for name in o.names]
    commands = [_told(name, summary) for name, summary in place.commands.items()]
    lines = [f"    ({quoted(place.path)})", "        if [[ $PREFIX == -* ]]; then"]
    lines.append(f"            told=({' '.join(options)}); _describe -o option told")
    lines.append("        else")
    if commands:
        lines.append(f"            told=({' '.join(commands)}); _describe command told")
    else:
        lines.append(f"            {_offer(place.value)}")
    return [*lines, "        fi ;;"]


def _told(name: str, summary: str) -> str:
    return quoted(f"{name}:{summary}" if summary else name)


def _offer(value: Value) -> str:
    match value.source:
        case Source.NOWHERE:
            return ":"
        case Source.WORDS:
            return f"compadd -- {' '.join(map(quoted, value.words))}"
        case Source.FILES:
            return "_files"
        case Source.DIRECTORIES:
            return "_files -/"
        case _:
            return f'compadd -- ${{(f)"$({ASK[value.source]} 2>/dev/null)"}}'
