"""`ssd generate`: once in a process of its own, as a user runs it; else in this one, which is loaded."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from ssd import LLM, SamplingParams
from ssd.cli import chat_local
from ssd.cli.chat_talk import Piece
from ssd.cli.explain import coloured, explain_stream, legend
from ssd.cli.main import app
from ssd.cli.options import parse_cores
from ssd.engine.outputs import EngineStats, Increment, SpeculationStats
from ssd.engine.prompts import Prompt
from ssd.processes.terminal import escaped
from ssd.version import __version__


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ssd", *arguments], capture_output=True, text=True, timeout=120
    )


def ssd(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def test_generate_prints_text_and_speed(tiny_llama: Path) -> None:
    result = program("generate", "--model", str(tiny_llama), "--prompt", "The quick", "--max-tokens", "8")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("The quick")
    assert "8 tokens in" in result.stderr


def test_generate_json_is_one_object_a_prompt(tiny_llama: Path) -> None:
    result = ssd(
        *("generate", "--model", str(tiny_llama), "--prompt", "The", "--prompt", "def", "--json"),
        *("--max-tokens", "3", "--n", "2", "--temperature", "1", "--seed", "4", "--logprobs", "1"),
    )
    assert result.exit_code == 0, result.stderr
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert (first["prompt"], second["prompt"]) == ("The", "def")
    assert len(first["outputs"]) == 2
    completion = first["outputs"][0]
    assert len(completion["token_ids"]) == len(completion["logprobs"]) == 3
    assert first["timings"]["per_output_token"] > 0


def test_generate_reads_standard_input_without_its_line_end(tiny_llama: Path) -> None:
    arguments = ("generate", "--model", str(tiny_llama), "--max-tokens", "4")
    piped = ssd(*arguments, stdin="Once upon\n").stdout
    assert piped == ssd(*arguments, "--prompt", "Once upon").stdout
    assert piped.startswith("Once upon")


def test_it_explains_its_tokens_and_writes_down_who_computed_when(tiny_llama: Path, tmp_path: Path) -> None:
    result = ssd(
        *("generate", "-m", str(tiny_llama), "-p", "Once", "--max-tokens", "12", "--draft", str(tiny_llama)),
        *("--mode", "sd", "--explain", "--trace", str(tmp_path / "trace.json")),
    )
    assert result.exit_code == 0, result.stderr
    assert "12 tokens in" in result.stdout
    assert "colours:" in result.stdout
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"verify", "draft step"} <= {event["name"] for event in events}


def test_what_is_explained_is_shown_as_it_comes(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with LLM(str(tiny_llama), device="cpu", dtype="float32") as llm:
        stream, shown = llm.stream, f"{legend().plain}\n"

        def watched(prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Increment]:
            nonlocal shown
            written = shown
            shown = ""
            for increment in stream(prompt, params):
                # When a token comes, all before it has been shown.
                shown += capsys.readouterr().out
                assert shown == written
                written += escaped(increment.text)
                yield increment
            assert written

        monkeypatch.setattr(llm, "stream", watched)
        explain_stream(llm, "Once", SamplingParams(max_tokens=6, ignore_eos=True))
    assert "6 tokens in 6 rounds" in capsys.readouterr().out


def test_what_is_explained_does_nothing_to_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it comes, and at the end."""
    text = "a\x1b]0;title\x07b\x9b2J"
    tokenizer = SimpleNamespace(decode=lambda ids: text[: len(ids)])
    completion = SimpleNamespace(token_ids=list(range(len(text))), origins=["target"] * len(text))
    assert coloured(completion, tokenizer).plain == "a\\x1b]0;title\\x07b\\x9b2J"  # type: ignore[arg-type]

    pieces = SimpleNamespace(of=lambda increment: [Piece(text, "target", 1)])
    monkeypatch.setattr(chat_local, "Pieces", lambda tokenizer, ids: pieces)
    increment = SimpleNamespace(trees=[], token_ids=[1])
    stats = EngineStats(SpeculationStats(), 1, 1.0, 1.0, 0.0, None)
    llm = SimpleNamespace(tokenizer=tokenizer, stream=lambda *said: iter([increment]), stats=stats)
    explain_stream(llm, [1], SamplingParams())  # type: ignore[arg-type]
    assert capsys.readouterr().out.splitlines()[1] == "a\\x1b]0;title\\x07b\\x9b2J"


def test_version() -> None:
    assert ssd("--version").stdout.strip() == f"ssd {__version__}"


def test_core_lists() -> None:
    assert parse_cores("") == ()
    assert parse_cores("0,2-4") == (0, 2, 3, 4)
