"""Every program of benchmarks/ is on its page. What pages type, tests/test_commands_in_docs.py parses."""

from pathlib import Path

import pytest

from benchmarks import flags

FOLDER = Path(flags.__file__).parent
HELPERS = {
    *(
        "counted_step",
        "dashboard_pictures",
        "drawn_text",
        "flags",
        "in_turns",
        "json_schemas",
        "kernel_compile",
        "network_picture",
        "recorded_svg",
        "ruled",
        "sleeping",
    ),
    "vllm_load",
    "vllm_worker",
}
TABLE = {"rows": 8, "name": str, "fast": False, "sizes": [1, 2], "at": None, "place:": str}


def test_every_program_is_on_the_page() -> None:
    modules = {path.stem for path in FOLDER.glob("[!_]*.py")}
    programs = modules - HELPERS | {path.parent.name for path in FOLDER.glob("*/__main__.py")}
    page = (FOLDER / "README.md").read_text()
    assert [name for name in programs if f"`python -m benchmarks.{name}`" not in page] == []
    assert [name for name in HELPERS if f"`{name}.py`" not in page] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("here --name n", {"rows": 8, "fast": False, "sizes": [1, 2], "at": None}),
        ("here --name n --fast --sizes 4 5", {"rows": 8, "fast": True, "sizes": [4, 5], "at": None}),
        ("here --name n --rows 3 --at there", {"rows": 3, "fast": False, "sizes": [1, 2], "at": "there"}),
    ],
)
def test_flags_of_a_table(words: str, said: dict[str, object]) -> None:
    found = vars(flags.parser(None, TABLE).parse_args(words.split()))
    assert found == {"name": "n", "place": "here", **said}


@pytest.mark.parametrize("words", ["here", "--name n", "here --name n --rows many", "here --name n --more"])
def test_what_must_be_said_and_what_is_none(words: str) -> None:
    with pytest.raises(SystemExit):
        flags.parser(None, TABLE).parse_args(words.split())
