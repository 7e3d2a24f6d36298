"""Accepted tokens a round where texts keep to JSON schemas: paths under the grammar against paths cut by it.

    python -m benchmarks.grammar_paths --target MODEL --draft SMALL \\
        [--schemas 50] [--max-tokens 96] [--temperature 0] [--core 0] [--draft-core 1] \\
        [--record docs/records/grammar_paths.jsonl]

One engine in mode `ssd`; each schema is asked for twice, in an order that is drawn: with proposals that know
the grammar, and with the likeliest paths cut at their first forbidden token. Both must give the same text.
Given a record, a schema that is in it is not asked for again, so a run that was ended goes on. Printed: the
accepted tokens a round and tokens a second of both, over all schemas, and the ratios within a schema.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.flags import parser
from benchmarks.json_schemas import schemas
from ssd import LLM, Grammar, SamplingParams
from ssd.bench.statistics import paired_ratio
from ssd.decoding.proposer import Proposer
from ssd.decoding.rows import Speculation

FLAGS = {
    "target": str, "draft": str, "schemas": 50, "max-tokens": 96, "temperature": 0.0,
    "core": 0, "draft-core": 1, "record": None,
}  # fmt: skip
WAYS = ("guided", "cut")
Line = dict[str, Any]


@contextmanager
def cut_paths(proposer: Proposer) -> Iterator[None]:
    """Hides grammars from the proposer, so that the engine cuts its speculations."""
    propose = proposer.propose

    def without_grammars(seq_ids: Sequence[int], context_of: Any, _states: object) -> list[Speculation]:
        return propose(seq_ids, context_of, {})

    proposer.propose = without_grammars  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        del proposer.propose


class Asker:
    def __init__(self, llm: LLM, max_tokens: int, temperature: float) -> None:
        self._llm = llm
        self._max_tokens, self._temperature = max_tokens, temperature

    def ask(self, words: str, schema: dict[str, Any], way: str) -> tuple[Line, tuple[int, ...]]:
        if way == "cut":
            with cut_paths(self._llm._engine.core.decoder.proposer):
                return self._ask(words, schema)
        return self._ask(words, schema)

    def _ask(self, words: str, schema: dict[str, Any]) -> tuple[Line, tuple[int, ...]]:
        grammar = Grammar("json_schema", json.dumps(schema))
        params = SamplingParams(
            temperature=self._temperature, seed=1, max_tokens=self._max_tokens, grammar=grammar
        )
        prompt = self._llm.chat_prompt([{"role": "user", "content": words}])
        started = time.perf_counter()
        [output] = self._llm.generate([prompt], params, use_tqdm=False)[0].outputs
        seconds, counts = time.perf_counter() - started, output.speculation
        found = {"rounds": counts.rounds, "accepted": counts.accepted, "drafted": counts.drafted}
        return {**found, "tokens": len(output.token_ids), "seconds": round(seconds, 4)}, output.token_ids


def measure(llm: LLM, options: argparse.Namespace) -> list[Line]:
    """A line for each schema; those of a record stay."""
    asker, draw = Asker(llm, options.max_tokens, options.temperature), random.Random(0)
    record = Path(options.record) if options.record else None
    lines = _kept(record)
    for number, (words, schema) in enumerate(schemas()[: options.schemas]):
        order = draw.sample(WAYS, 2)
        if any(line["schema"] == number for line in lines):
            continue
        if not lines:
            asker.ask(words, schema, order[0])  # The prompt's first forward, the grammar's first masks.
        found = {way: asker.ask(words, schema, way) for way in order}
        line = {"schema": number, "asked": words, "same": found["guided"][1] == found["cut"][1]}
        lines.append(line | {way: found[way][0] for way in WAYS})
        print(words, *(f"{way} {_a_round([lines[-1]], way):.2f}" for way in WAYS), flush=True)
        if record is not None:
            with record.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
    return lines


def _kept(record: Path | None) -> list[Line]:
    if record is None or not record.exists():
        return []
    return [json.loads(line) for line in record.read_text().splitlines()]


def _a_round(lines: Sequence[Line], way: str) -> float:
    return float(sum(line[way]["accepted"] for line in lines) / sum(line[way]["rounds"] for line in lines))


def summary(lines: Sequence[Line]) -> Line:
    """Over all schemas, and within each."""
    rounds = {way: [_a_round([line], way) + 1 for line in lines] for way in WAYS}
    rates = {way: [line[way]["tokens"] / line[way]["seconds"] for line in lines] for way in WAYS}
    return {
        "num_schemas": len(lines),
        "num_same": sum(line["same"] for line in lines),
        **{f"accepted_a_round_{way}": round(_a_round(lines, way), 3) for way in WAYS},
        "ratio_accepted": round(_a_round(lines, "guided") / max(1e-9, _a_round(lines, "cut")), 3),
        "ratio_tokens_a_round": str(paired_ratio(rounds["guided"], rounds["cut"])),
        "ratio_speed": str(paired_ratio(rates["guided"], rates["cut"])),
    }


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    settings: dict[str, Any] = {
        "mode": "ssd",
        "draft": {"model": options.draft, "cores": (options.draft_core,)},
    }
    settings |= {"device": "cpu", "cores": (options.core,), "max_num_seqs": 1, "max_model_len": 2048}
    with LLM(options.target, show_progress=False, **settings) as llm:
        print(json.dumps(summary(measure(llm, options)), indent=1))


if __name__ == "__main__":
    main()
