"""A real vLLM in this process and a real draft beside it, for programs that compare what they say.

Knows how both are started and how texts are generated; does not know what they are compared with.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from campaigns.vllm.cases import SALT
from ssd.integrations.vllm import Runner, arguments

_ABORTED_AFTER = 4
"""Steps."""
_BLOCK_SIZE = 32
"""Tokens in a block of the KV cache: the fewest that vLLM's attention for CPUs takes."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a vLLM is started with."""

    target: Path
    dtype: str = "float32"
    head_dtype: str = ""
    lookahead: int = 4
    padded: bool = False
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    at_once: int = 8
    runner: Runner = "v1"
    is_async: bool = False
    """With vLLM's V2 runner: asynchronous scheduling."""
    kv_blocks: int = 0
    """In vLLM's KV cache: with few of them vLLM preempts requests. 0: plenty."""

    @property
    def ranks(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    def settings(self) -> dict[str, Any]:
        chosen = {
            "model": str(self.target),
            "dtype": self.dtype,
            "enforce_eager": True,
            "max_model_len": 1024,
            "max_num_seqs": self.at_once,
            # Prompts are read in chunks.
            "max_num_batched_tokens": 8 * max(self.at_once, 4),
            "disable_log_stats": False,
            "tensor_parallel_size": self.tensor_parallel,
            "pipeline_parallel_size": self.pipeline_parallel,
            "async_scheduling": self.is_async,
            # vLLM finds a common prefix by whole blocks; for CPUs it would choose blocks of 128 tokens.
            "block_size": _BLOCK_SIZE,
        }
        if self.kv_blocks:
            # vLLM requires that the longest text fits; it keeps a block for itself.
            longest = _BLOCK_SIZE * (self.kv_blocks - 1)
            chosen |= {"num_gpu_blocks_override": self.kv_blocks, "max_model_len": longest}
        return chosen | ({"hf_overrides": {"head_dtype": self.head_dtype}} if self.head_dtype else {})


def prepare(ranks: int) -> None:
    """Before vLLM is imported: its cores are the first ones, as many as it has ranks."""
    cores = sorted(os.sched_getaffinity(0))[:ranks]
    os.environ.update({**ENVIRONMENT, "VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, cores))})
    # It was imported before its variable was set, and would compute on the draft's core too.
    torch.set_num_threads(1)


class Draft:
    def __init__(self, model: Path, dtype: str) -> None:
        self.address = f"ipc://{tempfile.mkdtemp(prefix='ssd-')}/draft.sock"
        core = max(os.sched_getaffinity(0))
        self._command = [sys.executable, "-m", "ssd", "draft", "--model", str(model), "--dtype", dtype]
        self._command += ["--listen", self.address, "--cores", str(core)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # It ends with this program, however that ends.
        command = [*self._command, "--lifeline"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class StockTarget:
    """vLLM with nothing of ours in it."""

    def __init__(self, setup: Setup, **more: Any) -> None:
        from vllm import LLM

        self.setup = setup
        self._num_calls = 0
        self._llm = LLM(**setup.settings(), **more)

    def generate(self, prompts: Sequence[str], params: Sequence[Mapping[str, Any]]) -> list[list[int]]:
        """What `shown` keeps of each prompt's texts; ids of requests are their numbers.

        Under asynchronous scheduling no id comes again: a step of its last request may still be in flight.
        """
        engine = self._llm.llm_engine
        self._num_calls += 1
        prefix = f"{self._num_calls}-" if self.setup.is_async else ""
        ids = [f"{prefix}{number}" for number in range(len(prompts))]
        for request_id, prompt, each in zip(ids, prompts, params, strict=True):
            engine.add_request(request_id, prompt, _sampling(each))
        aborted = [request_id for request_id, each in zip(ids, params, strict=True) if each.get("is_aborted")]
        texts = dict[tuple[str, int], list[int]]()
        num_steps = 0
        while engine.has_unfinished_requests():
            for found in engine.step():
                for output in found.outputs:
                    texts[found.request_id, output.index] = shown(output)
            self._after_step()
            num_steps += 1
            if aborted and num_steps == _ABORTED_AFTER:
                engine.abort_request(aborted)
        return [
            list(chain.from_iterable(texts[key] for key in sorted(texts) if key[0] == request_id))
            for request_id in ids
            if request_id not in aborted
        ]

    def counted(self) -> dict[str, float]:
        """How often vLLM has preempted a request, and how many tokens it found in its prefix cache."""
        wanted = {"vllm:num_preemptions": "preempted", "vllm:prefix_cache_hits": "prefix hits"}
        metrics = self._llm.llm_engine.get_metrics()
        return {wanted[each.name]: each.value for each in metrics if each.name in wanted}

    def prompt_lengths(self, prompts: Sequence[str]) -> list[int]:
        return [len(self._llm.get_tokenizer().encode(each)) for each in prompts]

    def _after_step(self) -> None:
        pass


class Target(StockTarget):
    def __init__(self, setup: Setup, address: str, *, patience: float = 0.0) -> None:
        """`patience`: seconds that a step waits for the draft's word, where it may get no turn."""
        settings = {"backup": "none", "salt": SALT, "padded": setup.padded}
        ours = arguments(address, lookahead=setup.lookahead, runner=setup.runner, **settings)
        super().__init__(setup, **ours)
        self._patience, self._is_attached = patience, True

    def attach(self) -> None:
        self._is_attached = True
        self._llm.collective_rpc("ssd_attach")

    def detach(self) -> None:
        self._is_attached = False
        self._llm.collective_rpc("ssd_detach")

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

    def _after_step(self) -> None:
        if not self._is_attached or not self._patience:
            return
        deadline, before = time.monotonic() + self._patience, self.report()
        while time.monotonic() < deadline and (now := self.report())["draft_up"]:
            # The first may have been on its way before the draft heard of this step.
            if now["draft_frames"] > before["draft_frames"] + 1:
                return
            time.sleep(0.01)


def shown(output: Any) -> list[int]:
    """What two runs must have in common: tokens, and the likeliest ones if log-probabilities are asked for.

    Of a text that a stop string has ended, the characters: how many tokens are sampled beyond it is up to the
    step.
    """
    if output.finish_reason == "stop" and isinstance(output.stop_reason, str):
        return list(output.text.encode())
    likeliest = [token for each in output.logprobs or () for token in each]
    return [*output.token_ids, *likeliest]


def _sampling(params: Mapping[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    given = {"ignore_eos": True, **params}
    given.pop("is_aborted", None)
    if "regex" in given:
        given["structured_outputs"] = StructuredOutputsParams(regex=given.pop("regex"))
    return SamplingParams(**given)
