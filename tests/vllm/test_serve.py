"""`ssd serve --engine vllm` with the real vLLM, as clients see it: the official openai client, one server.

Needs vLLM beside this package, and SmolLM2 as a folder (SSD_TEST_MODELS/folders/smollm2).
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from tests.processes import is_alive

pytest.importorskip("openai")
pytest.importorskip("httpx")
from tests.server.process import ServerProcess, children_of, free_port, until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
_START_SECONDS = 400
PROMPT = "The three largest cities of France are"


def folder() -> Path:
    found = Path(os.environ.get("SSD_TEST_MODELS", ".")) / "folders" / "smollm2"
    if not (found / "config.json").exists():
        pytest.skip("no folder of SmolLM2: make folders/smollm2 in SSD_TEST_MODELS")
    try:
        version("vllm")
    except PackageNotFoundError:
        pytest.skip("vLLM is not installed as a package `vllm`")
    return found


class Served(ServerProcess):
    """As our own server, without what only that one tells."""

    @property
    def said(self) -> str:
        return self._log.read_text()

    def counted(self, name: str, **labels: str) -> float:
        """The sum of a counter over all its lines with these labels."""
        total = 0.0
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith((f"{name}{{", f"{name} ")) and all(
                f'{label}="{value}"' in line for label, value in labels.items()
            ):
                total += float(line.rpartition(" ")[2])
        return total

    def draft_pid(self) -> int:
        [pid] = [each for each in self.children if "--lifeline" in _command(each)]
        return pid


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def start(log: Path, temporary: Path) -> Served:
    port = free_port()
    command = [
        *(sys.executable, "-m", "ssd", "serve", str(folder()), "--draft", str(folder())),
        *("--engine", "vllm", "--port", str(port), "--served-model-name", "smol", "--dtype", "float32"),
        *("--max-model-len", "1024", "--max-num-seqs", "8", "--kv-cache-bytes", str(400 << 20)),
        *("--api-key", "secret", "--drain-seconds", "5", "--", "--enforce-eager"),
    ]
    temporary.mkdir(exist_ok=True)
    with log.open("w") as sink:
        process = subprocess.Popen(
            command, stdout=sink, stderr=sink, text=True, env={**os.environ, "TMPDIR": str(temporary)}
        )
    return Served(process, f"http://127.0.0.1:{port}", log, "secret")


def is_healthy(server: Served) -> bool:
    import httpx

    with contextlib.suppress(httpx.TransportError):
        return server.http.get("/health").status_code == 200
    return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("served")
    found = start(place / "log", place / "tmp")
    try:
        until(lambda: is_healthy(found) or found.process.poll() is not None, seconds=_START_SECONDS)
        assert found.process.poll() is None, found.said
        until(lambda: has_draft(found), seconds=120)
        yield found
    finally:
        pids = found.children
        code = found.end()
    until(lambda: not any(map(is_alive, pids)))
    assert code == 0, found.said
    assert "secret" not in found.said
    assert list((place / "tmp").glob("ssd-*")) == []


def ask(server: Served, **more: Any) -> Any:
    usual = {"model": "smol", "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    return server.openai.completions.create(**{**usual, **more})


def has_draft(server: Served) -> bool:
    """By the worker's own word, which it renews with every step."""
    ask(server, max_tokens=2)
    return server.counted("ssd_draft_up") == 1


def test_who_has_no_key_does_not_come_in(server: Served) -> None:
    import httpx

    assert httpx.get(f"{server.url}/v1/models").status_code == 401
    assert [model.id for model in server.openai.models.list()] == ["smol"]


