"""The program that each engine runs in: reads a job and prompts as JSON lines, answers with tokens and times.

    PYTHON worker.py ENGINE

Run by the engine's own interpreter, which needs nothing of this project except for `ssd` itself. For each
engine there is `load_ENGINE(job)`, which imports its packages only and returns `generate(case, prompt,
max_tokens, note)`: greedy, one text, no prefix cache, end tokens ignored. `note(token_ids)` is called as they
come, and the clock is here; `generate` may return times of its own.

Standard input: the job, then {"case", "prompt", "max_tokens"} lines. Standard output: {"ready": versions},
then one answer for each line; {"error": …} if the engine refuses. Between questions it may be stopped, with
all that it started.
"""

import atexit
import contextlib
import ctypes
import http.client
import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1


class Clock:
    """When tokens came. The first burst is left out of the time per token: it waited for the prompt."""

    def __init__(self) -> None:
        self._started = self._last = time.perf_counter()
        self._tokens: list[int] = []
        self._first: tuple[float, int] | None = None

    def note(self, token_ids: Sequence[int]) -> None:
        if not token_ids:
            return
        self._last = time.perf_counter()
        self._tokens.extend(token_ids)
        self._first = self._first or (self._last, len(token_ids))

    def answer(self) -> dict[str, Any]:
        """`later`: after the first burst."""
        if self._first is None:
            raise ValueError("the engine made no token")
        first, num_first = self._first
        return {
            "tokens": self._tokens,
            "first_token": first - self._started,
            "seconds_later": self._last - first,
            "num_later": len(self._tokens) - num_first,
        }


def load_ssd(job: dict[str, Any]) -> Any:
    """All cases on one target. Times are the engine's own: from the request to its first token, and on."""
    from ssd.bench.cases import parse_case
    from ssd.bench.engines import CaseEngines
    from ssd.config import DraftConfig, EngineConfig

    cases = {name: parse_case(name) for name in job["cases"]}
    config = EngineConfig(
        model=job["model"],
        dtype=job["dtype"],
        precision=job["precision"],
        max_model_len=job["max_model_len"],
        cores=tuple(job["target_cores"]),
        kv_cache_bytes=1 << 29,
    )
    draft = DraftConfig(model=job["draft"], cores=tuple(job["draft_cores"])) if job["draft"] else None
    engines = CaseEngines(config, draft, list(cases.values()))

    def generate(case: str, prompt: list[int], max_tokens: int, note: Any) -> dict[str, Any]:
        (record,) = engines.run(cases[case], [prompt], max_tokens=max_tokens, seed=0)
        note(record.tokens)
        later = len(record.tokens) - 1
        seconds = record.seconds_per_token * later
        return {"first_token": record.first_token, "seconds_later": seconds, "num_later": later}

    return generate


class _Streamer:
    """Of transformers' `generate`: hands on what comes after the prompt, in the bursts it comes in."""

    def __init__(self, note: Any) -> None:
        self._note, self._is_prompt = note, True

    def put(self, ids: Any) -> None:
        if not self._is_prompt:
            self._note(ids.flatten().tolist())
        self._is_prompt = False

    def end(self) -> None:
        pass


