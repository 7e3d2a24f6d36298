"""Two drafts of unequal fit for one target: how soon each request is with the right one.

    python -m tests.e2e.kinds --model TARGET --draft SMALL [--record docs/records/kinds.jsonl]

The other draft has the tokenizer of the first and weights drawn at random: never right but by chance. Nobody
says which is which. Requests come one after another. Each token is compared with plain decoding. --draft is a
folder, since a tokenizer is taken from it. Ends with 1 unless 95 of 100 requests are with the right one from
their 20th round on, or at their end, and every token is the target's.
"""

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from ssd import LLM, SamplingParams
from ssd.draft.policy import Verified
from tests.e2e.drafts import Drafts
from tests.vllm.record import Record

FITTING, OTHER = "fitting", "random"
FOUND_WITHIN = 20
LEAST_FOUND = 0.95
_TASKS = (
    *("add two numbers", "reverse a string", "count the vowels of a text", "sort a list of pairs by value"),
    *("read a file line by line", "find the largest prime below n", "merge two sorted lists", "parse a date"),
    *("compute a moving average", "flatten a nested list", "check whether a word is a palindrome"),
    *("convert Celsius to Fahrenheit", "remove duplicates and keep the order", "split a list into chunks"),
    *("find the longest common prefix", "transpose a matrix", "count words of a text", "validate an address"),
    *("compute the greatest common divisor", "generate the Fibonacci numbers below n"),
)
PROMPTS = tuple(f'"""Functions to {task}."""\n\n\ndef ' for task in _TASKS)


@dataclass(frozen=True, slots=True)
class Found:
    num_requests: int
    found: float
    """Share of requests that were with the right draft from their 20th round on, or at their end."""
    rounds_elsewhere: float
    """A request: rounds with the wrong draft, or with none."""
    tokens_a_round: float
    named_elsewhere: int
    """Rounds of requests that name the right draft in which they were not with it."""
    wrong: int
    """Requests whose tokens are not those of plain decoding."""


def random_like(folder: Path, into: Path) -> Path:
    """A small model that knows the same tokens, and nothing else."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    settings = json.loads((folder / "config.json").read_text()) | sizes | heads
    settings.pop("layer_types", None)
    config = AutoConfig.for_model(**settings)
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config).save_pretrained(into)
    AutoTokenizer.from_pretrained(folder).save_pretrained(into)
    return into


class Watched:
    """Where each request of an engine is in each of its rounds."""

    def __init__(self, llm: LLM) -> None:
        decoder: Any = llm._engine.core.decoder
        policy = decoder.proposer.policy
        self._client, self._settle = policy.client, policy.settle
        self.homes: dict[Hashable, list[str]] = defaultdict(list)
        policy.settle = self._watch

    def _watch(self, outcomes: Sequence[Verified], *more: Any) -> Any:
        for each in outcomes:
            self.homes[each.request_id].append(self._client.kind_of(each.request_id))
        return self._settle(outcomes, *more)


def measure(
    target: str,
    drafts: Drafts,
    prompts: Sequence[str],
    max_tokens: int,
    prepare: Callable[[LLM], None] = lambda llm: None,
    **engine: Any,
) -> Found:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    named = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, draft=FITTING)
    with LLM(target, mode="ssd", draft={"model": drafts.addresses}, show_progress=False, **engine) as llm:
        prepare(llm)
        watched, told = Watched(llm), list[tuple[int, ...]]()
        for each in (*[params] * len(prompts), named, named):
            prompt = prompts[len(told) % len(prompts)]
            told.append(llm.generate(prompt, each, use_tqdm=False)[0].outputs[0].token_ids)
        homes, stats = list(watched.homes.values()), llm.stats.speculation
    with LLM(target, show_progress=False, **engine) as llm:
        plain = [each.outputs[0].token_ids for each in llm.generate(list(prompts), params, use_tqdm=False)]
    learnt, by_name = homes[: len(prompts)], homes[len(prompts) :]
    return Found(
        num_requests=len(prompts),
        found=sum(each[:FOUND_WITHIN][-1] == FITTING for each in learnt) / len(prompts),
        rounds_elsewhere=sum(len(each) - each.count(FITTING) for each in learnt) / len(prompts),
        tokens_a_round=(stats.accepted + stats.rounds) / max(1, stats.rounds),
        named_elsewhere=sum(len(each) - each.count(FITTING) for each in by_name),
        wrong=sum(each != plain[place % len(prompts)] for place, each in enumerate(told)),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=len(PROMPTS))
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kinds-") as folder:
        other = random_like(options.draft, Path(folder) / "random")
        drafts = Drafts({OTHER: other, FITTING: options.draft}, Path(folder))
        try:
            found = measure(
                options.model, drafts, PROMPTS[: options.requests], options.max_tokens, deterministic=True
            )
        finally:
            drafts.close()
    if options.record is not None:
        named = {"model": Path(options.model).name, "draft": options.draft.name}
        Record(options.record, {**named, "max_tokens": options.max_tokens}).add("unequal fit", asdict(found))
    sys.stdout.write(f"{found}\n")
    return int(found.found < LEAST_FOUND or found.wrong > 0 or found.named_elsewhere > 0)


if __name__ == "__main__":
    sys.exit(main())
