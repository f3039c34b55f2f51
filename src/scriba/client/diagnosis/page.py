"""The page of `scriba topic why`, from what was explained."""

from collections.abc import Sequence
from typing import Any, Final

from scriba.client.diagnosis.explain import OFFLINE, SILENT, STATES, WAITING, is_well
from scriba.client.diagnosis.times import ago, at
from scriba.text import table

WHOLE: Final = 5
"""Partitions of a topic that get a page each; of others there is one line."""


def pages(documents: Sequence[dict[str, Any]], now_ms: int) -> str:
    """Those that are worst off first, where there are too many for a page each."""
    if len(documents) <= WHOLE:
        return "\n\n".join(page(each, now_ms) for each in documents)
    worst = sorted(documents, key=lambda each: STATES.index(each["state"]), reverse=True)
    rest = sorted(worst[WHOLE:], key=lambda each: int(each["partition"]))
    told = [page(each, now_ms) for each in worst[:WHOLE]]
    return "\n\n".join([*told, "\n".join(_title(each, now_ms) for each in rest)])


def _title(document: dict[str, Any], now_ms: int) -> str:
    since = document["since_ms"]
    lasting = f" since {at(since)} ({ago(now_ms - since)})" if since is not None else ""
    name = f"{document['topic']}-{document['partition']}"
    return f"{name} is {document['state']}{lasting}: {document['means']}"


def page(document: dict[str, Any], now_ms: int) -> str:
    lines = [
        _title(document, now_ms),
        "",
        *table(
            ["REPLICA", "BROKER", "ROLE", "START", "END", "COMMITTED"],
            (
                (
                    each["broker"],
                    each["broker_state"],
                    each["role"] if each["lag"] is None else f"{each['role']} (-{each['lag']:,})",
                    each["start_offset"],
                    each["end_offset"],
                    each["high_watermark"],
                )
                for each in document["replicas"]
            ),
        ),
    ]
    if document["silent"]:
        lines += [
            "",
            *(
                f"broker {each['broker']} does not tell: {_had(each['had'])}"
                for each in document["silent"]
            ),
        ]
    lines += _move(document["move"])
    if document["log_dirs"]:
        lines += ["", "log directories:", *(f"  {each['why']}" for each in document["log_dirs"])]
    if not document["controlled"]:
        lines += ["", "no active controller answers: nobody is elected, and nobody let in sync"]
    if document["awaited"]:
        waits = document["state"] in (OFFLINE, SILENT, WAITING)
        what = "waits for" if waits else "not in sync"
        lines += ["", f"{what}:", *(f"  {each['why']}" for each in document["awaited"])]
    if document["choices"]:
        lines += ["", "what can be done:"]
        for each in document["choices"]:
            lines.append(f"  {each['choice']}; loses {each['loses']}")
            if each["command"]:
                lines.append(f"    {each['command']}")
    told = [
        f"  {at(each['time_ms'])}  node {each['node']}  {each['kind']}: "
        f"{each['about']}: {each['text']}"
        for each in document["events"]
    ]
    if not is_well(document):
        told += [
            f"  no events of node {each['node']}: {each['why']}" for each in document["unheard"]
        ]
    if told:
        lines += ["", "what the nodes told:", *told]
    return "\n".join(lines)


def _had(had: str | None) -> str:
    return "nobody knows what it had" if had is None else f"it had {had}"


def _move(move: dict[str, Any] | None) -> list[str]:
    if move is None:
        return []
    target = ",".join(map(str, move["to"]))
    leaving = ",".join(map(str, move["removing"]))
    what = f"is being moved to {target}" + (f", away from {leaving}" if leaving else "")
    copies = [f"  {each['why']}" for each in move["copies"]]
    return ["", f"{what}:" if copies else what, *copies]
