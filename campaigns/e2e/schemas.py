"""Texts that must fit a schema: valid, and the same in mode `ssd` as in mode `ar`.

    python -m campaigns.e2e.schemas --model MODEL --draft MODEL --count 200

`--draft cut=4` takes the model's own first layers. Every schema is asked for at temperature 0 and 1.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema

from campaigns.e2e.other_drafts import cut_draft
from campaigns.e2e.random_schemas import SchemaMaker
from ssd import LLM, Grammar, SamplingParams
from ssd.config import Mode
from ssd.engine.outputs import CompletionOutput
from ssd.engine.prompts import Prompt

TEMPERATURES = (0.0, 1.0)
MOST_BYTES = 110
"""Of a text; a token is a byte at least, and the end of the text is one more."""
PROMPTS: list[Prompt] = ["A fox, as JSON:", "Answer in JSON.\n", "The order was", "{}\n\n", "def add(a, b):"]


@dataclass(slots=True)
class Found:
    num_texts: int = 0
    num_valid: int = 0
    num_equal: int = 0
    num_tokens: int = 0
    num_accepted: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @property
    def is_perfect(self) -> bool:
        return self.num_texts == self.num_valid == self.num_equal > 0

    def note(self, schema: dict[str, Any], alone: CompletionOutput, drafted: CompletionOutput) -> None:
        self.num_texts += 1
        self.num_tokens += len(drafted.token_ids)
        self.num_accepted += drafted.speculation.accepted
        cause = fault_of(schema, drafted)
        self.num_valid += cause is None
        self.num_equal += drafted == alone
        if cause is not None:
            self.wrong[cause] += 1
        if cause is not None or drafted != alone:
            self.examples.append(f"{cause}: {json.dumps(schema)} {drafted.text!r} alone {alone.text!r}")

    def __str__(self) -> str:
        return "\n".join(
            (
                f"{self.num_texts} texts, {self.num_tokens} tokens, {self.num_accepted} of them drafted",
                f"valid {self.num_valid}, the same as in mode ar {self.num_equal}",
                f"invalid by cause: {dict(self.wrong)}",
                *self.examples[:10],
            )
        )


def fault_of(schema: dict[str, Any], output: CompletionOutput) -> str | None:
    """Why a text does not fit; None: it does."""
    if output.finish_reason != "stop":
        return "cut short"
    try:
        value = json.loads(output.text)
    except ValueError:
        return "not JSON"
    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(value))
    return None if error is None else str(error.validator)


def params(schemas: Sequence[dict[str, Any]], temperature: float) -> list[SamplingParams]:
    return [
        SamplingParams(
            temperature=temperature,
            seed=seed,
            max_tokens=MOST_BYTES + 1,
            grammar=Grammar("json_schema", json.dumps(schema)),
        )
        for seed, schema in enumerate(schemas)
    ]


def texts(llm: LLM, schemas: Sequence[dict[str, Any]]) -> list[CompletionOutput]:
    """Of every schema, at each temperature."""
    prompts = [PROMPTS[number % len(PROMPTS)] for number in range(len(schemas))]
    return [
        output.outputs[0]
        for temperature in TEMPERATURES
        for output in llm.generate(prompts, params(schemas, temperature), use_tqdm=False)
    ]


def compare(
    model: str, draft: str, count: int, *, seed: int = 0, mode: Mode = "ssd", **settings: Any
) -> Found:
    maker = SchemaMaker(seed)
    schemas = [maker.document(MOST_BYTES) for _ in range(count)]
    for schema in schemas:
        jsonschema.Draft202012Validator.check_schema(schema)
    common = {"device": "cpu", "deterministic": True, "max_num_seqs": 16, **settings}
    with LLM(model, show_progress=False, **common) as llm:
        alone = texts(llm, schemas)
        # Left to itself `sd` drafts nothing where that does not pay.
        llm.switch_mode(mode, draft=draft, lookahead=4)
        drafted = texts(llm, schemas)
    found = Found()
    for schema, *pair in zip(schemas * len(TEMPERATURES), alone, drafted, strict=True):
        found.note(schema, *pair)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kind, _, layers = given.draft.partition("cut=")
        draft = given.draft if kind else str(cut_draft(Path(given.model), int(layers), Path(folder) / "cut"))
        found = compare(given.model, draft, given.count, seed=given.seed, max_model_len=512)
    print(found)
    sys.exit(0 if found.is_perfect else 1)


if __name__ == "__main__":
    main()
