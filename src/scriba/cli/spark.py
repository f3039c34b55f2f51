"""`scriba spark doctor`: whether pipelines can run here, and what to fix."""

import argparse

from scriba.cli.output import print_json
from scriba.cli.session import open_admin, run_session
from scriba.client import Admin, ClientError
from scriba.spark.doctor import Finding, examine

TRANSACTIONS = "transaction.version"


def doctor(options: argparse.Namespace) -> int:
    """0 when pipelines can run, 1 when something has to be fixed first."""
    findings = [*examine(options.master, options.connector == "official", options.run_session)]
    found: list[Finding] = []

    async def ask() -> int:
        async with open_admin(options) as admin:
            found.extend(await check_cluster(admin, options.bootstrap))
        return 0

    run_session(options, ask())
    findings += found
    if options.json:
        print_json(
            [
                {"subject": f.subject, "found": f.found, "ok": f.well, "fix": f.fix or None}
                for f in findings
            ]
        )
    else:
        for finding in findings:
            print(told(finding))
    return 0 if all(f.well or f.optional for f in findings) else 1


def told(finding: Finding) -> str:
    mark = "ok  " if finding.well else "note" if finding.optional else "FIX "
    line = f"{mark}  {finding.subject:<12} {finding.found}"
    return line if finding.well else f"{line}\n      {'':<12} -> {finding.fix}"


async def check_cluster(admin: Admin, address: str) -> list[Finding]:
    """Whether a broker answers, and whether it can do what the sink needs."""
    try:
        cluster = await admin.describe_cluster()
        features = await admin.describe_features()
    except (TimeoutError, ClientError) as failure:
        fix = "start a node with `scriba up`, or name a broker with --bootstrap"
        return [Finding("cluster", f"{address}: {failure}", fix)]
    count = len(cluster.nodes)
    findings = [Finding("cluster", f"{address}: {count} broker{'' if count == 1 else 's'}")]
    level = features[TRANSACTIONS].finalized if TRANSACTIONS in features else None
    if level is None:
        fix = "the exactly-once sink needs them: use a broker that serves transactions"
        findings.append(Finding("transactions", "not in force here", fix, optional=True))
    else:
        findings.append(Finding("transactions", f"{TRANSACTIONS} {level}"))
    return findings