def load_transformers(job: dict[str, Any]) -> Any:
    """`draft4`: always four tokens; `draft`: as many as transformers itself thinks right."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(max(1, len(job["cores"])))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    unset = ("eos_token_id", "temperature", "top_p", "top_k", "repetition_penalty")

    def model_of(folder: str) -> Any:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, job["dtype"])).to(device)
        model.generation_config.update(do_sample=False, **dict.fromkeys(unset))
        return model.eval()

    target = model_of(job["model"])
    draft = model_of(job["draft"]) if job["draft"] else None
    own = {} if draft is None else draft.generation_config.to_dict()

    def with_draft(case: str) -> dict[str, Any]:
        if case == "plain" or draft is None:
            return {}
        lookahead = case.removeprefix("draft")
        fixed = {
            "num_assistant_tokens": int(lookahead or 0),
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": 0.0,
        }
        draft.generation_config.update(**(fixed if lookahead else {name: own[name] for name in fixed}))
        return {"assistant_model": draft}

    def generate(case: str, prompt: list[int], max_tokens: int, note: Any) -> dict[str, Any]:
        ids = torch.tensor([prompt], device=device)
        asked = {"max_new_tokens": max_tokens, "do_sample": False, "streamer": _Streamer(note)}
        with torch.inference_mode():
            target.generate(ids, attention_mask=torch.ones_like(ids), **asked, **with_draft(case))
        return {}

    return generate


def load_vllm(job: dict[str, Any]) -> Any:
    """One engine is one case: speculation is decided when vLLM starts."""
    import torch
    from vllm import LLM, SamplingParams

    if not torch.cuda.is_available():
        # Before the first linear: oneDNN decides once whether it may use the tiles.
        torch.cpu._init_amx()
    settings: dict[str, Any] = {}
    if (lookahead := job["cases"][0].removeprefix("draft")) != "plain":
        settings["speculative_config"] = {
            "method": "draft_model",
            "model": job["draft"],
            "num_speculative_tokens": int(lookahead),
        }
    engine = LLM(
        job["model"],
        dtype=job["dtype"],
        max_model_len=job["max_model_len"],
        max_num_seqs=1,
        max_num_batched_tokens=job["max_model_len"],
        enable_prefix_caching=False,
        seed=0,
        **settings,
    ).llm_engine
    names = iter(range(1 << 62))

    def generate(_case: str, prompt: list[int], max_tokens: int, note: Any) -> dict[str, Any]:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        engine.add_request(f"prompt-{next(names)}", {"prompt_token_ids": prompt}, params)
        seen = 0
        while engine.has_unfinished_requests():
            for output in engine.step():
                tokens = list(output.outputs[0].token_ids)
                note(tokens[seen:])
                seen = len(tokens)
        return {}

    return generate


def load_llamacpp(job: dict[str, Any]) -> Any:
    """A llama-server for each case: how far a draft guesses is decided when it starts."""
    ports = {case: _llama_server(job, case) for case in job["cases"]}

    def generate(case: str, prompt: list[int], max_tokens: int, note: Any) -> dict[str, Any]:
        body = {"prompt": prompt, "n_predict": max_tokens, "temperature": 0, "ignore_eos": True}
        body |= {"stream": True, "return_tokens": True, "cache_prompt": False}
        connection = http.client.HTTPConnection("127.0.0.1", ports[case], timeout=600)
        with contextlib.closing(connection):
            connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
            for line in connection.getresponse():
                if line.startswith(b"data: ") and b"[DONE]" not in line:
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise ValueError(f"llama.cpp failed: {event['error']}")
                    note(event.get("tokens") or [])
        return {}

    return generate


def _llama_server(job: dict[str, Any], case: str) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    threads = str(max(1, len(job["cores"])))
    command = [job["program"], "--model", job["model"], "--host", "127.0.0.1", "--port", str(port)]
    command += ["--ctx-size", str(job["max_model_len"]), "--parallel", "1", "--threads", threads]
    if not job["is_as_stored"]:
        command += ["--cache-type-k", "bf16", "--cache-type-v", "bf16"]
    if case != "plain":
        command += ["--spec-type", "draft-simple", "--spec-draft-model", job["draft"]]
        command += ["--spec-draft-threads", threads]
        lookahead = case.removeprefix("draft")
        command += ["--spec-draft-n-max", lookahead] if lookahead else []
    running = subprocess.Popen(command, stdout=sys.stderr, stdin=subprocess.DEVNULL, env={**os.environ})
    atexit.register(running.terminate)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        if running.poll() is not None:
            raise ValueError(f"llama-server ended with code {running.returncode}")
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return port
        time.sleep(0.2)
    raise ValueError("llama-server did not become ready")


def version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "?"


def main() -> None:
    if sys.platform == "linux":
        # If the run is killed while this process is stopped, it goes on and reads the end of its input.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGCONT))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # What the engine prints goes to the log.
    job = json.loads(sys.stdin.readline())
    if job["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, job["cores"])
    generate: Callable[..., dict[str, Any]] | None = None

    def load() -> dict[str, Any]:
        nonlocal generate
        generate = globals()[f"load_{sys.argv[1]}"](job)
        return {"ready": {package: version_of(package) for package in job["packages"]}}

    def measure(asked: dict[str, Any]) -> dict[str, Any]:
        assert generate is not None
        clock = Clock()
        more = generate(asked["case"], asked["prompt"], asked["max_tokens"], clock.note)
        return {**clock.answer(), **more}

    def tried(action: Callable[..., dict[str, Any]], *what: Any) -> str:
        try:
            return json.dumps(action(*what)) + "\n"
        except Exception as error:
            traceback.print_exc()
            return json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n"

    answers.write(tried(load))
    for line in sys.stdin if generate else ():
        answers.write(tried(measure, json.loads(line)))
    # What it started may still be stopped, and would not hear that it has to end.
    os.killpg(os.getpgrp(), signal.SIGCONT)


if __name__ == "__main__":
    main()
