"""llama.cpp's server: the xllamacpp package's, or a llama-server program. Greedy, alone or with a draft model.

Takes GGUF files. Depends on the standard library, and on xllamacpp where no program is named. Both speak HTTP,
so one way of asking serves both; the draft is told per request how far to guess, 0 being not at all.
"""

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from typing import Any


def load(job: dict[str, Any]) -> Any:
    port = _free_port()
    server = _start_program(job, port) if job["program"] else _start_package(job, port)
    _await(port, server)

    def generate(case: str, prompt: list[int], max_tokens: int, note: Any) -> dict[str, Any]:
        lookahead = 0 if case == "plain" else int(case.removeprefix("draft") or 3)
        body = {
            "prompt": prompt, "n_predict": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True,
            "return_tokens": True, "cache_prompt": False, "speculative.n_max": lookahead, "speculative.n_min": 0,
        }  # fmt: skip
        for event in _events(port, body):
            note(event.get("tokens") or [])
        return {}

    # The server lives as long as what it is asked through.
    generate.server = server  # type: ignore[attr-defined]
    return generate


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


def _start_program(job: dict[str, Any], port: int) -> Any:
    threads = str(max(1, len(job["cores"])))
    command = [
        job["program"], "--model", job["model"], "--host", "127.0.0.1", "--port", str(port),
        "--ctx-size", str(job["max_model_len"]), "--parallel", "1", "--threads", threads, "--poll", "0",
        "--cache-type-k", "bf16", "--cache-type-v", "bf16",
    ]  # fmt: skip
    if job["draft"]:
        command += ["--model-draft", job["draft"], "--threads-draft", threads, "--draft-max", _longest(job)]
    # What ends this process, by its end of input, ends the server too.
    return subprocess.Popen(command, stdout=sys.stderr, stdin=subprocess.DEVNULL)


def _start_package(job: dict[str, Any], port: int) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = job["model"]
    params.hostname, params.port = "127.0.0.1", port
    params.n_ctx, params.n_parallel = job["max_model_len"], 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_BF16
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = max(1, len(job["cores"]))
    params.cpuparams.poll = params.cpuparams_batch.poll = 0
    if job["draft"]:
        kind = xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE
        params.speculative.types = [kind]
        draft = params.speculative.draft
        draft.mparams.path = job["draft"]
        draft.n_max = int(_longest(job))
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = max(1, len(job["cores"]))
        draft.cpuparams.poll = draft.cpuparams_batch.poll = 0
    return xllamacpp.Server(params)


def _longest(job: dict[str, Any]) -> str:
    return str(max(int(case.removeprefix("draft") or 3) for case in job["cases"] if case != "plain"))


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
