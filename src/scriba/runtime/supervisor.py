"""Tells a supervisor how a node is, where one listens (systemd's `Type=notify`)."""

import os
import socket

READY = "READY=1"
STOPPING = "STOPPING=1"


def tell(state: str) -> None:
    """One datagram to NOTIFY_SOCKET; without it, or with nobody behind it, nothing."""
    place = os.environ.get("NOTIFY_SOCKET", "")
    if place[:1] not in ("/", "@"):
        return
    address = "\0" + place[1:] if place.startswith("@") else place
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(state.encode(), address)
    except OSError:
        pass  # a node serves whether anybody asks for it or not
