"""The table of docs/sizing.md is what `ssd plan` says today."""

import json

from typer.testing import CliRunner

from benchmarks.sizing import BATCHES, SETTINGS, offers, table
from ssd.cli.main import app
from tests.test_fleet import ROOT


def test_the_page_has_the_table() -> None:
    assert table() in (ROOT / "docs/sizing.md").read_text(), "python -m benchmarks.sizing"


def test_a_row_is_what_the_command_says() -> None:
    setting = SETTINGS[0]
    said = f"plan --hardware {setting.device} --target {setting.target} --draft {setting.draft} --json"
    command = [*said.split(), "--devices", str(setting.tensor_parallel + 1), "--batch", str(BATCHES[1])]
    found = json.loads(CliRunner().invoke(app, command).stdout)["offers"]
    told = {each["way"]: each["rate"] for each in found if each["tp"] == setting.tensor_parallel}
    assert told == {way: offer.rate for way, offer in offers(setting, BATCHES[1]).items()}
