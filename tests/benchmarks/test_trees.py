"""Small forms of `grammar_paths`, `tree_speed` and `tree_turns`; the full ones take real models."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from benchmarks import grammar_paths, tree_speed, tree_turns
from benchmarks.json_schemas import schemas
from ssd import LLM

# In bfloat16 a near-tie falls as rows stand beside each other, and texts differ.
TINY: dict[str, Any] = {"device": "cpu", "dtype": "float32", "show_progress": False}


def options(flags: Mapping[str, object], **said: object) -> argparse.Namespace:
    """As the program has them, unless said otherwise."""
    return argparse.Namespace(**{name.replace("-", "_"): value for name, value in flags.items()} | said)


def test_fifty_schemas_that_differ() -> None:
    found = schemas()
    assert len(found) == len({words for words, _schema in found}) == 50
    for _words, schema in found:
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["properties"]
        assert set(schema["required"]) <= set(schema["properties"])


@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_proposals_that_know_the_grammar_are_accepted_more_often(
    tiny_llama: Path, tmp_path: Path, mode: str
) -> None:
    record = tmp_path / "record.jsonl"
    asked = options(grammar_paths.FLAGS, schemas=2, max_tokens=24, record=str(record))
    with LLM(str(tiny_llama), mode=mode, draft=str(tiny_llama), **TINY) as llm:
        lines = grammar_paths.measure(llm, asked)
        assert grammar_paths.measure(llm, asked) == lines  # all of it is on record
    found = grammar_paths.summary(lines)
    assert (found["num_schemas"], found["num_same"]) == (2, 2)
    assert found["ratio_accepted"] > 1


def test_chains_and_trees_write_the_same_and_are_on_record(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "humaneval.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n' * 4)
    said = {"datasets": ["humaneval"], "dataset_dir": str(tmp_path), "record": str(tmp_path / "record.jsonl")}
    asked = options(tree_turns.FLAGS, batch=[2], texts=2, max_tokens=8, **said)
    with LLM(
        str(tiny_llama), mode="ssd", draft=str(tiny_llama), max_num_seqs=2, deterministic=True, **TINY
    ) as llm:
        lines = tree_turns.measure(llm, asked)
        assert tree_turns.measure(llm, asked) == lines
    assert len(lines) == 4
    assert all(line["same"] == line["texts"] == 2 for line in lines)
    tree_turns.show(lines)
    assert "| ssd humaneval 0.0 2 |" in capsys.readouterr().out


def test_trees_at_the_ratios_of_gpus_are_faster() -> None:
    """In simulated time: the same on every machine."""
    asked = options(tree_speed.FLAGS, width=8, texts=4, tokens=80)
    found = tree_speed.measure(asked, acceptance=0.74, batch=1)
    assert found["tokens a verification, tree"] > 1.04 * found["tokens a verification, chain"]
