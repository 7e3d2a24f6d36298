"""llama.cpp's server: of the xllamacpp package, or a llama-server. Greedy, alone or with a draft model.

Takes GGUF files: converted to bfloat16, with a KV cache like that, or as they are, with llama.cpp's default.
Depends on the standard library, and on xllamacpp where no program is named. Both speak HTTP, so one way of
asking serves both. Each case has a server of its own, since how far a draft guesses is decided when it
starts; they read the same files, so the system keeps mapped weights once.
"""

import atexit
import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any


def load(job: dict[str, Any]) -> Any:
    servers = {case: _Server(job, case) for case in job["cases"]}
    _move_to(job["cores"])

    def generate(case: str, prompt: list[int], max_tokens: int, note: Any) -> dict[str, Any]:
        body = {
            "prompt": prompt, "n_predict": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True,
            "return_tokens": True, "cache_prompt": False,
        }  # fmt: skip
        for event in _events(servers[case].port, body):
            note(event.get("tokens") or [])
        return {}

    port = next(iter(servers.values())).port
    generate.versions = {"llama.cpp": _build_of(port)}  # type: ignore[attr-defined]
    return generate


def _build_of(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", "/props")
        return str(json.loads(connection.getresponse().read()).get("build_info", ""))


class _Server:
    """Of one case; it ends with this process."""

    def __init__(self, job: dict[str, Any], case: str) -> None:
        self.port = _free_port()
        cores = job["target_cores"] if case.endswith("+targetcores") else job["cores"]
        _move_to(cores)
        threads = max(1, len(cores))
        start = _start_program if job["program"] else _start_package
        self._running = start(job, self.port, case, threads)
        _await(self.port, self._running)


def _move_to(cores: list[int]) -> None:
    """What is started from now on is there too."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def _events(port: int, body: dict[str, Any]) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    with contextlib.closing(connection):
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise ValueError(f"llama.cpp refused: {answer.read(500)!r}")
        for line in answer:
            if line.startswith(b"data: ") and b"[DONE]" not in line:
                event = json.loads(line[6:])
                if "error" in event:
                    raise ValueError(f"llama.cpp failed: {event['error']}")
                yield event


def _start_program(job: dict[str, Any], port: int, case: str, threads: int) -> Any:
    command = [
        job["program"], "--model", job["model"], "--host", "127.0.0.1", "--port", str(port),
        "--ctx-size", str(job["max_model_len"]), "--parallel", "1", "--threads", str(threads),
        *(() if job["is_as_stored"] else ("--cache-type-k", "bf16", "--cache-type-v", "bf16")),
    ]  # fmt: skip
    if not case.startswith("plain"):
        lookahead = case.removeprefix("draft")
        command += [
            "--spec-type", "draft-simple", "--spec-draft-model", job["draft"],
            "--spec-draft-threads", str(threads),
            # Else llama.cpp's own default.
            *(("--spec-draft-n-max", lookahead) if lookahead else ()),
        ]  # fmt: skip
    running = subprocess.Popen(command, stdout=sys.stderr, stdin=subprocess.DEVNULL)
    atexit.register(running.terminate)
    return running


def _start_package(job: dict[str, Any], port: int, case: str, threads: int) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = job["model"]
    params.hostnames, params.port = ["127.0.0.1"], port
    params.n_ctx, params.n_parallel = job["max_model_len"], 1
    if not job["is_as_stored"]:
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_BF16
    everyone = [params.cpuparams, params.cpuparams_batch]
    if not case.startswith("plain"):
        kinds, draft = xllamacpp.common_speculative_type, params.speculative.draft
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        draft.mparams.path = job["draft"]
        draft.n_max = int(case.removeprefix("draft") or draft.n_max)
        everyone += [draft.cpuparams, draft.cpuparams_batch]
    for each in everyone:
        each.n_threads = threads
    return xllamacpp.Server(params)


def _await(port: int, server: Any, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if isinstance(server, subprocess.Popen) and server.poll() is not None:
            raise ValueError(f"llama-server ended with code {server.returncode}")
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.2)
    raise ValueError("llama.cpp's server did not become ready")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
