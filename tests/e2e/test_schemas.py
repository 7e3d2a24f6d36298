"""The small form of `python -m campaigns.e2e.schemas`, which takes 200 schemas and a real model."""

import json
from pathlib import Path

import jsonschema
import pytest

from campaigns.e2e.random_schemas import SchemaMaker
from campaigns.e2e.schemas import MOST_BYTES, compare, fault_of
from ssd.config import Mode
from ssd.engine.outputs import CompletionOutput

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 5}}, "required": ["n"]}


@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_texts_fit_their_schema_and_are_the_same_with_a_draft(tiny_llama: Path, mode: Mode) -> None:
    found = compare(str(tiny_llama), str(tiny_llama), 12, mode=mode)
    assert found.is_perfect, str(found)
    assert found.num_texts == 24
    # Beside a target that small a draft that works ahead may be late every time.
    assert found.num_accepted > 0 or mode == "ssd"


@pytest.mark.parametrize(
    ("text", "reason", "fault"),
    [
        ('{"n": 5}', "stop", None),
        ('{"n": 6}', "stop", "maximum"),
        ("{}", "stop", "required"),
        ('{"n": 5', "stop", "not JSON"),
        ('{"n": 5}', "length", "cut short"),
    ],
)
def test_faults_are_told_apart(text: str, reason: str, fault: str | None) -> None:
    output = CompletionOutput(0, text, (1,), reason)  # type: ignore[arg-type]
    assert fault_of(SCHEMA, output) == fault


def test_the_generator_uses_every_keyword_and_repeats_itself() -> None:
    documents = [SchemaMaker(seed).document(MOST_BYTES) for seed in range(100)]
    assert documents == [SchemaMaker(seed).document(MOST_BYTES) for seed in range(100)]
    written = json.dumps(documents)
    for keyword in (
        "anyOf",
        "const",
        "enum",
        "$ref",
        "pattern",
        "maxItems",
        "multipleOf",
        "exclusiveMaximum",
    ):
        assert f'"{keyword}"' in written
    for each in documents:
        jsonschema.Draft202012Validator.check_schema(each)
