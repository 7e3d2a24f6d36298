"""Where settings come from: flags, files, vLLM's JSON, defaults; and which of them wins."""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from ssd.cli.config_file import ConfigFile
from ssd.cli.console import user_errors
from ssd.cli.engine_options import EngineOptions, SamplingOptions, ServerOptions, server_config
from ssd.cli.main import app as ssd_app
from ssd.cli.options import GivenSettings, SettingsOf, with_options
from ssd.config import DraftConfig, EngineConfig
from ssd.config.server import ServerConfig

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
@with_options
def served(*, engine: EngineOptions, server: ServerOptions) -> None:
    with user_errors():
        config = dataclasses.asdict(server_config(server))
        typer.echo(json.dumps({**dataclasses.asdict(engine.engine_config()), "server": config}))


@app.command()
def other() -> None:
    """A second command, so that files can have sections."""


@app.command("draft")
@with_options
def show_draft(
    listen: str = "",
    hf_cache: str | None = None,
    config: ConfigFile = None,
    *,
    options: Annotated[GivenSettings, SettingsOf(DraftConfig, without=("timeout",))],
) -> None:
    """A command that is called as a section is."""
    with user_errors():
        config_of = dataclasses.asdict(DraftConfig(**options))
        typer.echo(json.dumps({**config_of, "listen": listen, "hf_cache": hf_cache}))


def run(*arguments: str, command: str = "show") -> dict[str, Any]:
    result = CliRunner().invoke(app, [command, *arguments])
    assert result.exit_code == 0, result.stderr
    return dict(json.loads(result.stdout))


def refusal(*arguments: str, command: str = "show") -> str:
    result = CliRunner().invoke(app, [command, *arguments])
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


WORDS = {
    "device": "cpu", "dtype": "float32", "mode": "ssd", "backup": "ngram",
    "precision": "int8", "growth": "geometric", "log_level": "debug", "tool_format": "hermes",
    "reasoning_format": "think", "host": "0.0.0.0",
    "weights": ("alice=4", "bob=0.5"),
}  # fmt: skip
"""Values that are not the default, where another number or text is none."""
BESIDE: dict[str, dict[str, Any]] = {
    "backup": {"mode": "ssd", "draft": "d"},
    "lookahead": {"mode": "ssd", "draft": "d"},
    "mode": {"draft": "d"},
}
"""What a setting of the engine makes no sense without."""
FLAGS = {("draft", "model"): "--draft", ("server", "api_keys"): "--api-key"}
"""All others are called as their owner and they are."""


def settings_of_all() -> Iterator[tuple[str, str, Any]]:
    for owner, config in (
        ("", EngineConfig(model="m")),
        ("server", ServerConfig()),
        ("draft", DraftConfig(model="m")),
    ):
        for field in dataclasses.fields(config):
            if (owner, field.name) not in (("", "model"), ("", "draft"), ("", "seed")):
                yield owner, field.name, another_value(field, getattr(config, field.name))


def another_value(field: "dataclasses.Field[Any]", default: Any) -> Any:
    if field.name in WORDS:
        return WORDS[field.name]
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        return type(default)(default + (16 if "tile" in field.name else -1))
    if isinstance(default, tuple):
        return ("key",) if field.name == "api_keys" else (1,)
    return 5 if str(field.type).startswith("typing.Annotated[int") else "text"


