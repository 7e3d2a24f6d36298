"""The table of alerts in docs/metrics.md, from the rules: python -m tests.alerts_page prints it."""

import sys
from pathlib import Path

import yaml

RULES = Path(__file__).parent.parent / "deploy/kubernetes/rules.yaml"


def table() -> str:
    groups = yaml.safe_load(RULES.read_text())["spec"]["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    rows = [["alert", "fires if", "for", "do"], ["---"] * 4]
    for rule in alerts:
        said = rule["annotations"]
        section = said["runbook"].removeprefix("docs/")
        condition = " ".join(rule["expr"].split())
        rows.append([f"[{rule['alert']}]({section})", f"`{condition}`", rule.get("for", ""), said["remedy"]])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
