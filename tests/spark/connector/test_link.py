"""Links end with their process, however it ends, and nothing is said about it."""

import subprocess
import sys

import pytest

from tests.spark.desk import Topics

PROGRAM = """
import asyncio, contextlib, os, sys, threading

from scriba.client.settings import ConsumerSettings
from scriba.spark.link import Link, link, own_link

client = {"bootstrap.servers": sys.argv[1]}


class Owner:
    pass


async def ready(link):
    await link.cluster.ready(60_000)


def used(link):
    link.run(ready(link))
    return link


used(Link(ConsumerSettings.build(client, {})))
shared = used(link(client, ConsumerSettings))
owner = Owner()
mine = used(own_link(client, ConsumerSettings, owner))
assert own_link(client, ConsumerSettings, Owner()) is not mine
del owner
assert own_link(client, ConsumerSettings, Owner()) is mine

child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    used(shared)  # as before
else:
    assert used(link(client, ConsumerSettings)) is not shared
    sys.exit(0)

busy = threading.Event()


async def long():
    busy.set()
    await asyncio.Event().wait()


def waiting():
    with contextlib.suppress(asyncio.CancelledError):
        shared.run(long())


if sys.argv[2] == "busy":
    threading.Thread(target=waiting, daemon=True).start()
    busy.wait()
elif sys.argv[2] == "failed":
    sys.exit("failed")
"""


@pytest.mark.parametrize(("how", "told"), [("well", ""), ("failed", "failed\n"), ("busy", "")])
def test_no_task_is_left_behind(topics: Topics, how: str, told: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, topics.broker.bootstrap, how],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert (done.stderr, done.returncode) == (told, 1 if told else 0)