@pytest.mark.parametrize(("owner", "name", "value"), list(settings_of_all()), ids=lambda each: str(each))
def test_flag_file_and_python_mean_the_same(owner: str, name: str, value: Any, tmp_path: Path) -> None:
    """Every setting of every owner: --owner-name, `owner: {name: …}` and owner={"name": …}."""
    beside = {"draft": "d", "mode": "ssd"} if owner == "draft" and name != "model" else BESIDE.get(name, {})
    python = {**beside, name: value} if not owner else {**beside, owner: {name: value}}
    if owner == "draft":
        python = {"mode": "ssd", "draft": {"model": "d", name: value}}
    expected = dataclasses.asdict(
        EngineConfig.from_settings("m", {k: v for k, v in python.items() if k != "server"})
    )
    expected["server"] = dataclasses.asdict(ServerConfig(**python.get("server", {})))
    expected = json.loads(json.dumps(expected))
    assert (expected[owner] if owner else expected)[name] == json.loads(json.dumps(value))

    said = {"model": "m", **python}
    for key in (name, name.replace("_", "-")):
        content = json.loads(json.dumps(said).replace(f'"{name}":', f'"{key}":'))
        assert run("--config", config_file(tmp_path, yaml.safe_dump(content)), command="served") == expected

    flag = FLAGS.get((owner, name)) or f"--{f'{owner}-' if owner == 'draft' else ''}{name.replace('_', '-')}"
    if isinstance(value, bool):
        words = [flag if value else flag.replace("--", "--no-", 1)]
    else:
        words = [flag, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    others = [word for key, each in beside.items() for word in (f"--{key}", each)]
    assert run("m", *others, *words, command="served") == expected


def test_the_seed_of_a_server_is_the_engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Elsewhere --seed is the request's own, where a command asks for text itself."""
    seeds: list[int | None] = []

    def serve(engine: EngineConfig, _server: ServerConfig) -> int:
        seeds.append(engine.seed)
        return 0

    monkeypatch.setattr("ssd.server.run.run_server", serve)
    monkeypatch.setattr("ssd.models.first_look.first_look", lambda config: None)
    monkeypatch.setattr("ssd.cli.serve.refuse_taken_port", lambda server, flags: None)
    file = config_file(tmp_path, "seed: 4")
    for words in ((), ("--seed", "3"), ("--config", file)):
        result = CliRunner().invoke(ssd_app, ["serve", "org/m", "--engine", "ssd", *words])
        assert result.exit_code == 0, result.output
    assert seeds == [None, 3, 4]


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


def test_a_section_of_a_command_may_have_owners_too(tmp_path: Path) -> None:
    content = "model: m\ndraft: {model: d, width: 8}\nshow:\n  lookahead: 3\n  draft: {width: 9}\n"
    shown = run("--config", config_file(tmp_path, content))
    assert (shown["lookahead"], shown["draft"]["model"], shown["draft"]["width"]) == (3, "d", 9)


SHARED = """\
model: big
dtype: float32
max-num-seqs: 3
draft:
  model: small
  width: 8
  max-num-seqs: 2
  timeout: 3
  listen: ipc:///tmp/never
server:
  port: 1
show:
  temperature: 0.7
"""


def test_one_file_is_for_all_commands(tmp_path: Path) -> None:
    """A draft takes over from the engine what it would be given if the engine started it."""
    file = config_file(tmp_path, SHARED)
    shown, served, draft = (run("--config", file, command=name) for name in ("show", "served", "draft"))
    assert (shown["model"], shown["draft"]["model"], shown["draft"]["width"]) == ("big", "small", 8)
    assert (shown["mode"], shown["draft"]["timeout"], served["server"]["port"]) == ("ssd", 3, 1)
    said = ("model", "width", "dtype", "max_num_seqs", "listen")
    assert [draft[name] for name in said] == ["small", 8, "float32", 2, "ipc:///tmp/never"]


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ({"model": "d", "widht": 8}, "unknown setting draft.widht: did you mean 'width'?"),
        ({"width": 8}, "settings of a draft, but no draft"),
        ({"model": "d", "width": 99}, "draft.width=99: must be between 1 and 64"),
        ({"model": "d", "cores": (1,)}, "cores and draft.cores overlap"),
        (3, "draft=3: give a model's name, a dictionary of settings or a DraftConfig"),
    ],
)
def test_a_draft_that_is_wrong_is_refused_by_name(draft: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        EngineConfig.from_settings("m", {"mode": "ssd", "cores": (1,), "draft": draft})


def test_a_draft_is_a_name_settings_or_a_config() -> None:
    config = DraftConfig(model="d")
    for draft in ("d", {"model": "d"}, config):
        assert EngineConfig.from_settings("m", {"mode": "ssd", "draft": draft}).draft == config
    wide = EngineConfig.from_settings("m", {"mode": "ssd", "draft": {"model": "d", "width": 8}})
    assert wide.changed({"draft": "e"}).draft == DraftConfig(model="e", width=8), "the rest stays"
    assert wide.changed({"draft": config}).draft == config


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("max-num-sqs: 5", "'max-num-sqs' is no option of `ssd show`: did you mean 'max_num_seqs'?"),
        ("config: other.yaml", "'config' is no option"),
        ("show:\n  banana: 1", "'banana' is no option"),
        ("draft: {widht: 8}", "'draft.widht' is no option of `ssd show`: did you mean 'draft.width'?"),
        ("draft: [a, b]", "'draft' is a section"),
        ("draft-width: 8", "'draft-width' is no option of `ssd show`: did you mean 'draft.width'?"),
        ("- a\n- b", "one option a line"),
        ("a: [", "cannot be read"),
        ("max-num-seqs: many", "'--max-num-seqs'"),
        ("mode: fast", "'fast'"),
        ("speculative-config: {model: d, tree: 1}", "'tree' has no meaning here"),
    ],
)
def test_files_that_are_wrong_are_refused_by_name(tmp_path: Path, content: str, message: str) -> None:
    assert message in refusal("m", "--config", config_file(tmp_path, content))


