"""What an `Admin` is given that it cannot take."""

import pytest

from scriba.client import Admin, ConfigResource, Consumer, NewTopic
from scriba.testing.sim.world.world import ProcessWorld
from tests.unit.client.groups import AT, in_a_group


def test_one_name_where_several_are_expected_is_refused_and_its_letters_are_left_alone() -> None:
    async def work(c: Consumer, world: ProcessWorld) -> None:
        async with Admin(AT, _ports=world) as admin:
            await admin.create_topics([NewTopic(name, partitions=1) for name in ("a", "b", "ab")])
            for call in (
                admin.delete_topics("ab"),
                admin.describe_topics("ab"),
                admin.describe_groups("ab"),
                admin.delete_groups("ab"),
                admin.list_groups(states="Empty"),
                admin.list_groups(types="classic"),
                admin.list_transactions(states="Ongoing"),
                admin.describe_transactions("ab"),
                admin.fence_producers("ab"),
                admin.describe_configs([ConfigResource.topic("a")], names="retention.ms"),
            ):
                with pytest.raises(TypeError, match="one name where several are expected"):
                    await call
            assert [t.name for t in await admin.list_topics()] == ["a", "ab", "b", "t"]

    in_a_group(work)


def test_states_and_types_that_groups_do_not_have_are_refused() -> None:
    async def work(c: Consumer, world: ProcessWorld) -> None:
        async with Admin(AT, _ports=world) as admin:
            with pytest.raises(ValueError, match="'Stabel' is no state of groups; there are Prep"):
                await admin.list_groups(states=["Empty", "Stabel"])
            with pytest.raises(ValueError, match="'old' is no type of groups; there are classic"):
                await admin.list_groups(types=["old"])

    in_a_group(work)


def test_a_setting_whose_value_is_no_text_is_named() -> None:
    async def work(c: Consumer, world: ProcessWorld) -> None:
        topic = ConfigResource.topic("t")
        async with Admin(AT, _ports=world) as admin:
            for alter in (admin.alter_configs, admin.replace_configs):
                with pytest.raises(TypeError, match=r"retention\.ms=5: the value .* is a str"):
                    await alter({topic: {"retention.ms": 5}})  # type: ignore[dict-item]

    in_a_group(work)
