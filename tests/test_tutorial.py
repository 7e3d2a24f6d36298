"""Tutorials tell what their scripts do: the same story, the same pictures, the same code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/tutorial.md").read_text()
POLICY_PAGE = (ROOT / "docs/tutorial-policy.md").read_text()


def _run(*arguments: str, script: str = "examples/grow_a_tree.py") -> str:
    command = [sys.executable, script, *arguments]
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


def test_the_code_of_the_policy_is_the_scripts_and_the_packages() -> None:
    code = (
        (ROOT / "examples/growth_policy.py").read_text(),
        (ROOT / "src/ssd/draft/tree/select.py").read_text(),
    )
    blocks = re.findall(r"^```python\n(.*?)^```$", POLICY_PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    assert [block for block in blocks if not any(block in each for each in code)] == []


def test_the_policy_does_what_its_page_shows() -> None:
    [shown] = re.findall(r"^```\n(ByValue.*?)^```$", POLICY_PAGE, re.MULTILINE | re.DOTALL)
    assert shown == _run(script="examples/growth_policy.py")
    default, discounted = shown.split("ByDiscountedValue")
    assert "bird" not in default
    assert "bird" in discounted


def test_the_code_of_the_target_is_the_examples() -> None:
    page = (ROOT / "docs/tutorial-target.md").read_text()
    code = [path.read_text() for path in ROOT.glob("examples/llamacpp/src/*.ts")]
    blocks = re.findall(r"^```ts\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 3
    assert [block for block in blocks if not any(block in each for each in code)] == []
