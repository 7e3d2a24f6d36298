"""EleutherAI's lm-eval against a real server: its scores and texts are those of transformers.

    python -m campaigns.e2e.lm_eval --model MODEL [--draft MODEL] [--count 24]

The tasks are sums, in lm_eval_tasks/; nothing is fetched. Log-likelihoods are compared per token.
"""

import argparse
import json
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lm_eval
import torch
import yaml
from lm_eval.models.openai_completions import LocalCompletionsAPI
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.server.process import ServerProcess, serving

TASKS = Path(__file__).parent / "lm_eval_tasks"
MOST = 0.05
"""How far a token's log-probability may be from transformers', both in float32."""
NUM_CHOICES = 4


@dataclass(frozen=True, slots=True)
class Compared:
    num_scores: int
    num_tokens: int
    worst: float
    """The largest difference of a score, per token."""
    num_texts: int
    num_same_texts: int
    accuracy: float

    @property
    def is_good(self) -> bool:
        return self.num_scores > 0 and self.worst < MOST and self.num_same_texts == self.num_texts > 0

    def __str__(self) -> str:
        scores = f"{self.num_scores} log-likelihoods of {self.num_tokens} tokens"
        return (
            f"{scores}: at most {self.worst:.2g} per token from transformers\n"
            f"{self.num_same_texts} of {self.num_texts} greedy texts are transformers'\n"
            f"accuracy of the choices {self.accuracy:.2f}"
        )


def write_sums(folder: Path, count: int) -> Path:
    """Questions with their choices, as lm-eval reads them."""
    chance, lines = random.Random(7), []
    for _ in range(count):
        a, b = chance.randint(1, 40), chance.randint(1, 40)
        others = chance.sample([n for n in range(2, 81) if n != a + b], NUM_CHOICES - 1)
        answer = chance.randrange(NUM_CHOICES)
        numbers = [*others[:answer], a + b, *others[answer:]]
        question = f"1 + 2 = 3\n4 + 4 = 8\n{a} + {b} ="
        lines.append({"question": question, "choices": [f" {n}" for n in numbers], "answer": answer})
    file = folder / "sums.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def tasks(data: Path) -> list[dict[str, Any]]:
    found = []
    for file in sorted(TASKS.glob("*.yaml")):
        files = {"data_files": {"test": str(data)}, "cache_dir": str(data.parent / "cache")}
        found.append({**yaml.safe_load(file.read_text()), "dataset_kwargs": files})
    return found


def evaluate(server: ServerProcess, model: Path, data: Path) -> tuple[Any, dict[str, Any]]:
    client = LocalCompletionsAPI(
        model=server.http.get("/v1/models").json()["data"][0]["id"],
        base_url=f"{server.url}/v1/completions",
        tokenizer=str(model),
        tokenizer_backend="huggingface",
        num_concurrent=4,
        batch_size=3,
        max_length=256,
    )
    found = lm_eval.simple_evaluate(client, tasks=tasks(data), bootstrap_iters=0, log_samples=True)
    assert found is not None
    return client, found


class Reference:
    """transformers, on the same texts."""

    def __init__(self, model: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self._tokenizer = AutoTokenizer.from_pretrained(model)

    @torch.no_grad()
    def score(self, context: list[int], continuation: list[int]) -> float:
        ids = torch.tensor([context + continuation])
        logprobs = self._model(ids).logits[0].log_softmax(-1)
        places = range(len(context) - 1, len(context) + len(continuation) - 1)
        return sum(float(logprobs[i, token]) for i, token in zip(places, continuation, strict=True))

    @torch.no_grad()
    def text(self, prompt: str, *, until: str, max_tokens: int) -> str:
        ids = self._tokenizer(prompt, return_tensors="pt").input_ids
        found = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False
        )[0, ids.shape[1] :]
        text: str = self._tokenizer.decode(found, skip_special_tokens=True)
        return text.partition(until)[0]


def compare(server: ServerProcess, model: Path, count: int, folder: Path) -> Compared:
    client, found = evaluate(server, model, write_sums(folder, count))
    reference = Reference(model)
    worst, num_tokens, num_scores = 0.0, 0, 0
    for sample in found["samples"]["sums_choice"]:
        for (context, continuation), answers in zip(_arguments(sample), sample["resps"], strict=True):
            ids, more = client._encode_pair(context, continuation)
            score = float(answers[0][0])
            worst = max(worst, abs(score - reference.score(ids, more)) / len(more))
            num_tokens, num_scores = num_tokens + len(more), num_scores + 1
    texts = [
        (answers[0], reference.text(prompt, until=kwargs["until"][0], max_tokens=kwargs["max_gen_toks"]))
        for sample in found["samples"]["sums_text"]
        for (prompt, kwargs), answers in zip(_arguments(sample), sample["resps"], strict=True)
    ]
    num_same = sum(ours == theirs for ours, theirs in texts)
    accuracy = float(found["results"]["sums_choice"]["acc,none"])
    return Compared(num_scores, num_tokens, worst, len(texts), num_same, accuracy)


def _arguments(sample: dict[str, Any]) -> list[tuple[Any, Any]]:
    """lm-eval writes them as gen_args_0: {arg_0, arg_1}, …"""
    found = sample["arguments"]
    if isinstance(found, dict):
        return [(each["arg_0"], each["arg_1"]) for each in found.values()]
    return [(each[0], each[1]) for each in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft")
    parser.add_argument("--count", type=int, default=24)
    given = parser.parse_args()
    drafting = {"mode": "ssd", "draft": given.draft} if given.draft else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serving(given.model, folder / "log", kv_cache_bytes=1 << 28, **drafting) as server:
            found = compare(server, given.model, given.count, folder)
    print(found)
    sys.exit(0 if found.is_good else 1)


if __name__ == "__main__":
    main()
