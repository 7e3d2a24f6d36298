"""A tree as people see it: whose child each node is, and which branch was taken."""

import json
from pathlib import Path

from rich.console import Console

from ssd.cli.explain import drawn_tree, show_trees
from ssd.decoding.rows import StepTimes, VerifiedTree
from ssd.decoding.timeline import Timeline
from ssd.decoding.tree_lines import lines_of

TREE = VerifiedTree(7, (10, 11, 12, 13, 14), (-1, -1, 1, 1, 2), (1, 3))
WORDS = {10: "a", 11: " the", 12: "cat", 13: "dog\n", 14: "sat"}
DRAWN = ["├○ a", "└●  the", " ├○ cat", " │└○ sat", " └● dog\\n"]


def test_children_stand_below_their_parents() -> None:
    assert [str(line) for line in lines_of(TREE, WORDS.__getitem__)] == DRAWN


def test_a_path_as_long_as_a_tree_may_be() -> None:
    chain = VerifiedTree(0, tuple(range(2000)), tuple(range(-1, 1999)), ())
    assert len(lines_of(chain, str)) == 2000


def test_the_branch_that_was_taken_is_coloured() -> None:
    drawn = drawn_tree(TREE, WORDS.__getitem__)
    assert drawn.plain.splitlines() == ["after token 7: 2 of 5 nodes taken", *DRAWN]
    green = [drawn.plain[span.start : span.end].strip() for span in drawn.spans if span.style == "green"]
    assert green == ["└●  the", "└● dog\\n"]


def test_of_many_trees_the_last_are_shown() -> None:
    class Tokenizer:
        def decode(self, tokens: list[int]) -> str:
            return WORDS[tokens[0]]

    console = Console(width=200)
    with console.capture() as shown:
        show_trees(console, [TREE] * 30, Tokenizer())
        show_trees(console, [], Tokenizer())
    assert "the last 12 of 30" in shown.get()
    assert shown.get().count("2 of 5 nodes taken") == 12


def test_a_trace_has_the_trees_of_each_verification(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.add_step(0.0, 2.0, StepTimes(0.5, 1.0, trees=(TREE, TREE)), [])
    timeline.write(tmp_path / "trace.json", WORDS.__getitem__)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    [verified] = [each["args"] for each in events if each["name"] == "verify"]
    assert verified["tree 1"] == verified["tree 2"] == DRAWN
