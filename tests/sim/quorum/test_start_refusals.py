"""Nodes that must not start where they are, and what they say: one line with the fix."""

import asyncio

import pytest

from scriba.config import StartError
from scriba.events import EventKind
from scriba.wire.messages.stored import FeatureLevelRecord
from tests.sim.quorum.nodes import PORT, SimQuorum, play
from tests.sim.quorum.voter_requests import SERVERS, new_controller

CONTROLLER = {"process_roles": "controller"}
BROKER = {"process_roles": "broker", "listeners": "PLAINTEXT://n4:9092"}


async def refusal(quorum: SimQuorum, at: int) -> str:
    """Why the node that is to start there does not."""
    node = quorum.nodes[at]
    node.boot()
    await asyncio.wait([node.process.task], timeout=120)
    node.node = None
    assert node.process.task.done(), "it neither starts nor ends"
    failure = node.process.task.exception()
    assert isinstance(failure, StartError)
    return str(failure)


async def other_cluster(quorum: SimQuorum) -> str:
    """All nodes end, and the three voters found another cluster on new disks; its id."""
    for at in list(quorum.alive):
        quorum.kill(at)
    for at in quorum.ids:
        quorum.replace_disk(at)
    await quorum.start()
    await quorum.leader()
    return quorum.node(1).cluster_id


# ---- disks of another cluster ----


@pytest.mark.parametrize("role", [CONTROLLER, BROKER], ids=["controller", "broker"])
def test_used_disk_of_another_cluster_is_refused_at_the_start(role: dict[str, str]) -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        await quorum.leader()
        before = quorum.node(1).cluster_id
        new_controller(quorum, 4, **role)
        await quorum.start(4)
        await quorum.same_image()
        now = await other_cluster(quorum)
        assert await refusal(quorum, 4) == (
            f"the log directories belong to cluster {before}, the controller at n1:{PORT} to "
            f"{now}: choose other log.dirs, or name the right controllers"
        )

    play(story)


def test_one_wrong_address_among_right_ones_does_not_keep_a_node_from_its_cluster() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        await quorum.leader()
        new_controller(quorum, 4, servers=f"n9:{PORT},{SERVERS}")
        await quorum.start(4)
        await quorum.same_image()
        quorum.kill(4)
        quorum.add(9, controller_quorum_voters=f"9@n9:{PORT}")
        await quorum.start(9)
        assert quorum.node(9).cluster_id != quorum.node(1).cluster_id
        await quorum.start(4)
        assert quorum.node(4).cluster_id == quorum.node(1).cluster_id

    play(story)


def test_silent_controllers_do_not_hold_up_a_start() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        await quorum.leader()
        await quorum.same_image()
        quorum.kill(3)
        for other in (1, 2):
            quorum.sim.network.cut("n3", f"n{other}")
        began = asyncio.get_running_loop().time()
        await quorum.start(3)
        assert asyncio.get_running_loop().time() - began < 0.5, "no time-out of a request passed"
        quorum.sim.network.heal()
        await quorum.leader()
        await quorum.same_image()

    play(story)


# ---- a cluster to be founded ----


def test_two_empty_controllers_with_one_id_are_both_told() -> None:
    async def story(quorum: SimQuorum) -> None:
        for at, other in ((1, 2), (2, 1)):
            servers = f"n{other}:{PORT}"
            new_controller(quorum, at, servers=servers, node_id="5")
        quorum.nodes[1].boot()
        text = f"the controller at n1:{PORT} is node 5, too: give each its own node.id"
        assert await refusal(quorum, 2) == text
        assert not quorum.node(1).cluster_id

    play(story)


def test_address_of_another_voter_is_told_with_who_answers_there() -> None:
    async def story(quorum: SimQuorum) -> None:
        quorum.nodes[2].boot()
        quorum.nodes[3].boot()
        quorum.add(1, controller_quorum_voters=f"1@n1:{PORT},2@n3:{PORT},3@n2:{PORT}")
        assert await refusal(quorum, 1) in [
            f"the controller at n{node}:{PORT} is node {node}, controller.quorum.voters has "
            f"{wanted}: correct it there"
            for node, wanted in ((2, 3), (3, 2))
        ]

    play(story)


