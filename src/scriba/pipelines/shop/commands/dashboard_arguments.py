"""The arguments of `scriba shop dashboard` and `scriba demo`."""

from scriba.cli.parsing.options import Commands, at_least, command, connects, port, positive
from scriba.pipelines.commands.options import listens, prefixed

DASHBOARD_PORT = 8080


def dashboard(commands: Commands) -> None:
    made = command(
        commands,
        "dashboard",
        "scriba.pipelines.shop.commands.dashboard:run",
        "serve a live page of the shop's figures",
        "Serves a web page that shows the shop's figures as they come: sales, top products, "
        "funnel, sessions, what was left out, and how the pipeline does. Runs until Ctrl-C.",
    )
    listens(made, DASHBOARD_PORT)
    made.add_argument(
        "--stale-after",
        type=positive,
        default=15.0,
        metavar="SECONDS",
        help="when figures without news count as stale (default: 15)",
    )
    made.add_argument(
        "--currency", default="EUR", metavar="CODE", help="currency of the amounts (default: EUR)"
    )
    prefixed(made)
    connects(made)


def demo(commands: Commands) -> None:
    made = command(
        commands,
        "demo",
        "scriba.pipelines.shop.commands.demo:run",
        "start a shop in real time: broker, events, pipeline, live page",
        "Starts a broker, a stream of a shop's events, a pipeline on Spark that turns them into "
        "figures, and a page that shows these live. Ctrl-C ends all of it. What was written stays, "
        "and the next start goes on with it. Where Spark cannot run, only the broker is started.",
    )
    made.add_argument(
        "--dir",
        default="scriba-data/demo",
        metavar="DIR",
        help="folder of data, checkpoints and logs (default: scriba-data/demo)",
    )
    made.add_argument(
        "--port",
        type=port,
        default=9092,
        metavar="N",
        help="port of the broker (default: 9092; 0: any free one)",
    )
    made.add_argument(
        "--page-port",
        type=port,
        default=DASHBOARD_PORT,
        metavar="N",
        help=f"port of the page (default: {DASHBOARD_PORT}; 0: any free one)",
    )
    made.add_argument(
        "--rate",
        type=at_least(int, 1),
        default=100,
        metavar="N",
        help="events a second (default: 100)",
    )
    made.add_argument(
        "--backfill",
        default="3m",
        metavar="TIME",
        help="how much has happened before the first start (default: 3m)",
    )
