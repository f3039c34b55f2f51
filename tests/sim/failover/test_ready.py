"""`/ready` over HTTP: whether the next node may go, for whoever restarts one after the other."""

from scriba.client import NewTopic
from scriba.testing.sim.world.world import SimWorld
from tests.sim.broker_stage import Stage
from tests.sim.readiness import SETTINGS, ready


def test_a_node_says_whether_it_may_go_and_else_what_it_would_hurt() -> None:
    stage = Stage(SimWorld(1), 3, SETTINGS)

    async def main() -> None:
        await stage.cluster.start()
        await stage.until(lambda: len(stage.image.brokers) == 3)
        await stage.admin(lambda admin: admin.create_topics([NewTopic("t", 1, 3)]))
        await stage.until(lambda: len(stage.partition().isr) == 3)
        for node in stage.cluster.ids:
            status, told = await ready(stage, node)
            assert (status, told) == ("200 OK", {"node": node, "may_restart": True, "hurts": []})
        stage.kill(5)
        await stage.until(lambda: 5 not in stage.partition().isr)
        status, told = await ready(stage, 4)
        assert status == "503 Service Unavailable"
        short = "t-0 would take no acks=all: 1 in sync, and min.insync.replicas is 2"
        assert told == {"node": 4, "may_restart": False, "hurts": [short]}
        assert (await ready(stage, 4, "/ready?node=6"))[1]["hurts"] == [short]
        assert (await ready(stage, 4, "/ready?node=5"))[0] == "200 OK"
        assert (await ready(stage, 4, "/ready?node=9"))[0] == "404 Not Found"
        assert (await ready(stage, 4, "/ready?node=x"))[0] == "400 Bad Request"
        await stage.cluster.nodes[5].start()
        status, told = await ready(stage, 5)
        assert status == "503 Service Unavailable"
        assert told["hurts"] == ["it has not come back yet: its replica of t-0 catches up"]
        await stage.until(lambda: 5 in stage.partition().isr)
        assert (await ready(stage, 4))[0] == "200 OK"
        assert (await ready(stage, 5))[0] == "200 OK"

    stage.sim.run(main())
    assert not stage.complaints


def test_a_node_that_no_controller_answers_does_not_say_yes() -> None:
    stage = Stage(SimWorld(1), 3, SETTINGS)

    async def main() -> None:
        await stage.cluster.start()
        await stage.until(lambda: len(stage.image.brokers) == 3)
        stage.kill(1)
        stage.kill(2)
        stage.kill(3)
        status, told = await ready(stage, 4)
        assert status == "503 Service Unavailable"
        assert told["hurts"] == ["nobody knows: the active controller does not answer"]

    stage.sim.run(main())