def test_the_draft_is_used_and_counted(server: Served) -> None:
    names = ("ssd_spec_sessions_opened_total", "ssd_rounds_total", "vllm:generation_tokens_total")
    before = [server.counted(name) for name in names]
    for _ in range(4):
        ask(server, max_tokens=48, extra_body={"ignore_eos": True})
    opened, rounds, tokens = (server.counted(name) - was for name, was in zip(names, before, strict=True))
    assert opened == 4
    assert tokens == 4 * 48
    # Some were drafted, by the model or by the text itself, and taken: fewer verifications than tokens.
    assert server.counted("ssd_spec_decode_num_accepted_tokens_total") > 0
    assert rounds < tokens


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a_stream_is_the_whole_answer_in_pieces(server: Served, temperature: float) -> None:
    whole = ask(server, temperature=temperature, seed=5)
    stream = ask(server, temperature=temperature, seed=5, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].text
    assert chunks[-1].usage.completion_tokens == 24
    assert len(chunks) > 3


def test_logprobs_are_those_of_the_tokens(server: Served) -> None:
    choice = ask(server, logprobs=3).choices[0]
    assert "".join(choice.logprobs.tokens) == choice.text
    for token, chance, top in zip(
        choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True
    ):
        assert chance == max(top.values()) == top[token]


def test_a_json_schema_is_kept(server: Served) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Lyon"]}, "people": {"type": "integer"}},
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    answer = server.openai.chat.completions.create(
        model="smol",
        messages=[{"role": "user", "content": "Name a city of France and how many people live there."}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "city", "schema": schema, "strict": True},
        },
        max_tokens=200,
        temperature=0.7,
        seed=1,
    )
    assert answer.choices[0].finish_reason == "stop"
    found = json.loads(answer.choices[0].message.content or "")
    assert found["city"] in ("Paris", "Lyon")
    assert isinstance(found["people"], int)


def test_two_answers_to_one_prompt(server: Served) -> None:
    answers = [ask(server, n=2, temperature=1, seed=4) for _ in range(2)]
    texts = [[choice.text for choice in answer.choices] for answer in answers]
    assert len(texts[0]) == 2
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]


def test_stop_strings_end_a_text(server: Served) -> None:
    whole = ask(server).choices[0].text
    stop = whole[len(whole) // 2 :][:3]
    choice = ask(server, stop=[stop]).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.text == whole[: whole.index(stop)]


def test_an_abort_leaves_nothing_behind(server: Served) -> None:
    for _ in range(3):
        stream = ask(server, max_tokens=900, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
    until(lambda: server.counted("vllm:num_requests_running") == 0)
    ask(server)
    assert server.counted("ssd_spec_sessions") <= 1  # The last one: it hears of an end with the next step.


def test_vllm_goes_on_while_the_draft_is_away(server: Served) -> None:
    expected = ask(server, temperature=0.9, seed=2, max_tokens=64).choices[0].text
    pid, vllm = server.draft_pid(), [each for each in server.children if "EngineCore" in _command(each)]
    connects = server.counted("ssd_draft_connects")
    os.kill(pid, signal.SIGKILL)
    assert ask(server, temperature=0.9, seed=2, max_tokens=64).choices[0].text == expected
    until(lambda: server.draft_pid() != pid, seconds=60)
    until(lambda: has_draft(server) and server.counted("ssd_draft_connects") == connects + 1, seconds=120)
    assert ask(server, temperature=0.9, seed=2, max_tokens=64).choices[0].text == expected
    assert all(map(is_alive, vllm))
    assert "the draft ended with code -9 and is started again; vLLM goes on" in server.said


@pytest.mark.parametrize(
    ("number", "seconds"), [(signal.SIGTERM, 3.0), (signal.SIGINT, 9.0), (signal.SIGKILL, 12.0)]
)
def test_ended_while_it_starts_it_leaves_nothing(
    tmp_path: Path, number: signal.Signals, seconds: float
) -> None:
    server = start(tmp_path / "log", tmp_path / "tmp")
    seen: set[int] = set()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        seen.update(children_of(server.process.pid))
        time.sleep(0.05)
    server.process.send_signal(number)
    code = server.process.wait(60)
    assert code == (0 if number != signal.SIGKILL else -signal.SIGKILL) or not seen, server.said
    until(lambda: not any(map(is_alive, seen)), seconds=30)
    assert list((tmp_path / "tmp").glob("ssd-*")) == []
