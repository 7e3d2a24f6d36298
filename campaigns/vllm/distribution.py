"""Real vLLM on a tiny model: many answers to one prompt, each with a seed of its own, drafted and not.

    python -m campaigns.vllm.distribution --model FOLDER --record FILE.jsonl

Writes the tokens down, and what was drafted; whether they are spread as they should be is for who reads it.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from campaigns.vllm.in_process import InProcess

PROMPT = [5, 6, 7, 8, 9, 10]
NUM_TOKENS = 4
_AT_ONCE = 32
CASES: dict[str, dict[str, float]] = {
    "whole": {"temperature": 0.8},
    "truncated": {"temperature": 0.8, "top_p": 0.9},
}


def answers(vllm: InProcess, name: str, sampling: dict[str, float], count: int) -> list[list[int]]:
    """Requests bring no seed, so each draws by its id."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False, **sampling)
    texts, num_asked = list[list[int]](), 0
    while len(texts) < count:
        while num_asked < count and num_asked - len(texts) < _AT_ONCE:
            vllm.engine.add_request(f"{name} {num_asked}", {"prompt_token_ids": PROMPT}, params)
            num_asked += 1
        texts += [list(each.outputs[0].token_ids) for each in vllm.step() if each.finished]
    vllm.step()
    return texts


def case(vllm: InProcess, name: str, *, drafted: bool, count: int) -> dict[str, Any]:
    (vllm.worker.ssd_attach if drafted else vllm.worker.ssd_detach)()
    before = vllm.report()
    texts = answers(vllm, f"{name} {drafted}", CASES[name], count)
    after = vllm.report()
    counted = {
        short: after.get(full, 0) - before.get(full, 0)
        for short, full in {
            "rounds": "rounds",
            "drafted": "spec_decode_num_draft_tokens.draft",
            "accepted": "spec_decode_num_accepted_tokens.draft",
        }.items()
    }
    return {"case": name, "is drafted": drafted, **counted, "texts": texts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--answers", type=int, default=2500, help="of each case; half as many are drafted")
    arguments = parser.parse_args()
    vllm = InProcess(
        arguments.model,
        arguments.model,
        width=32,
        turns=1,
        max_model_len=64,
        max_num_seqs=_AT_ONCE,
        disable_log_stats=True,
    )
    # Whether it pays is not asked: all that is known is verified, right tokens and wrong ones.
    vllm.speculator.controller.choose = lambda chances, _: [len(each) for each in chances]
    with arguments.record.open("w") as file:
        for name in CASES:
            for drafted in (False, True):
                count = arguments.answers // (2 if drafted else 1)
                found = case(vllm, name, drafted=drafted, count=count)
                file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
