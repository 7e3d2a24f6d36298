"""The tutorial tells what its script does: the same story, the same pictures."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/tutorial.md").read_text()


def _run(*arguments: str) -> str:
    command = [sys.executable, "examples/grow_a_tree.py", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_the_story_is_the_scripts() -> None:
    told = re.findall(r"^```\n( 1 .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert told == [_run()]
    for word in ("hit", "late", "unknown"):
        assert f"| {word}\n" in told[0]


def test_the_pictures_are_the_scripts(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    _run("--pictures", str(tmp_path))
    shown = set(re.findall(r"\(pictures/(tree-\d+\.svg)\)", PAGE))
    assert shown == {file.name for file in tmp_path.glob("*.svg")}
    for name in shown:
        assert _labels(tmp_path / name) == _labels(ROOT / "docs/pictures" / name)


def _labels(file: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)</text>", file.read_text())
