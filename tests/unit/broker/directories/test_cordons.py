"""Cordons are set at the broker whose directories they are, which knows them (KIP-1066)."""

from typing import Any

from scriba.errors import ErrorCode
from scriba.wire.messages import configs
from scriba.wire.messages.admin import DescribeLogDirsRequest, DescribeLogDirsResponse
from tests.unit.broker.brokers import Brokers, play

CORDONS = "cordoned.log.dirs"
SET, DELETE, APPEND = range(3)
DIRS: dict[str, Any] = {"log_dirs": "/data/one,/data/two", "metadata_log_dir": "/data/one"}


async def change(
    brokers: Brokers, value: str | None, at: int = 2, of: str = "2", operation: int = SET
) -> tuple[ErrorCode, str]:
    peer = await brokers.dial(at)
    wanted = configs.IncrementalAlterConfigsRequestAlterableConfig(
        name=CORDONS, config_operation=operation, value=value
    )
    resource = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=4, resource_name=of, configs=[wanted]
    )
    answer = await peer.call(
        configs.IncrementalAlterConfigsRequest(resources=[resource]),
        1,
        configs.IncrementalAlterConfigsResponse,
    )
    peer.close()
    (told,) = answer.responses
    return ErrorCode(told.error_code), told.error_message or ""


async def cordoned(brokers: Brokers) -> list[str]:
    peer = await brokers.dial(2)
    answer = await peer.call(DescribeLogDirsRequest(topics=None), 5, DescribeLogDirsResponse)
    peer.close()
    return [each.log_dir for each in answer.results if each.is_cordoned]


def test_a_cordon_counts_at_once_and_one_of_nothing_is_refused() -> None:
    async def script(brokers: Brokers) -> None:
        node = brokers.nodes[2]
        for wrong in ("/data/three", "/data/one,/data/three", "*,/data/one"):
            code, text = await change(brokers, wrong)
            assert code is ErrorCode.INVALID_REQUEST
            assert text.startswith(f"{CORDONS}=")
        assert await cordoned(brokers) == []
        assert (await change(brokers, "/data/two"))[0] is ErrorCode.NONE
        await brokers.until(lambda: node.settings.cordoned_log_dirs == ("/data/two",))
        assert await cordoned(brokers) == ["/data/two"]
        code, _ = await change(brokers, "/data/three", operation=APPEND)
        assert code is ErrorCode.INVALID_REQUEST
        assert (await change(brokers, "/data/one", operation=APPEND))[0] is ErrorCode.NONE
        await brokers.until(lambda: len(node.settings.cordoned_log_dirs) == 2)
        known = brokers.nodes[1].image.brokers
        await brokers.until(lambda: not known[2].takes_new)
        assert (await change(brokers, None, operation=DELETE))[0] is ErrorCode.NONE
        await brokers.until(lambda: not node.settings.cordoned_log_dirs)
        assert await cordoned(brokers) == []
        await brokers.until(lambda: known[2].takes_new)

    play(script, count=2, **DIRS)


def test_only_the_broker_itself_knows_its_directories() -> None:
    async def script(brokers: Brokers) -> None:
        code, text = await change(brokers, "/data/two", at=1)
        assert code is ErrorCode.INVALID_REQUEST
        assert text == "cordoned.log.dirs of broker 2 is set at that broker itself"
        assert (await change(brokers, None, at=1, operation=DELETE))[0] is ErrorCode.NONE

    play(script, count=2, **DIRS)
