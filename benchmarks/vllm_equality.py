"""Real models on vLLM's V2 runner: does it decide the same tokens with a draft and without anything of ours?

    python -m benchmarks.vllm_equality --target FOLDER --draft FOLDER [--tokens 64] [--dtype bfloat16]

Run it with the python of vLLM's venv. Stock vLLM answers all prompts at T = 0 and 0.7, then our worker with a
real draft service; each is a process of its own. Prints how many texts are equal. Where two texts part, the
two best scores of each side are printed, and by how much they moved between the sides. A tie is a gap that is
smaller than what rounding moves scores by (in bfloat16 up to an eighth); a larger gap is a fault. Exits with
1 if a gap is larger than --rounding, or if no drafted token was accepted: then nothing was compared.
tests/exact/vllm compares small models, feature by feature.

Where there is no GPU, V2 runs in the stand-in of tests/vllm/bed:

    PYTHONPATH=tests/vllm/bed:src:. TRITON_INTERPRET=1 VLLM_USE_V2_MODEL_RUNNER=1 python -m …
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ssd.integrations.vllm import arguments
from ssd.sampling.murmur import murmur_noise
from tests.vllm.streams import PROMPTS

TEMPERATURES = (0.0, 0.7)
START_SECONDS = 300
_NUM_LOGPROBS = 20
_SEED = 7


@dataclass(frozen=True, slots=True)
class Text:
    """One answer. `logprobs`: of the likeliest tokens at each place, and of the token that was decided."""

    prompt_length: int
    tokens: Sequence[int]
    logprobs: Sequence[Mapping[int, float]]

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> "Text":
        logprobs = [{int(token): value for token, value in place.items()} for place in line["logprobs"]]
        return cls(line["prompt_length"], line["tokens"], logprobs)

    def scores(self, place: int, temperature: float, seed: int) -> dict[int, float]:
        """vLLM decides the token with the greatest score: log-probability over T plus noise."""
        known = self.logprobs[place]
        if temperature == 0:
            return dict(known)
        tokens = torch.tensor(list(known))
        position = torch.full_like(tokens, self.prompt_length + place)
        noise = murmur_noise(torch.full_like(tokens, seed), position, tokens).tolist()
        return {
            token: value / temperature + its for (token, value), its in zip(known.items(), noise, strict=True)
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two texts part: each side's two best scores."""

    temperature: float
    prompt: int
    place: int
    stock: Mapping[int, float]
    attached: Mapping[int, float]

    @classmethod
    def between(cls, stock: Text, attached: Text, temperature: float, prompt: int) -> "Difference | None":
        pairs = zip(stock.tokens, attached.tokens, strict=True)
        place = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
        if place is None:
            return None
        sides = [_best_two(each.scores(place, temperature, _SEED + prompt)) for each in (stock, attached)]
        return cls(temperature, prompt, place, *sides)

    @property
    def gap(self) -> float:
        """The larger gap of the two sides: neither side may have been sure."""
        gaps = [abs(first - second) for first, second in (self.stock.values(), self.attached.values())]
        return max(gaps)

    def __str__(self) -> str:
        shown = [
            " and ".join(f"token {token} {score:.4f}" for token, score in side.items())
            for side in (self.stock, self.attached)
        ]
        return (
            f"T = {self.temperature}, prompt {self.prompt}, place {self.place}: stock has {shown[0]}; "
            f"attached has {shown[1]}; gap {self.gap:.4f}"
        )


def _best_two(scores: Mapping[int, float]) -> dict[int, float]:
    return dict(sorted(scores.items(), key=lambda each: -each[1])[:2])


def settings(asked: argparse.Namespace) -> dict[str, Any]:
    return {
        "model": str(asked.target),
        "dtype": asked.dtype,
        "max_model_len": asked.max_model_len,
        "max_num_seqs": len(PROMPTS),
        "enforce_eager": not torch.cuda.is_available(),
        "async_scheduling": True,
        "disable_log_stats": False,
        "gpu_memory_utilization": asked.memory,
        "hf_overrides": {"head_dtype": asked.head_dtype} if asked.head_dtype else {},
    }


