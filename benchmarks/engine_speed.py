"""What the engine costs beside the bare model, and how it stands beside vLLM, on one core.

    python -m benchmarks.engine_speed --model MODEL [--core 0] [--profile] \\
        [--vllm-python PATH --vllm-model FOLDER]

Everything takes turns step by step: one forward, one engine step, one vLLM step, and round again. vLLM runs
in a process of its own (benchmarks/vllm_worker.py) on the same core.
"""

import json
import os
import random
import subprocess
from functools import partial
from pathlib import Path

import torch

from benchmarks.flags import parser
from benchmarks.in_turns import Action, Measure, seconds, show_ratios, show_times, take_turns
from ssd.attention.inputs import PlainInput
from ssd.attention.sdpa import SdpaBackend
from ssd.config import RunnerConfig
from ssd.decoding.decoder import Decoder
from ssd.engine.core import EngineCore
from ssd.engine.request import Request
from ssd.engine.scheduler import SchedulerLimits
from ssd.kvcache.block_manager import BlockManager
from ssd.kvcache.pool import KVPool
from ssd.runtime.cores import pin_to_cores
from ssd.runtime.eager import EagerRunner
from ssd.runtime.layout import Tiling
from ssd.runtime.loading import LoadedModel, load_model
from ssd.runtime.runner import forward
from ssd.sampling import SamplingParams

FLAGS = {
    "model": str, "core": 0, "rounds": 30, "profile": False,
    "vllm-python": None, "vllm-model": None, "vllm-preload": "",
}  # fmt: skip

CONTEXT, BLOCK, MAX_LEN = 256, 16, 1024
BLOCKS_EACH = MAX_LEN // BLOCK


class Engine:
    """An engine of its own pool that decodes a fixed batch, one step a call."""

    def __init__(self, loaded: LoadedModel, batch: int, temperature: float = 0.0) -> None:
        pool = KVPool(loaded.pool.shape)
        runner = make_runner(loaded, pool)
        limits = SchedulerLimits(16, 16 * CONTEXT, MAX_LEN)
        blocks = BlockManager(pool.shape.num_blocks, BLOCK, enable_prefix_caching=False)
        self._core = EngineCore(Decoder(runner), blocks, limits, loaded.checkpoint.tokenizer())
        params = SamplingParams(temperature=temperature, seed=1, max_tokens=None, ignore_eos=True)
        draw = random.Random(1)
        for index in range(batch):
            prompt = tuple(draw.randrange(1000, 40_000) for _ in range(CONTEXT))
            self._core.add(Request(str(index), None, prompt, params, 1, ()))
        self._core.step()

    def step(self) -> object:
        return self._core.step()


class VllmWorker:
    """vLLM decoding a batch of 1 and a batch of 16, one step a call."""

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

    def start(self, batch: int) -> None:
        """Drops what it was doing and brings a batch of new prompts to their first token."""
        self._ask({"start": batch})

    def step_seconds(self) -> float:
        return self._ask({"step": 1})

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _ask(self, question: dict[str, int]) -> float:
        if self._process.stdin is None:
            raise RuntimeError("the worker has no standard input")
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> float:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError("the vLLM worker ended; its own output says why")
        return float(json.loads(line)["seconds"])


def make_runner(loaded: LoadedModel, pool: KVPool, *, deterministic: bool = False) -> EagerRunner:
    """A runner over the same weights."""
    heads = loaded.checkpoint.config.num_heads
    attention = SdpaBackend(pool, heads, deterministic=deterministic)
    tiling = Tiling(decode=16, prefill=128) if deterministic else None
    return EagerRunner(loaded.runner.model, attention, pool, tiling=tiling)


