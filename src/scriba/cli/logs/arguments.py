"""The arguments of `scriba log retention` and `scriba log repair`."""

from scriba.cli.parsing.options import Commands, asks, at_least, command


def repair(commands: Commands) -> None:
    made = command(
        commands,
        "repair",
        "scriba.cli.logs.repair:run",
        "keep of damaged partitions what can be kept",
        "Looks through the partitions of a stopped node and tells what is damaged: what can be "
        "mended, what has to be dropped, what stays. Nothing is changed without --yes. The exit "
        "code is 1 when there is damage that was not repaired.",
    )
    made.add_argument(
        "paths", nargs="+", metavar="PATH", help="a partition's directory, or a log directory"
    )
    made.add_argument(
        "--yes",
        action="store_true",
        help="do it; the segments as they were stay beside the new ones",
    )
    made.add_argument("--json", action="store_true", help="write JSON")


def retention(commands: Commands) -> None:
    for name, summary, description in (
        (
            "status",
            "show which nodes do not delete by age, and why",
            "Shows whether nodes delete what is old. A node that starts with a clock more than a "
            "day ahead of all that it had written, or whose clock jumps, deletes nothing for its "
            "age until a day has passed.",
        ),
        (
            "resume",
            "have nodes delete by age again, once their clock is known to be right",
            "Has nodes delete what is old again. Look at the clock of the machine first: what a "
            "clock makes old that is wrong is gone for good.",
        ),
    ):
        made = command(commands, name, f"scriba.cli.logs.retention:{name}", summary, description)
        made.add_argument(
            "--node", type=at_least(int, 0), metavar="ID", help="this node only (default: all)"
        )
        asks(made)
