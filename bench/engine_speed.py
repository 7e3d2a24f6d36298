"""What the engine costs beside the bare model, and how it stands beside vLLM, on one core.

    python bench/engine_speed.py --model MODEL [--core 0] [--vllm-python PATH --vllm-model FOLDER]

Everything is interleaved in one run, round by round, so that a machine that drifts slows
all alike; ratios are taken within a round, and their median and quartiles are printed.
vLLM runs in a process of its own (bench/vllm_worker.py) on the same core, in turn.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch

from ssd.attention.sdpa import SdpaBackend
from ssd.config import EngineConfig
from ssd.decoding.autoregressive import AutoregressiveDecoder
from ssd.engine.core import EngineCore
from ssd.engine.request import Request
from ssd.engine.scheduler import SchedulerLimits
from ssd.kvcache.block_manager import BlockManager
from ssd.runtime.eager import EagerRunner, Tiling
from ssd.runtime.loading import LoadedModel, load_model
from ssd.runtime.runner import RunnerRow
from ssd.sampling import SamplingParams

CONTEXT, BLOCK, MAX_LEN = 256, 16, 1024
Measurements = dict[str, list[float]]


def timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def decode_row(count: int, first_block: int = 0) -> RunnerRow:
    table = list(range(first_block, first_block + MAX_LEN // BLOCK))
    return RunnerRow([11] * count, CONTEXT, table, count, generated=True)


class Engine:
    """An engine core over a loaded model, driven request by request."""

    def __init__(self, loaded: LoadedModel, runner: EagerRunner) -> None:
        limits = SchedulerLimits(16, 16 * CONTEXT, MAX_LEN)
        blocks = BlockManager(loaded.pool.shape.num_blocks, BLOCK, enable_prefix_caching=False)
        self._core = EngineCore(AutoregressiveDecoder(runner), blocks, limits, loaded.checkpoint.tokenizer())
        self._ids = random.Random(1)

    def decode_seconds(self, batch: int, num_tokens: int, temperature: float = 0.0) -> float:
        """Seconds per step of a batch once all have their first token."""
        params = SamplingParams(temperature=temperature, seed=1, max_tokens=num_tokens + 1, ignore_eos=True)
        for index in range(batch):
            prompt = tuple(self._ids.randrange(1000, 40_000) for _ in range(CONTEXT))
            self._core.add(Request(str(index), None, prompt, params, 1, ()))
        self._core.step()
        started = time.perf_counter()
        steps = 0
        while self._core.has_work:
            self._core.step()
            steps += 1
        return (time.perf_counter() - started) / steps


class VllmWorker:
    def __init__(self, python: str, model: str, core: int, preload: str) -> None:
        script = Path(__file__).with_name("vllm_worker.py")
        self._process = subprocess.Popen(
            [python, str(script), "--model", model, "--core", str(core), "--context", str(CONTEXT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LD_PRELOAD": preload},
        )
        self._answer()

    def decode_seconds(self, batch: int, num_tokens: int) -> float:
        if self._process.stdin is None:
            raise RuntimeError("the worker has no standard input")
        self._process.stdin.write(json.dumps({"batch": batch, "tokens": num_tokens}) + "\n")
        self._process.stdin.flush()
        return float(self._answer()["seconds_per_step"])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _answer(self) -> dict[str, float]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError("the vLLM worker ended; its own output says why")
        answer: dict[str, float] = json.loads(line)
        return answer


def runners(loaded: LoadedModel) -> tuple[EagerRunner, EagerRunner]:
    """The same weights and pool, ordinary and deterministic."""
    heads = loaded.checkpoint.config.num_heads
    loose = loaded.runner
    strict = EagerRunner(
        loose.model,
        SdpaBackend(loaded.pool, heads, deterministic=True),
        torch.device("cpu"),
        tiling=Tiling(decode=16, prefill=128),
    )
    return loose, strict


def measure_round(into: Measurements, loaded: LoadedModel, vllm: VllmWorker | None, num_tokens: int) -> None:
    loose, strict = runners(loaded)
    prompt = [RunnerRow([11] * CONTEXT, 0, list(range(MAX_LEN // BLOCK)), 1, generated=False)]
    sixteen = [decode_row(1, index * MAX_LEN // BLOCK) for index in range(16)]
    engine = Engine(loaded, loose)
    for name, runner in (("", loose), (" deterministic", strict)):
        into[f"forward 1 row{name}"].append(
            min(timed(lambda: runner.forward([decode_row(1)])) for _ in range(3))
        )
        into[f"forward 8 rows{name}"].append(
            min(timed(lambda: runner.forward([decode_row(8)])) for _ in range(3))
        )
        into[f"forward 16 x 1 row{name}"].append(
            min(timed(lambda: runner.forward(sixteen)) for _ in range(2))
        )
        into[f"prefill {CONTEXT}{name}"].append(timed(lambda: runner.forward(prompt)))
    into["forward 1 row again"].append(min(timed(lambda: loose.forward([decode_row(1)])) for _ in range(3)))
    into["engine step, batch 1"].append(engine.decode_seconds(1, num_tokens))
    into["engine step, batch 1, T=1"].append(engine.decode_seconds(1, num_tokens, temperature=1.0))
    if vllm:
        into["vLLM step, batch 1"].append(vllm.decode_seconds(1, num_tokens))
    into["engine step, batch 16"].append(engine.decode_seconds(16, num_tokens))
    if vllm:
        into["vLLM step, batch 16"].append(vllm.decode_seconds(16, num_tokens))


RATIOS = (
    ("engine step / bare forward", "engine step, batch 1", "forward 1 row again"),
    ("T=1 step / greedy step", "engine step, batch 1, T=1", "engine step, batch 1"),
    ("8 rows / 1 row", "forward 8 rows", "forward 1 row"),
    ("16 sequences / 1 row", "forward 16 x 1 row", "forward 1 row"),
    ("deterministic / ordinary, 1 row", "forward 1 row deterministic", "forward 1 row"),
    ("deterministic / ordinary, 16 sequences", "forward 16 x 1 row deterministic", "forward 16 x 1 row"),
    ("deterministic / ordinary, prefill", f"prefill {CONTEXT} deterministic", f"prefill {CONTEXT}"),
    ("rate over vLLM's, batch 1", "vLLM step, batch 1", "engine step, batch 1"),
    ("rate over vLLM's, batch 16", "vLLM step, batch 16", "engine step, batch 16"),
)


def report(found: Measurements) -> str:
    lines = ["| measured | best ms | median ms |", "|---|---|---|"]
    for name, seconds in found.items():
        lines.append(f"| {name} | {min(seconds) * 1e3:.1f} | {statistics.median(seconds) * 1e3:.1f} |")
    lines += ["", "| ratio, within a round | median | quartiles |", "|---|---|---|"]
    for name, above, below in RATIOS:
        if above in found and len(found[above]) > 1:
            ratios = [a / b for a, b in zip(found[above], found[below], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            lines.append(f"| {name} | {middle:.3f} | {low:.3f} – {high:.3f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--vllm-python", help="the python of a venv that has vLLM")
    parser.add_argument("--vllm-model", help="the same weights as a safetensors folder")
    parser.add_argument("--vllm-preload", default="", help="libraries vLLM's documentation has one preload")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    torch.set_num_threads(1)
    config = EngineConfig(
        model=options.model, max_model_len=MAX_LEN, num_blocks=16 * MAX_LEN // BLOCK, device="cpu"
    )
    loaded = load_model(config)
    vllm = None
    if options.vllm_python:
        vllm = VllmWorker(options.vllm_python, options.vllm_model, options.core, options.vllm_preload)
    measure_round(defaultdict(list), loaded, vllm, 2)  # warm-up, outside the figures
    found: Measurements = defaultdict(list)
    for _ in range(options.rounds):
        measure_round(found, loaded, vllm, options.tokens)
    if vllm:
        vllm.close()
    print(report(found))


if __name__ == "__main__":
    main()