def forwards(loaded: LoadedModel) -> dict[str, Action]:
    """Bare forwards, ordinary and deterministic."""

    def decode(count: int, sequence: int = 0) -> PlainInput:
        table = list(range(sequence * BLOCKS_EACH, (sequence + 1) * BLOCKS_EACH))
        return PlainInput([11] * count, CONTEXT, table, count, generated=True)

    prompt = PlainInput([11] * CONTEXT, 0, list(range(BLOCKS_EACH)), 1, generated=False)
    work = {
        "1 row": [decode(1)],
        "8 rows": [decode(8)],
        "16 sequences": [decode(1, sequence) for sequence in range(16)],
        f"prompt of {CONTEXT}": [prompt],
    }
    actions: dict[str, Action] = {}
    for name, rows in work.items():
        for kind in ("ordinary", "deterministic"):
            runner = make_runner(loaded, loaded.pool, deterministic=kind == "deterministic")
            actions[f"{name}, {kind}"] = lambda runner=runner, rows=rows: forward(runner, rows)  # type: ignore[misc]
    return actions


def measure_engine(loaded: LoadedModel, rounds: int) -> None:
    actions = {
        **forwards(loaded),
        "engine step": Engine(loaded, 1).step,
        "engine step, T=1": Engine(loaded, 1, 1.0).step,
    }
    found = take_turns({name: partial(seconds, action) for name, action in actions.items()}, rounds)
    show_times(found)
    pairs = {
        "engine step / bare forward": ("engine step", "1 row, ordinary"),
        "engine step at T=1 / greedy": ("engine step, T=1", "engine step"),
        "8 rows / 1 row": ("8 rows, ordinary", "1 row, ordinary"),
        "16 sequences / 1 row": ("16 sequences, ordinary", "1 row, ordinary"),
    }
    for name in ("1 row", "8 rows", "16 sequences", f"prompt of {CONTEXT}"):
        pairs[f"deterministic / ordinary, {name}"] = (f"{name}, deterministic", f"{name}, ordinary")
    show_ratios(found, pairs)


def show_profile(loaded: LoadedModel, rounds: int) -> None:
    """Where a forward's time goes, by operator, in the fastest of several forwards."""
    actions = forwards(loaded)
    for name in ("1 row, ordinary", "16 sequences, ordinary"):
        actions[name]()
        fastest: dict[str, float] = {}
        for _ in range(rounds):
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
                actions[name]()
            spent = {each.key: each.self_cpu_time_total / 1e3 for each in profiler.key_averages()}
            if not fastest or sum(spent.values()) < sum(fastest.values()):
                fastest = spent
        print(f"| {name} | ms |\n|---|---|\n| all | {sum(fastest.values()):.1f} |")
        for operator, milliseconds in sorted(fastest.items(), key=lambda item: -item[1])[:8]:
            print(f"| {operator} | {milliseconds:.1f} |")


def measure_vllm(loaded: LoadedModel, vllm: VllmWorker, rounds: int) -> None:
    found: dict[str, list[float]] = {}
    for batch in (1, 16):
        engine = Engine(loaded, batch)
        vllm.start(batch)
        steps: dict[str, Measure] = {
            f"SSD step, batch {batch}": partial(seconds, engine.step),
            f"vLLM step, batch {batch}": vllm.step_seconds,
        }
        found |= take_turns(steps, rounds, warm_up=2)
    show_times(found)
    rates = {
        f"SSD's rate / vLLM's, batch {b}": (f"vLLM step, batch {b}", f"SSD step, batch {b}") for b in (1, 16)
    }
    show_ratios(found, rates)


def main() -> None:
    options = parser(__doc__, FLAGS).parse_args()
    pin_to_cores([options.core])
    config = RunnerConfig(
        model=options.model, max_model_len=MAX_LEN, num_blocks=16 * BLOCKS_EACH, device="cpu"
    )
    loaded = load_model(config)
    if options.profile:
        show_profile(loaded, options.rounds)
    elif options.vllm_python:
        vllm = VllmWorker(options.vllm_python, options.vllm_model, options.core, options.vllm_preload)
        measure_vllm(loaded, vllm, options.rounds)
        vllm.close()
    else:
        measure_engine(loaded, options.rounds)


if __name__ == "__main__":
    main()
