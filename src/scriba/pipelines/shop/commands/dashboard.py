"""`scriba shop dashboard`: the live page of a shop."""

import argparse

from scriba.cli.problems import CommandError
from scriba.cli.session import client_settings, run_session

EXTRA = "pip install 'scriba[console]'"


def run(options: argparse.Namespace) -> int:
    try:
        from scriba.pipelines.shop.dashboard import server
        from scriba.pipelines.shop.dashboard.follower import Follower
    except ModuleNotFoundError as missing:
        raise CommandError(f"the page needs {missing.name}", f"bring it with {EXTRA}") from missing
    from scriba.pipelines.shop.topics import Names

    try:
        bound = server.listen(options.host, options.port)
    except OSError as taken:
        told = f"{options.host}:{options.port}: {taken.strerror}"
        raise CommandError(told, "name another address with --host and --port") from taken
    host, port = bound.getsockname()[:2]
    print(f"dashboard on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)

    async def work() -> int:
        follower = Follower(client_settings(options), Names(options.prefix))
        page = server.PageSettings(options.currency, options.stale_after, options.bootstrap)
        await server.serve(server.make_app(follower, page), bound)
        return 0

    return run_session(options, work())
