"""Where settings come from: flags, files, vLLM's JSON, defaults; and which of them wins."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from ssd.cli.engine_options import EngineOptions
from ssd.cli.errors import user_errors
from ssd.cli.main import app as ssd_app
from ssd.cli.options import with_options
from ssd.cli.sampling_options import SamplingOptions
from ssd.cli.server_options import ServerOptions
from ssd.config import EngineConfig
from ssd.server.config import ServerConfig

app = typer.Typer(pretty_exceptions_enable=False)


@app.command()
@with_options
def show(
    words: Annotated[list[str] | None, typer.Option()] = None,
    *,
    engine: EngineOptions,
    sampling: SamplingOptions,
) -> None:
    with user_errors():
        config = dataclasses.asdict(engine.engine_config())
        typer.echo(json.dumps({**config, "words": words, "temperature": sampling.temperature}))


@app.command()
def other() -> None:
    """A second command, so that files can have sections."""


@app.command("draft")
def same_name() -> None:
    """A command that is called as an option is: `ssd draft` and --draft."""


def run(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["show", *arguments])
    assert result.exit_code == 0, result.stderr
    return dict(json.loads(result.stdout))


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["show", *arguments])
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.replace("│", " ").split())


def config_file(folder: Path, content: str, suffix: str = ".yaml") -> str:
    path = folder / f"settings{suffix}"
    path.write_text(content)
    return str(path)


def test_nothing_said_is_the_engines_own_default() -> None:
    expected = dataclasses.asdict(EngineConfig(model="m"))
    shown = run("m")
    assert {name: shown[name] for name in expected} == json.loads(json.dumps(expected))


def test_every_setting_of_the_engine_has_a_flag() -> None:
    ours = {field.name for field in dataclasses.fields(EngineOptions)}
    # `seed` means the request's own where a command asks for text itself.
    assert {field.name for field in dataclasses.fields(EngineConfig)} - ours == {"seed"}


def test_flags_as_vllm_spells_them() -> None:
    shown = run(
        *("--model", "m", "--max-model-len", "99", "--max-num-seqs", "3", "--max-num-batched-tokens", "77"),
        *("--block-size", "32", "--no-enable-prefix-caching", "--no-enable-chunked-prefill"),
        *("--dtype", "float32", "--tensor-parallel-size", "1", "--download-dir", "/there"),
    )
    said = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "hf_cache", "dtype")
    assert [shown[name] for name in said] == [99, 3, 77, 32, "/there", "float32"]
    assert not shown["enable_prefix_caching"]
    assert not shown["enable_chunked_prefill"]


def test_a_draft_alone_works_ahead_and_takes_its_flags() -> None:
    shown = run(
        *("m", "--draft", "d", "--acceptance", "ratio", "--saguaro", "0.5", "--backup", "ngram"),
        *("--growth", "uniform", "--draft-device", "cuda:1", "--draft-cores", "2-3"),
    )
    said = ("mode", "acceptance", "saguaro", "backup", "growth", "draft_device", "draft_cores")
    assert [shown[name] for name in said] == ["ssd", "ratio", 0.5, "ngram", "uniform", "cuda:1", [2, 3]]


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        (".yaml", "model: m\nmax-num-seqs: 5\ncores: [0, 1]\ndeterministic: true\nwords: [a, b]\n"),
        (".toml", 'model = "m"\nmax_num_seqs = 5\ncores = "0,1"\ndeterministic = true\nwords = ["a", "b"]\n'),
    ],
)
def test_files_are_under_the_command_line_and_over_the_defaults(
    tmp_path: Path, suffix: str, content: str
) -> None:
    file = config_file(tmp_path, content, suffix)
    shown = run("--config", file)
    assert (shown["model"], shown["max_num_seqs"], shown["cores"]) == ("m", 5, [0, 1])
    assert shown["deterministic"]
    assert shown["words"] == ["a", "b"]
    assert shown["block_size"] == 16
    over = run("--config", file, "--max-num-seqs", "6", "--no-deterministic", "--cores", "2")
    assert (over["max_num_seqs"], over["deterministic"], over["cores"]) == (6, False, [2])


def test_a_section_is_for_its_command(tmp_path: Path) -> None:
    file = config_file(tmp_path, "model: m\nshow:\n  temperature: 0.7\nother:\n  port: 1\n")
    assert run("--config", file)["temperature"] == 0.7


def test_an_option_may_be_called_as_a_command_is(tmp_path: Path) -> None:
    assert run("--config", config_file(tmp_path, "model: m\ndraft: d\n"))["draft"] == "d"
    assert run("--config", config_file(tmp_path, "model: m\ndraft:\n  port: 1\n"))["draft"] is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("max-num-sqs: 5", "'max-num-sqs' is no option of `ssd show`: did you mean 'max_num_seqs'?"),
        ("banana: 5", "'banana' is no option"),
        ("config: other.yaml", "'config' is no option"),
        ("show:\n  banana: 1", "'banana' is no option"),
        ("- a\n- b", "one option a line"),
        ("a: [", "cannot be read"),
        ("max-num-seqs: many", "'--max-num-seqs'"),
        ("mode: fast", "'fast'"),
        ("speculative-config: {model: d, tree: 1}", "'tree' has no meaning here"),
    ],
)
def test_files_that_are_wrong_are_refused_by_name(tmp_path: Path, content: str, message: str) -> None:
    assert message in refusal("m", "--config", config_file(tmp_path, content))


def test_every_command_takes_a_file(tmp_path: Path) -> None:
    file = config_file(tmp_path, "model: /nowhere\nlisten: ipc:///tmp/never\n")
    result = CliRunner().invoke(ssd_app, ["draft", "--config", file])
    assert "no model at /nowhere" in result.stderr
    for line in ("config: x", "banana: 1"):
        result = CliRunner().invoke(ssd_app, ["draft", "--config", config_file(tmp_path, line)])
        assert "is no option of `ssd draft`" in result.stderr


def test_files_that_are_missing_or_of_another_kind_are_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal("m", "--config", str(tmp_path / "none.yaml"))
    assert "name it .yaml or .toml" in refusal("m", "--config", config_file(tmp_path, "{}", ".json"))


def test_vllms_speculative_config() -> None:
    text = json.dumps({"model": "d", "num_speculative_tokens": 5, "method": "draft_model"})
    shown = run("m", "--speculative-config", text)
    assert (shown["draft"], shown["lookahead"], shown["mode"]) == ("d", 5, "sd")
    assert run("m", "--speculative-config", '{"model": "d"}')["mode"] == "ssd"
    assert run("m", "--speculative-config", text, "--lookahead", "3")["lookahead"] == 3


@pytest.mark.parametrize("order", [1, -1])
def test_speculative_config_on_the_command_line_is_over_a_file(tmp_path: Path, order: int) -> None:
    file = config_file(tmp_path, "lookahead: 2\nspeculative-config: {model: file, method: draft_model}\n")
    pairs = [("--config", file), ("--speculative-config", '{"model": "line"}')]
    shown = run("m", *(word for pair in pairs[::order] for word in pair))
    assert (shown["draft"], shown["lookahead"], shown["mode"]) == ("line", 2, "sd")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("3", "is an object"),
        ('{"method": "eagle"}', "method 'eagle' is not supported"),
        ('{"model": "d", "disable_by_batch_size": 4}', "'disable_by_batch_size' has no meaning here"),
        ('{"model": "d", "draft_tensor_parallel_size": 2}', "draft_tensor_parallel_size must be 1"),
    ],
)
def test_speculative_configs_that_are_wrong_are_refused_by_name(text: str, message: str) -> None:
    assert message in refusal("m", "--speculative-config", text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no model is named"),
        (("a", "--model", "b"), "two models, a and b"),
        (("m", "--tensor-parallel-size", "2"), "our own target runs on one device so far"),
        (("m", "--draft-cores", "x"), "numbers and ranges"),
        (("m", "--growth", "wild"), "'wild'"),
        (("m", "--saguaro", "0.5"), "needs acceptance='ratio'"),
    ],
)
def test_flags_that_are_wrong_say_what_to_do(arguments: tuple[str, ...], message: str) -> None:
    assert message in refusal(*arguments)


def test_the_cache_of_the_hub_comes_from_the_environment() -> None:
    result = CliRunner().invoke(app, ["show", "m"], env={"SSD_HF_CACHE": "/cache"})
    assert json.loads(result.stdout)["hf_cache"] == "/cache"


def test_help_groups_options_and_shows_examples() -> None:
    text = CliRunner().invoke(ssd_app, ["generate", "--help-all"], env={"COLUMNS": "220"}).stdout
    for part in ("Drafting", "Memory and batching", "Sampling", "Examples:", "Default 2048", "SSD_HF_CACHE"):
        assert part in text


@pytest.mark.parametrize(
    ("flags", "variables", "keys"),
    [
        ((), {}, ()),
        (("--api-key", "a", "--api-key", "b"), {}, ("a", "b")),
        ((), {"SSD_API_KEY": "c"}, ("c",)),
    ],
)
def test_keys_come_from_flags_or_the_environment(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], variables: dict[str, str], keys: tuple[str, ...]
) -> None:
    served: list[ServerConfig] = []

    def serve(_engine: EngineConfig, server: ServerConfig) -> int:
        served.append(server)
        return 0

    monkeypatch.setattr("ssd.server.run.run_server", serve)
    monkeypatch.delenv("SSD_API_KEY", raising=False)
    result = CliRunner().invoke(ssd_app, ["serve", "m", "--engine", "ssd", *flags], env=variables)
    assert result.exit_code == 0, result.output
    assert [each.api_keys for each in served] == [keys]


def test_s8_an_empty_key_in_the_environment_opens_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSD_API_KEY", "")
    with pytest.raises(ValueError, match="SSD_API_KEY is set but empty"):
        ServerOptions(host="0.0.0.0").settings()
    monkeypatch.delenv("SSD_API_KEY")
    assert ServerOptions(host="0.0.0.0").settings()["api_keys"] == ()
