"""Real vLLM with a real draft in one process after the other: are all tokens those of the same worker alone?

    python -m tests.vllm.equality --target FOLDER --draft FOLDER --record FILE.jsonl

One vLLM serves both sides of each case, with the draft detached and attached, so that nothing else differs.
Cases that the record holds already are not run again. `--faults N` also kills the draft N times under load.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Numbers: 1 2 3 4 5 6 7",
    "Once upon a time there was a",
    "Write a haiku about the sea.",
    "import os\nimport sys\n\ndef main():\n",
    "The three laws of motion are",
    "Q: What is the boiling point of water?\nA:",
)
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Requests without a seed draw by their ids: those have to be the same twice.
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "passive",
    "OMP_NUM_THREADS": "1",
}


class Draft:
    def __init__(self, model: Path, dtype: str) -> None:
        self.address = f"ipc://{tempfile.mkdtemp(prefix='ssd-')}/draft.sock"
        self._command = [sys.executable, "-m", "ssd", "draft", "--model", str(model), "--dtype", dtype]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # It ends with this program, however that ends.
        command = [*self._command, "--listen", self.address, "--lifeline"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Target:
    def __init__(self, arguments: argparse.Namespace, address: str) -> None:
        from vllm import LLM

        from ssd.integrations.vllm import arguments as ssd_arguments

        settings = {"backup": "none", "salt": "equality", "padded": arguments.padded}
        self._llm = LLM(
            str(arguments.target),
            dtype=arguments.dtype,
            enforce_eager=True,
            max_model_len=256,
            max_num_seqs=len(PROMPTS),
            # Prompts are read in chunks.
            max_num_batched_tokens=8 * len(PROMPTS),
            disable_log_stats=True,
            tensor_parallel_size=arguments.tensor_parallel,
            pipeline_parallel_size=arguments.pipeline_parallel,
            **ssd_arguments(address, lookahead=arguments.lookahead, **settings),
        )
        self._num_tokens, self._prompts = arguments.tokens, PROMPTS[: arguments.prompts]
        self._patience = arguments.patience

    def report(self) -> dict[str, float]:
        """Of the one rank that has a line."""
        (found,) = [each for each in self._llm.collective_rpc("ssd_report") if each is not None]
        return dict(found)

    def wait_for_draft(self, seconds: float) -> float:
        """How long it took."""
        started = time.monotonic()
        while not self.report()["draft_up"]:
            if time.monotonic() - started > seconds:
                raise TimeoutError(f"no draft within {seconds} s")
            time.sleep(0.05)
        return time.monotonic() - started

    def _let_draft_speak(self) -> None:
        """On a machine with other work a draft may get no turn for many steps."""
        deadline, before = time.monotonic() + self._patience, self.report()
        while time.monotonic() < deadline and (now := self.report())["draft_up"]:
            # The first may have been on its way before the draft heard of this step.
            if now["draft_frames"] > before["draft_frames"] + 1:
                return
            time.sleep(0.01)

    def generate(self, params: dict[str, Any], *, attached: bool) -> tuple[list[list[int]], dict[str, float]]:
        """Tokens of each prompt, and what was counted meanwhile."""
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        params = dict(params)
        if "regex" in params:
            params["structured_outputs"] = StructuredOutputsParams(regex=params.pop("regex"))
        self._llm.collective_rpc("ssd_attach" if attached else "ssd_detach")
        before, engine = self.report(), self._llm.llm_engine
        given = SamplingParams(max_tokens=self._num_tokens, **{"ignore_eos": True, **params})
        for number, prompt in enumerate(self._prompts):
            engine.add_request(str(number), prompt, given)
        texts = dict[str, list[int]]()
        while engine.has_unfinished_requests():
            for each in engine.step():
                texts[each.request_id] = list(each.outputs[0].token_ids)
            if attached:
                self._let_draft_speak()
        after = self.report()
        counted = {name: value - before.get(name, 0) for name, value in after.items()}
        return [texts[key] for key in sorted(texts)], counted


def cases(temperatures: list[float]) -> Iterator[tuple[str, dict[str, Any]]]:
    for temperature in temperatures:
        yield f"T={temperature} seeded", {"temperature": temperature, "seed": 7}
        if temperature > 0:
            yield f"T={temperature} unseeded", {"temperature": temperature}
    yield "grammar", {"temperature": 0.8, "seed": 3, "regex": "([a-z]{1,8}[ ,])+", "ignore_eos": False}
    yield (
        "truncated, penalties, minimum",
        {"temperature": 0.9, "top_p": 0.9, "top_k": 50, "presence_penalty": 0.6, "min_tokens": 4, "seed": -2},
    )


def compared(target: Target, params: dict[str, Any]) -> dict[str, Any]:
    alone, _ = target.generate(params, attached=False)
    drafted, counted = target.generate(params, attached=True)
    return {
        "texts": len(alone),
        "equal": sum(a == b for a, b in zip(alone, drafted, strict=True)),
        "hits": counted["spec_hits"],
        "rounds": counted["rounds"],
        "misses": {
            name: value for name, value in counted.items() if name.startswith("spec_misses") and value
        },
        "drafted": counted.get("spec_decode_num_draft_tokens.draft", 0),
        "accepted": counted.get("spec_decode_num_accepted_tokens.draft", 0),
        "padding": counted["spec_padding_tokens"],
    }


def survived(target: Target, draft: Draft) -> dict[str, Any]:
    """Killed while texts are under way, and back: tokens unchanged, and hits return."""
    params = {"temperature": 0.7, "seed": 11}
    alone, _ = target.generate(params, attached=False)
    killer = threading.Timer(0.5, draft.kill)
    killer.start()
    orphaned, _ = target.generate(params, attached=True)
    killer.join()
    away, counted_away = target.generate(params, attached=True)
    draft.start()
    seconds = target.wait_for_draft(60)
    back, counted = target.generate(params, attached=True)
    return {
        "texts": 3 * len(alone),
        "equal": sum(a == b for texts in (orphaned, away, back) for a, b in zip(alone, texts, strict=True)),
        "hits while away": counted_away["spec_hits"],
        "hits": counted["spec_hits"],
        "seconds until back": round(seconds, 1),
    }


def _results(
    arguments: argparse.Namespace, target: Target, draft: Draft, known: set[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, params in cases(arguments.temperatures):
        if name not in known:
            yield name, compared(target, params)
    for number in range(arguments.faults):
        if f"fault {number}" not in known:
            yield f"fault {number}", survived(target, draft)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--lookahead", type=int, default=4)
    parser.add_argument("--temperatures", type=float, nargs="*", default=[0.0, 0.7, 1.0])
    parser.add_argument("--faults", type=int, default=0)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--pipeline-parallel", type=int, default=1)
    parser.add_argument("--padded", action="store_true")
    parser.add_argument("--patience", type=float, default=0.0, help="seconds that a step waits for a word")
    arguments = parser.parse_args()
    num_ranks = arguments.tensor_parallel * arguments.pipeline_parallel
    binding = "nobind" if num_ranks == 1 else "|".join(map(str, range(num_ranks)))
    os.environ.update({**ENVIRONMENT, "VLLM_CPU_OMP_THREADS_BIND": binding})
    known = set[str]()
    if arguments.record.is_file():
        known = {json.loads(line)["case"] for line in arguments.record.read_text().splitlines()}
    draft = Draft(arguments.draft, arguments.dtype)
    draft.start()
    try:
        target = Target(arguments, draft.address)
        target.wait_for_draft(120)
        for name, found in _results(arguments, target, draft, known):
            with arguments.record.open("a") as file:
                file.write(json.dumps({"case": name, **found}) + "\n")
    finally:
        draft.kill()


if __name__ == "__main__":
    main()
