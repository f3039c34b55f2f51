"""What `scriba cluster describe` shows, when there is nobody who leads the metadata quorum."""

import argparse

from scriba.cli.cluster.describe import gathered, page
from scriba.client import Admin
from tests.unit.broker.brokers import PORT, Brokers, play


def test_brokers_are_shown_when_the_only_controller_is_gone() -> None:
    async def script(brokers: Brokers) -> None:
        options = argparse.Namespace(timeout=10.0)
        async with Admin(
            bootstrap_servers=f"b2:{PORT}", default_api_timeout_ms=10_000, _ports=brokers.client
        ) as admin:
            well = await gathered(admin, options)
            assert well["quorum"]["leader"] == well["controller"] == 1
            brokers.kill(1)
            sick = await gathered(admin, options)
        assert sick["quorum"] is sick["controller"] is None
        assert {b["id"]: b["answers"] for b in sick["brokers"]} == {1: False, 2: True}
        text = "\n".join(page(sick))
        assert "controller unknown" in text
        assert "quorum: no leader answers" in text

    play(script, 2)
