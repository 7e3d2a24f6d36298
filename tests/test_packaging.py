"""What a release says of itself: one name everywhere, one version, a wheel that holds the package only."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from ssd.version import DISTRIBUTION, __version__, how_to_install

ROOT = Path(__file__).parent.parent
CHECK = ROOT / ".ci/wheel_contents.py"
TEXTS = {".md", ".py", ".toml", ".yml", ".yaml", ".cff", ".html", ".txt", ".json", ""}
ANOTHER_PROJECT = re.compile(r"(?<![\w-])ssd\[[a-z]|pip install (?:-\S+ )*['\"]?ssd(?![\w\[-])")
"""The name `ssd` where pip reads it: with an extra, or after `pip install`."""


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def texts() -> list[Path]:
    kept = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if kept.returncode:
        pytest.skip("no git work tree, so nothing says which files belong to it")
    paths = (ROOT / name for name in kept.stdout.split("\0") if name)
    return [path for path in paths if path.is_file() and path.suffix in TEXTS]


def test_no_message_page_or_image_names_the_other_project() -> None:
    read = {path: path.read_text(errors="replace") for path in texts()}
    assert len(read) > 300
    assert [str(path) for path, text in read.items() if ANOTHER_PROJECT.search(text)] == []


def test_messages_name_extras_that_there_are() -> None:
    assert project()["name"] == DISTRIBUTION
    assert how_to_install("server") == "pip install 'ssd-llm[server]'"
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"how_to_install\(['\"](\w+)['\"]\)", source))
    assert {"server", "bench", "client", "otel"} <= named <= set(project()["optional-dependencies"])


def test_the_changelog_has_a_dated_section_for_this_version() -> None:
    heads = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = [head for head in heads if head != "Unreleased"]
    assert re.fullmatch(rf"{re.escape(__version__)} \(20\d\d-\d\d-\d\d\)", released[0])
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(20\d\d-\d\d-\d\d\)", head) for head in released)


def test_beside_the_other_project_ours_is_imported(tmp_path: Path) -> None:
    """That one is a module, ssd.py; ours is a folder, and Python looks for folders first."""
    (tmp_path / "ssd.py").write_text("raise SystemExit('the other project')\n")
    (tmp_path / "ssd").symlink_to(ROOT / "src/ssd")
    program = "import ssd.version; print(ssd.version.__version__)"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert run.stdout.strip() == __version__


def checked(wheel: Path) -> tuple[int, str]:
    run = subprocess.run(
        [sys.executable, str(CHECK), str(wheel)], capture_output=True, text=True, check=False
    )
    return run.returncode, run.stdout + run.stderr


def made_wheel(path: Path, *, more: str | None = None, without: str | None = None) -> Path:
    """As the builder makes it, by name: the package and its metadata."""
    about = f"ssd_llm-{__version__}.dist-info"
    names = [
        f"{about}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    ]
    names += [
        file.relative_to(ROOT / "src").as_posix()
        for file in (ROOT / "src/ssd").rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    ]
    with ZipFile(path, "w") as archive:
        for name in [*names, *([more] if more else [])]:
            if name != without:
                archive.writestr(name, "")
    return path


def test_a_wheel_of_the_package_alone_is_let_pass(tmp_path: Path) -> None:
    code, said = checked(made_wheel(tmp_path / "a.whl"))
    assert (code, "nothing else" in said) == (0, True)


@pytest.mark.parametrize(
    "name",
    ["benchmarks/peers.py", "tests/test_docs.py", "ssd/forgotten.py", "ssd_llm-0.2.0.dist-info/notes.md"],
)
def test_a_wheel_with_more_is_not(tmp_path: Path, name: str) -> None:
    code, said = checked(made_wheel(tmp_path / "a.whl", more=name))
    assert (code, f"{name} does not belong into it" in said) == (1, True)


@pytest.mark.parametrize("name", ["ssd/py.typed", "ssd/server/static/index.html"])
def test_a_wheel_with_less_is_not(tmp_path: Path, name: str) -> None:
    code, said = checked(made_wheel(tmp_path / "a.whl", without=name))
    assert (code, f"{name} is missing" in said) == (1, True)


def test_a_venv_is_filled_once_and_again_where_it_was_ended_halfway(tmp_path: Path) -> None:
    """`.ci/run` installs torch three times; a second run on the same machine does not."""
    venv, notes = tmp_path / "venv", tmp_path / "notes"

    def fill(then: str = "true", *more: str) -> int:
        recipe = f'mkdir -p "$0/bin" && echo filled >> "$1" && {then}'
        command = [str(ROOT / ".ci" / "fill"), str(venv), "bash", "-euc", recipe, str(venv), str(notes)]
        return subprocess.run([*command, *more], check=False).returncode

    def times() -> int:
        return len(notes.read_text().split())

    assert (fill(), fill(), times()) == (0, 0, 1)
    (venv / "vllm").mkdir()
    assert (fill("false"), times()) == (1, 2)
    assert (fill("true"), times()) == (0, 3)
    assert (fill("true", "another recipe"), times()) == (0, 4)
    assert (venv / "vllm").is_dir()


def test_what_fails_once_is_named_at_the_end(tmp_path: Path) -> None:
    """The function of `.ci/run` that runs failed tests again: one passes then, one never does."""
    source = (ROOT / ".ci" / "run").read_text()
    (function,) = re.findall(r"^passed_later=.*?^}$", source, re.MULTILINE | re.DOTALL)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_once.py").write_text(
        "from pathlib import Path\n"
        "def test_now_and_then():\n"
        "    seen = Path('seen')\n"
        "    before = seen.exists()\n"
        "    seen.touch()\n"
        "    assert before\n"
        "def test_never():\n"
        "    assert False\n"
        "def test_always():\n"
        "    pass\n"
    )
    tests = f"{sys.executable} -m pytest -rs tests"
    script = f"set -euo pipefail\nvenv=.\n{function}\n{tests} || again {tests} || echo failed"
    ran = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True, env=_bare()
    )
    assert (tmp_path / "passed-later").read_text() == "tests/test_once.py::test_now_and_then\n"
    assert ran.stdout.rstrip().endswith("failed")


def _bare() -> dict[str, str]:
    """Without what this run of pytest told its own processes."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
