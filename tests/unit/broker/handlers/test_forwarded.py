"""What a broker passes on to the controller is answered as the controller would: in any version."""

import pytest

from scriba.broker.handlers.controllers import FORWARDED
from scriba.testing.sim.world.peer import Peer
from scriba.wire.apis import API, ApiKey
from tests.unit.broker.brokers import PORT, Brokers, play
from tests.unit.broker.every_request import EVERY_VERSION, EXPECTED, TOPIC, error_codes, request_for

PASSED_ON = [(key, version) for key, version in EVERY_VERSION if key in FORWARDED]


@pytest.mark.parametrize(("key", "version"), PASSED_ON)
def test_a_forwarded_request_is_answered_in_its_own_version(key: int, version: int) -> None:
    async def script(brokers: Brokers) -> None:
        await brokers.create(TOPIC, [1])
        topic_id = brokers.nodes[1].image.topics_by_name[TOPIC].id
        client = await Peer.connect(brokers.client.net, "b2", PORT)
        request = request_for(key, version, topic_id)
        answer = await client.send(request, version, API[key].response)
        expected = EXPECTED.get((ApiKey(key), version), EXPECTED.get((ApiKey(key), None), 0))
        assert set(error_codes(answer)) - {0} == {expected} - {0}

    play(script, 2)