@pytest.mark.parametrize(
    ("command", "content", "message"),
    [
        ("served", "port: 1", "'port' is no option of `ssd served`: did you mean 'server.port'?"),
        ("draft", "listen: here", "'listen' is no option of `ssd draft`: did you mean 'draft.listen'?"),
        ("draft", "port: 1", "'port' is no option of `ssd draft`"),
    ],
)
def test_what_has_an_owner_is_refused_elsewhere(
    tmp_path: Path, command: str, content: str, message: str
) -> None:
    assert message in refusal("--config", config_file(tmp_path, content), command=command)


def test_every_command_takes_a_file(tmp_path: Path) -> None:
    file = config_file(tmp_path, "model: big\ndraft:\n  model: /nowhere\n  listen: ipc:///tmp/never\n")
    result = CliRunner().invoke(ssd_app, ["draft", "--config", file])
    assert "no model at /nowhere" in result.stderr
    for line in ("config: x", "banana: 1", "draft: {banana: 1}"):
        result = CliRunner().invoke(ssd_app, ["draft", "--config", config_file(tmp_path, line)])
        assert "is no option of `ssd draft`" in result.stderr


def test_files_that_are_missing_or_of_another_kind_are_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal("m", "--config", str(tmp_path / "none.yaml"))
    assert "name it .yaml or .toml" in refusal("m", "--config", config_file(tmp_path, "{}", ".json"))


def test_vllms_speculative_config() -> None:
    text = json.dumps({"model": "d", "num_speculative_tokens": 5, "method": "draft_model"})
    shown = run("m", "--speculative-config", text)
    assert (shown["draft"]["model"], shown["lookahead"], shown["mode"]) == ("d", 5, "sd")
    assert run("m", "--speculative-config", '{"model": "d"}')["mode"] == "ssd"
    assert run("m", "--speculative-config", text, "--lookahead", "3")["lookahead"] == 3


@pytest.mark.parametrize("order", [1, -1])
def test_speculative_config_on_the_command_line_is_over_a_file(tmp_path: Path, order: int) -> None:
    file = config_file(tmp_path, "lookahead: 2\nspeculative-config: {model: file, method: draft_model}\n")
    pairs = [("--config", file), ("--speculative-config", '{"model": "line"}')]
    shown = run("m", *(word for pair in pairs[::order] for word in pair))
    assert (shown["draft"]["model"], shown["lookahead"], shown["mode"]) == ("line", 2, "sd")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("3", "is an object"),
        ('{"method": "eagle"}', "method 'eagle' is not supported"),
        ('{"model": "d", "disable_by_batch_size": 4}', "'disable_by_batch_size' has no meaning here"),
    ],
)
def test_speculative_configs_that_are_wrong_are_refused_by_name(text: str, message: str) -> None:
    assert message in refusal("m", "--speculative-config", text)


def test_the_cache_of_the_hub_comes_from_the_environment() -> None:
    result = CliRunner().invoke(app, ["show", "m"], env={"SSD_HF_CACHE": "/cache"})
    assert json.loads(result.stdout)["hf_cache"] == "/cache"


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
    monkeypatch.setattr("ssd.models.first_look.first_look", lambda config: None)
    monkeypatch.setattr("ssd.cli.serve.refuse_taken_port", lambda server, flags: None)
    monkeypatch.delenv("SSD_API_KEY", raising=False)
    result = CliRunner().invoke(ssd_app, ["serve", "org/m", "--engine", "ssd", *flags], env=variables)
    assert result.exit_code == 0, result.output
    assert [each.api_keys for each in served] == [keys]


def test_an_empty_key_in_the_environment_opens_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSD_API_KEY", "")
    with pytest.raises(ValueError, match="SSD_API_KEY is set but empty"):
        server_config({"host": "0.0.0.0"})
    monkeypatch.delenv("SSD_API_KEY")
    assert server_config({"host": "0.0.0.0"}).api_keys == ()
