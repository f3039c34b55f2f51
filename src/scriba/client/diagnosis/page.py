"""The page of `scriba topic why`, from what was explained."""

from typing import Any

from scriba.client.diagnosis.explain import is_well
from scriba.client.diagnosis.times import ago, at
from scriba.text import table


def page(document: dict[str, Any], now_ms: int) -> str:
    since = document["since_ms"]
    lasting = f" since {at(since)} ({ago(now_ms - since)})" if since is not None else ""
    lines = [
        f"{document['topic']}-{document['partition']} is {document['state']}{lasting}: "
        f"{document['means']}",
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
                f"broker {each['broker']} does not tell: it had {each['had']}"
                for each in document["silent"]
            ),
        ]
    lines += _move(document["move"])
    if document["log_dirs"]:
        lines += ["", "log directories:", *(f"  {each['why']}" for each in document["log_dirs"])]
    if document["awaited"]:
        what = "waits for" if document["leader"] is None else "not in sync"
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


def _move(move: dict[str, Any] | None) -> list[str]:
    if move is None:
        return []
    target = ",".join(map(str, move["to"]))
    leaving = ",".join(map(str, move["removing"]))
    what = f"is being moved to {target}" + (f", away from {leaving}" if leaving else "")
    copies = [f"  {each['why']}" for each in move["copies"]]
    return ["", f"{what}:" if copies else what, *copies]
