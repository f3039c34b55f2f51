"""Tells the customer, in a group of its own: it gets every event too, at its own pace.

python notification_service.py localhost:9092 some-name
"""

from service import run

TEXTS = {
    "placed": "thank you for your order",
    "shipped": "your order is on its way",
    "delivered": "enjoy it",
}


def notify(order: str, event: str) -> str:
    return f"'{TEXTS[event]}'"


if __name__ == "__main__":
    run("notifications", notify)
