"""For people who test programs that use Kafka: a broker of their own, in a moment.

    with scriba.testing.broker() as broker:
        program(broker.bootstrap_servers)
        assert [r.value for r in broker.records("orders")] == [b"one"]

The fixtures of the pytest plugin, `scriba_broker` and others, are made of it. All of it is told in
docs/testing.md. `history` and `sim` are for Scriba's own tests: what clients saw, checked, and the
simulator of whole nodes.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scriba.testing.embedded import Broker, Clock
    from scriba.testing.embedded import Broker as broker
    from scriba.testing.model import Group, Record, Transaction

__all__ = ["Broker", "Clock", "Group", "Record", "Transaction", "broker"]


def __getattr__(name: str) -> Any:
    # Loaded when used: pytest imports this package in every run, also of those who do not.
    if name in ("Broker", "Clock", "broker"):
        from scriba.testing import embedded

        return embedded.Clock if name == "Clock" else embedded.Broker
    if name in __all__:
        from scriba.testing import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
