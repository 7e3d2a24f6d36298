"""vLLM on one CPU core, answering measurements on standard output. Run with the python of vLLM's venv.

Reads JSON lines: {"start": B} drops what runs and brings B random prompts to their first token, greedy;
{"step": 1} computes the next token of each. Answers {"seconds": s} for what was asked.
"""

import argparse
import json
import os
import random
import sys
import time


def stay_on(core: int) -> None:
    """Before vLLM is imported: one core, in this process, off the network."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    os.environ.update(
        OMP_NUM_THREADS="1",
        VLLM_CPU_OMP_THREADS_BIND=str(core),
        VLLM_CPU_KVCACHE_SPACE="2",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        HF_HUB_OFFLINE="1",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--core", type=int, required=True)
    parser.add_argument("--context", type=int, default=256)
    options = parser.parse_args()
    stay_on(options.core)
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
    draw, engine = random.Random(1), llm.llm_engine
    params = SamplingParams(temperature=0, max_tokens=700, ignore_eos=True, detokenize=False)
    running: list[str] = []

    def start(batch: int) -> None:
        engine.abort_request(running)
        running[:] = [f"{draw.random()}" for _ in range(batch)]
        for name in running:
            prompt = [draw.randrange(1000, 40_000) for _ in range(options.context)]
            engine.add_request(name, {"prompt_token_ids": prompt}, params)
        step()

    def step() -> None:
        """Until every sequence has one more token: an engine step may hand out none."""
        waiting = set(running)
        while waiting:
            waiting -= {output.request_id for output in engine.step()}

    answers.write(json.dumps({"seconds": 0}) + "\n")
    for line in sys.stdin:
        asked, started = json.loads(line), time.perf_counter()
        if "start" in asked:
            start(asked["start"])
        else:
            step()
        answers.write(json.dumps({"seconds": time.perf_counter() - started}) + "\n")


if __name__ == "__main__":
    main()