def answer(asked: argparse.Namespace) -> None:
    """One side's process: writes a line for each text, and at last what was drafted."""
    from vllm import LLM, SamplingParams

    ours = arguments(asked.address, runner="v2", backup="none") if asked.address else {}
    llm = LLM(**settings(asked), **ours)
    if ours:
        _wait_for_draft(llm)
    with asked.into.open("w") as file:
        for temperature in TEMPERATURES:
            params = [
                SamplingParams(
                    temperature=temperature,
                    seed=_SEED + number,
                    max_tokens=asked.tokens,
                    ignore_eos=True,
                    logprobs=_NUM_LOGPROBS,
                )
                for number in range(len(PROMPTS))
            ]
            for found in llm.generate(list(PROMPTS), params, use_tqdm=False):
                [output] = found.outputs
                line = {
                    "prompt_length": len(found.prompt_token_ids),
                    "tokens": list(output.token_ids),
                    "logprobs": [
                        {token: each.logprob for token, each in place.items()} for place in output.logprobs
                    ],
                }
                file.write(json.dumps(line) + "\n")
        file.write(json.dumps(_drafted(llm) if ours else {}) + "\n")


def _report(llm: Any) -> dict[str, float]:
    return next(dict(each) for each in llm.collective_rpc("ssd_report") if each is not None)


def _wait_for_draft(llm: Any) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _report(llm)["draft_up"]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no draft within {START_SECONDS} s")
        time.sleep(0.1)


def _drafted(llm: Any) -> dict[str, float]:
    report = _report(llm)
    names = {
        "drafted": "spec_decode_num_draft_tokens.draft",
        "accepted": "spec_decode_num_accepted_tokens.draft",
    }
    return {short: report.get(name, 0.0) for short, name in names.items()}


@contextmanager
def draft(asked: argparse.Namespace, folder: Path) -> Iterator[str]:
    """The address of a draft that lives meanwhile."""
    address = f"ipc://{folder}/draft.sock"
    words = [sys.executable, "-m", "ssd", "draft", "--model", str(asked.draft), "--dtype", asked.dtype]
    with subprocess.Popen([*words, "--listen", address, "--lifeline"], stdin=subprocess.PIPE) as process:
        try:
            yield address
        finally:
            process.kill()


def side(asked: argparse.Namespace, into: Path, address: str = "") -> tuple[list[Text], dict[str, float]]:
    """The texts of one vLLM, and what was drafted."""
    own = ["--into", str(into), *(["--address", address] if address else [])]
    environment = {
        **os.environ,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    command = [sys.executable, "-m", "benchmarks.vllm_equality", *sys.argv[1:], *own]
    subprocess.run(command, check=True, env=environment)
    *lines, drafted = [json.loads(line) for line in into.read_text().splitlines()]
    return [Text.read(line) for line in lines], drafted


def compared(stock: Sequence[Text], attached: Sequence[Text]) -> dict[float, list[Difference]]:
    """The differences at each temperature."""
    found, size = dict[float, list[Difference]](), len(PROMPTS)
    for number, temperature in enumerate(TEMPERATURES):
        part = slice(number * size, (number + 1) * size)
        pairs = enumerate(zip(stock[part], attached[part], strict=True))
        differences = [Difference.between(one, other, temperature, prompt) for prompt, (one, other) in pairs]
        found[temperature] = [each for each in differences if each is not None]
    return found


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--max-model-len", type=int, default=512)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--head-dtype", default="", help="float32: fewer ties in bfloat16")
    parser.add_argument("--memory", type=float, default=0.6, help="vLLM's share of a GPU")
    parser.add_argument("--rounding", type=float, default=0.25, help="a larger gap of scores is no tie")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    asked = parsed()
    if asked.into is not None:
        answer(asked)
        return 0
    with tempfile.TemporaryDirectory(prefix="ssd-") as name:
        folder = Path(name)
        stock, _ = side(asked, folder / "stock")
        with draft(asked, folder) as address:
            attached, drafted = side(asked, folder / "attached", address)
    print(f"accepted {drafted['accepted']:.0f} of {drafted['drafted']:.0f} drafted tokens")
    code = 0 if drafted["accepted"] else 1
    for temperature, differences in compared(stock, attached).items():
        print(f"T = {temperature}: {len(PROMPTS) - len(differences)} of {len(PROMPTS)} texts are equal")
        for each in differences:
            is_tie = each.gap <= asked.rounding
            print(f"  {each}: {'a tie' if is_tie else 'NO TIE'}")
            code = code if is_tie else 1
    return code


if __name__ == "__main__":
    sys.exit(main())
