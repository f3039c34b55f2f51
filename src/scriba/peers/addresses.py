"""Addresses of brokers as people write them."""


def parse_address(text: str) -> tuple[str, int] | None:
    """`host:port` or `[v6]:port`; None when it is neither."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        return None
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """`host:port`, or `[v6]:port`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