def test_address_of_a_listener_for_clients_is_told_as_that() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        await quorum.leader()
        new_controller(quorum, 4, **BROKER)
        await quorum.start(4)
        new_controller(quorum, 5, servers="n4:9092,n9:9093")
        quorum.nodes[5].boot()

        def waits() -> str | None:
            node = quorum.nodes[5].node
            told = node.events.since() if node is not None else []
            return next((e.text for e in told if e.kind is EventKind.QUORUM_WAITS), None)

        assert await quorum.until(waits, 60, "it says nothing") == (
            "waits for an answer of n9:9093; n4:9092 is no listener for controllers: correct "
            "controller.quorum.bootstrap.servers"
        )

    play(story)


async def first_word(quorum: SimQuorum, at: int) -> tuple[float, str]:
    """After how many seconds a node without a cluster says for whom it waits, and what."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    quorum.nodes[at].boot()

    def waits() -> str | None:
        node = quorum.nodes[at].node
        told = node.events.since() if node is not None else []
        return next((e.text for e in told if e.kind is EventKind.QUORUM_WAITS), None)

    text = await quorum.until(waits, 60, "it says nothing")
    return loop.time() - began, text


@pytest.mark.parametrize("role", [CONTROLLER, BROKER], ids=["controller", "broker"])
@pytest.mark.parametrize("trouble", ["refuse", "silent"])
def test_for_whom_a_new_node_waits_is_told_in_seconds_with_the_cause_and_the_fix(
    role: dict[str, str], trouble: str
) -> None:
    async def story(quorum: SimQuorum) -> None:
        new_controller(quorum, 4, servers=f"n1:{PORT}", **role)
        if trouble == "silent":
            quorum.sim.network.cut("n4", "n1")
        after_s, text = await first_word(quorum, 4)
        assert 3 < after_s < 6
        cause = {"refuse": "Connection refused", "silent": "no answer"}[trouble]
        assert text == (
            f"waits for an answer of n1:{PORT} ({cause}); check that the controllers run, and "
            "controller.quorum.bootstrap.servers"
        )
        node = quorum.node(4)
        await asyncio.sleep(40)  # a broker ends after a minute, and repeats what it said before
        assert node.events.counts[EventKind.QUORUM_WAITS] > 10
        if role is CONTROLLER:
            await asyncio.sleep(200)
            told = [e for e in node.events.since() if e.kind is EventKind.QUORUM_WAITS]
            assert len(told) >= 4, "it is told again"
            assert not quorum.nodes[4].process.task.done(), "a controller waits on"

    play(story)


@pytest.mark.parametrize("trouble", ["refuse", "silent"])
def test_new_broker_without_controllers_ends_when_its_time_to_register_is_over(
    trouble: str,
) -> None:
    async def story(quorum: SimQuorum) -> None:
        limit = {"initial_broker_registration_timeout_ms": "7000"}
        new_controller(quorum, 4, servers=f"n1:{PORT}", **BROKER, **limit)
        if trouble == "silent":
            quorum.sim.network.cut("n4", "n1")
        cause = {"refuse": "Connection refused", "silent": "no answer"}[trouble]
        began = asyncio.get_running_loop().time()
        assert await refusal(quorum, 4) == (
            "no controller told of a cluster within 7000 ms "
            "(initial.broker.registration.timeout.ms): waits for an answer of "
            f"n1:{PORT} ({cause}); check that the controllers run, and "
            "controller.quorum.bootstrap.servers"
        )
        assert 7 <= asyncio.get_running_loop().time() - began < 9

    play(story)


@pytest.mark.parametrize("advertised", ["", f"CONTROLLER://n1:{PORT + 1}"])
def test_controller_whose_own_entry_names_another_port_says_so(advertised: str) -> None:
    async def story(quorum: SimQuorum) -> None:
        voters = f"1@n1:{PORT + 1}"
        quorum.add(1, controller_quorum_voters=voters, advertised_listeners=advertised)
        await quorum.start(1)
        events = quorum.node(1).events.since()
        told = [e.text for e in events if e.kind is EventKind.QUORUM_ADDRESS]
        wrong = f"controller.quorum.voters has {voters}, and this controller listens on port {PORT}"
        assert told == ([] if advertised else [wrong])

    play(story)


# ---- features ----


def test_broker_that_lacks_a_feature_of_the_cluster_is_told_which() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        active = quorum.node(await quorum.leader()).metadata.active
        assert active is not None
        record = FeatureLevelRecord(name="share.version", feature_level=1)
        await active.step(lambda machine, now: [record])
        new_controller(quorum, 4, **BROKER)
        assert await refusal(quorum, 4) == (
            "the controller refused broker 4: the cluster runs share.version at level 1, this "
            "release supports 0 to 0; turn it off (kafka-features downgrade), or start a release "
            "that has it"
        )

    play(story)


# ---- ids that live ----


def second(quorum: SimQuorum, node_id: int, **given: str) -> int:
    """A node on a host of its own, with the id of another; its number here."""
    listeners = f"CONTROLLER://n7:{PORT}"
    new_controller(quorum, 7, node_id=str(node_id), listeners=listeners, **given)
    return 7


async def registered(quorum: SimQuorum) -> None:
    def all_are() -> bool | None:
        return set(quorum.node(1).image.controllers) == set(quorum.ids) or None

    await quorum.leader()
    await quorum.until(all_are, 20, "not all controllers are registered")
    await quorum.same_image()


@pytest.mark.parametrize("joins", ["true", "false"])
@pytest.mark.parametrize("node_id", [1, 2])
def test_id_of_a_controller_that_lives_is_refused_at_the_start(node_id: int, joins: str) -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        await registered(quorum)
        voters = dict(quorum.node(3).metadata.quorum.raft.voters)
        new = second(quorum, node_id, controller_quorum_auto_join_enable=joins)
        assert await refusal(quorum, new) == (
            f"controller {node_id} lives at n{node_id}:{PORT} with another directory: give this "
            "one another node.id, or stop that one first"
        )
        assert quorum.node(3).metadata.quorum.raft.voters == voters
        quorum.kill(node_id)
        await quorum.start(new)

    play(story)


@pytest.mark.parametrize("leads", [True, False], ids=["active", "voter"])
def test_broker_alone_does_not_take_the_id_of_a_controller_that_lives(leads: bool) -> None:
    """It would take what the active controller says for its own words, and follow nobody."""

    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        await registered(quorum)
        leader = await quorum.leader()
        taken = next(i for i in quorum.ids if (i == leader) is leads)
        new_controller(quorum, 4, node_id=str(taken), **BROKER)
        assert await refusal(quorum, 4) == (
            f"controller {taken} lives at n{taken}:{PORT} with another directory: give this one "
            "another node.id, or stop that one first"
        )

    play(story)


def test_id_of_a_controller_that_lives_is_refused_with_a_used_disk_too() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        await registered(quorum)
        quorum.kill(2)
        new = second(quorum, 2)
        await quorum.start(new)
        await quorum.until(
            lambda: quorum.node(new).image.end_offset == quorum.node(1).image.end_offset or None,
            20,
            "it does not follow",
        )
        quorum.kill(new)
        await quorum.start(2)
        await quorum.until(
            lambda: quorum.node(1).image.controllers[2].listeners[0].host == "n2" or None,
            20,
            "the first one is not registered again",
        )
        await quorum.same_image()
        assert "controller 2 lives at n2" in await refusal(quorum, new)

    play(story)


def test_controller_that_joins_by_itself_removes_no_voter_that_lives() -> None:
    async def story(quorum: SimQuorum) -> None:
        await quorum.start()
        await registered(quorum)
        living = quorum.node(2).metadata.quorum.raft.own
        new = second(quorum, 2, controller_quorum_auto_join_enable="true")
        quorum.sim.network.cut("n7", "n2")
        await quorum.start(new)
        events = quorum.node(new).events
        await quorum.until(
            lambda: events.counts[EventKind.QUORUM_NOT_JOINED] or None, 20, "it says nothing"
        )
        assert (
            "controller 2 is a voter with another directory" in quorum.node(new).metadata.not_joined
        )
        await asyncio.sleep(30)
        assert quorum.node(1).metadata.quorum.raft.voters[2] == living
        quorum.kill(2)
        own = quorum.node(new).metadata.quorum.raft.own
        await quorum.until(
            lambda: quorum.node(1).metadata.quorum.raft.voters.get(2) == own or None,
            30,
            "the one that died is not replaced",
        )

    play(story)
