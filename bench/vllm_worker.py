"""vLLM on one CPU core, answering measurements on standard output. Run with the python of vLLM's venv.

Reads JSON lines {"batch": B, "tokens": N}; decodes N tokens for B random prompts, greedy, and answers
{"seconds_per_step": s}, timed from the moment every sequence has its first token.
"""

import argparse
import json
import os
import random
import sys
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--core", type=int, required=True)
    parser.add_argument("--context", type=int, default=256)
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    os.environ.update(
        OMP_NUM_THREADS="1",
        VLLM_CPU_OMP_THREADS_BIND=str(options.core),
        VLLM_CPU_KVCACHE_SPACE="2",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        HF_HUB_OFFLINE="1",
    )
    # What vLLM prints goes to standard error; the answers keep standard output.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    import torch
    from vllm import LLM, SamplingParams

    torch.set_num_threads(1)
    torch.cpu._init_amx()
    llm = LLM(
        options.model,
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=16,
        max_num_batched_tokens=16 * options.context,
        enable_prefix_caching=False,
    )
    draw = random.Random(1)

    def seconds_per_step(batch: int, num_tokens: int, name: str) -> float:
        engine = llm.llm_engine
        params = SamplingParams(temperature=0, max_tokens=num_tokens + 1, ignore_eos=True, detokenize=False)
        for index in range(batch):
            prompt = [draw.randrange(1000, 40_000) for _ in range(options.context)]
            engine.add_request(f"{name}-{index}", {"prompt_token_ids": prompt}, params)
        engine.step()
        started, steps = time.perf_counter(), 0
        while engine.has_unfinished_requests():
            engine.step()
            steps += 1
        # Some engine steps only tidy up, so the count of tokens is what divides.
        return (time.perf_counter() - started) / min(steps, num_tokens)

    seconds_per_step(16, 2, "warm-up")
    answers.write(json.dumps({"ready": 1}) + "\n")
    for number, line in enumerate(sys.stdin):
        asked = json.loads(line)
        seconds = seconds_per_step(asked["batch"], asked["tokens"], str(number))
        answers.write(json.dumps({"seconds_per_step": seconds}) + "\n")


if __name__ == "__main__":
    main()
