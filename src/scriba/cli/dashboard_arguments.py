"""The words of `scriba shop dashboard`."""

from scriba.cli.words import Commands, command, connects, port, positive

DASHBOARD_PORT = 8080


def dashboard(commands: Commands) -> None:
    made = command(
        commands,
        "dashboard",
        "scriba.cli.shop_dashboard:run",
        "serve a live page of the shop's figures",
        "Serves a web page that shows the shop's figures as they come: sales, top products, "
        "funnel, sessions, what was left out, and how the pipeline does. Runs until Ctrl-C.",
    )
    made.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    made.add_argument(
        "--port",
        type=port,
        default=DASHBOARD_PORT,
        metavar="N",
        help=f"port to listen on (default: {DASHBOARD_PORT}; 0: any free one)",
    )
    made.add_argument(
        "--stale-after",
        type=positive,
        default=15.0,
        metavar="SECONDS",
        help="when figures without news count as stale (default: 15)",
    )
    made.add_argument(
        "--currency", default="EUR", metavar="CODE", help="of the amounts (default: EUR)"
    )
    made.add_argument(
        "--prefix", default="", metavar="TEXT", help="what the names of the topics begin with"
    )
    connects(made)
