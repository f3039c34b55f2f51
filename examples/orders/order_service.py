"""Follows every order through its life and would notice if something came out of order.

python order_service.py localhost:9092 some-name
"""

from events import LIFE
from service import run

state: dict[str, str] = {}


def follow(order: str, event: str) -> str:
    """An order that this process has not seen yet was followed by another one before."""
    before = state.get(order)
    state[order] = event
    if before is None or event == before or LIFE.index(event) == LIFE.index(before) + 1:
        return f"after {before or '...'}"
    return f"OUT OF ORDER after {before}"


if __name__ == "__main__":
    run("order-service", follow)
