"""`ssd serve --engine vllm`: the commands it makes, what it refuses, and when it is the engine."""

import json
import logging
import re
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ssd.cli import serve as serve_command
from ssd.cli import serve_vllm, vllm_flags, vllm_memory
from ssd.cli.main import app
from ssd.config import EngineConfig
from ssd.config.schema import fields_of
from ssd.config.server import ServerConfig
from ssd.integrations.vllm.pair import Programs
from ssd.models import first_look
from ssd.processes.host_memory import HostMemory
from ssd.runtime import cores
from tests.tiny import write_checkpoint

EXIT = 7


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Four cores, no GPU, a vLLM that fits, free ports, models; variables of this shell do not matter."""
    for name in ("m", "s"):
        (tmp_path / name).mkdir()
    (tmp_path / "model.Q4_K_M.gguf").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(vllm_flags, "open_port", lambda *address: socket.socket())
    monkeypatch.setattr(first_look, "first_look", lambda config: None)
    monkeypatch.setattr(cores, "physical_cores", lambda: [(core,) for core in range(4)])
    monkeypatch.setattr(serve_vllm, "visible_gpus", list)
    monkeypatch.setattr(serve_vllm, "why_missing", lambda: "")
    for name in ("VLLM_CPU_OMP_THREADS_BIND", "PROMETHEUS_MULTIPROC_DIR", "SSD_API_KEY", "SSD_HF_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    # Commands of other tests may have left a log on a standard error that ended with them.
    monkeypatch.setattr(logging.root, "handlers", [])


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Programs]:
    """The programs of each command, which are not run: they end with a code of their own."""
    found: list[Programs] = []

    def run(programs: Any) -> int:
        (tmp_path / "run").mkdir()
        found.append(programs(tmp_path / "run"))
        return EXIT

    monkeypatch.setattr(serve_vllm, "run_pair", run)
    return found


def serve(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["serve", *arguments], env={"COLUMNS": "200"})


def printed(*arguments: str) -> list[list[str]]:
    """The words of each command that would run."""
    result = serve("--engine", "vllm", "--print-commands", *arguments)
    assert result.exit_code == 0, result.output
    return commands_in(result.stdout)


def placed(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[list[str]]:
    """The words of each command that does run, on this machine."""
    monkeypatch.setattr(serve_vllm, "run_pair", lambda programs: 0)
    result = serve("--engine", "vllm", *arguments)
    assert result.exit_code == 0, result.output
    return commands_in(result.stderr.partition("By hand:")[2])


def commands_in(text: str) -> list[list[str]]:
    return [shlex.split(command.replace("\\\n", " ")) for command in text.strip().split("\n\n")]


def value(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def refusal(*arguments: str) -> str:
    result = serve(*arguments)
    assert result.exit_code == 2, result.output
    return " ".join(result.stderr.split())


def test_two_plain_commands() -> None:
    draft, vllm = printed("org/model", "--draft", "org/small")
    assert draft[:4] == ["ssd", "draft", "--model", "org/small"]
    assert vllm[:3] == ["vllm", "serve", "org/model"]
    assert value(vllm, "--host") == "127.0.0.1"
    assert value(vllm, "--port") == "8000"
    assert value(vllm, "--worker-cls") == "ssd.integrations.vllm.worker.SSDWorker"
    assert json.loads(value(vllm, "--speculative-config")) == {
        "method": "custom_class",
        "model": "ssd.integrations.vllm.proposer.SilentProposer",
        "num_speculative_tokens": 4,
    }
    assert json.loads(value(vllm, "--additional-config")) == {"ssd": {"draft": value(draft, "--listen")}}


def test_options_have_their_flags() -> None:
    said = (
        "--max-model-len 4096 --max-num-seqs 8 --max-num-batched-tokens 1024 --block-size 32 --dtype float32 "
        "--kv-cache-bytes 1000000 --hf-cache /models --served-model-name mine --port 80 --host 0.0.0.0 "
        "--no-enable-prefix-caching --enable-chunked-prefill --drain-seconds 2.5 -tp 2"
    )
    of_draft = (
        "--draft-width 8 --draft-children 2 --draft-lookup 0 --draft-precision int8 --draft-head 99 "
        "--draft-growth geometric --lookahead 6"
    )
    draft, vllm = printed("org/model@v1", "--draft", "small", *said.split(), *of_draft.split())
    expected = (
        "--revision v1 --host 0.0.0.0 --port 80 --shutdown-timeout 3 --max-model-len 4096 --max-num-seqs 8 "
        "--max-num-batched-tokens 1024 --enable-chunked-prefill --no-enable-prefix-caching --block-size 32 "
        "--kv-cache-memory-bytes 1000000 --dtype float32 --download-dir /models --served-model-name mine "
        "--tensor-parallel-size 2 --worker-cls"
    )
    assert " ".join(vllm).startswith(f"vllm serve org/model {expected}")
    assert json.loads(value(vllm, "--speculative-config"))["num_speculative_tokens"] == 6
    assert value(draft, "--hf-cache") == "/models"
    assert value(draft, "--dtype") == "float32"
    assert value(draft, "--max-num-seqs") == "8"
    for flag in re.findall(r"--draft-(\S+ \S+)", of_draft):
        assert f"--{flag}" in " ".join(draft)


def test_settings_of_the_worker() -> None:
    said = "--backup none --draft-timeout 3 --pad-drafts --float32-head --draft-keys /keys"
    [vllm] = printed("m", "--draft", "tcp://host:1", *said.split())
    assert json.loads(value(vllm, "--additional-config")) == {
        "ssd": {
            "draft": "tcp://host:1",
            "draft_keys": "/keys",
            "padded": True,
            "backup": "none",
            "draft_timeout": 3,
        }
    }
    assert json.loads(value(vllm, "--hf-overrides")) == {"head_dtype": "float32"}


@pytest.mark.parametrize("model", [["m"], ["--model", "m"]])
def test_flags_of_vllm_come_last(model: list[str]) -> None:
    draft, vllm = printed(*model, "--draft", "s", "--", "--enforce-eager", "--dtype", "half")
    assert vllm[-3:] == ["--enforce-eager", "--dtype", "half"]
    assert "--enforce-eager" not in draft


def test_keys_come_with_a_guard_and_are_not_printed() -> None:
    [vllm] = printed("m", "--api-key", "secret")
    assert vllm[0] == "VLLM_API_KEY=…"
    assert "secret" not in " ".join(vllm)
    assert value(vllm, "--middleware") == "ssd.integrations.vllm.guard.ApiKeyGuard"
    [several] = printed("m", "--api-key", "one", "--api-key", "two")
    assert several[0].startswith("SSD_VLLM_API_KEYS=")
    assert value(several, "--middleware") == "ssd.integrations.vllm.guard.ApiKeyGuard"
    [after] = printed("m", "--", "--api-key", "one", "two")
    assert value(after, "--middleware") == "ssd.integrations.vllm.guard.ApiKeyGuard"
    [stock] = printed("m")
    assert stock[:3] == ["vllm", "serve", "m"]
    assert not {"--middleware", "--worker-cls"} & set(stock)


@pytest.mark.parametrize(
    ("arguments", "ours", "theirs"),
    [((), ["inherited"], "inherited"), (("one",), ["one"], "one"), (("one", "two"), ["one", "two"], "")],
)
def test_a_key_of_vllms_own_variable_is_guarded_or_replaced(
    monkeypatch: pytest.MonkeyPatch,
    started: list[Programs],
    arguments: tuple[str, ...],
    ours: list[str],
    theirs: str,
) -> None:
    """Two checks that know different keys would let nobody in."""
    monkeypatch.setenv("VLLM_API_KEY", "inherited")
    result = serve("m", "--engine", "vllm", *(f"--api-key={key}" for key in arguments))
    assert result.exit_code == EXIT, result.output
    [programs] = started
    assert value(list(programs.server.arguments), "--middleware").endswith("ApiKeyGuard")
    assert json.loads(programs.server.environment["SSD_VLLM_API_KEYS"]) == ours
    assert programs.server.environment["VLLM_API_KEY"] == theirs


def test_printed_commands_are_for_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    here = printed("m", "--draft", "s")
    assert "--cores" not in here[0]
    monkeypatch.setattr(serve_vllm, "visible_gpus", lambda: ["0", "1", "2"])
    monkeypatch.setattr(cores, "physical_cores", lambda: [(core,) for core in range(64)])
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-1|2")
    assert printed("m", "--draft", "s") == here


def test_printed_commands_say_what_flags_name() -> None:
    """Also of devices that this machine does not have."""
    draft, vllm = printed("m", "--draft", "s", "--device", "cuda")
    assert (value(draft, "--device"), vllm[:2]) == ("auto", ["vllm", "serve"])
    draft, vllm = printed("m", "--draft", "s", "--device", "cuda:1", "--draft-device", "cuda:7")
    assert (value(draft, "--device"), vllm[:2]) == ("cuda:7", ["CUDA_VISIBLE_DEVICES=1", "vllm"])
    draft, vllm = printed("m", "--draft", "s", "--cores", "70-72", "--draft-cores", "5", "-tp", "2")
    assert (value(draft, "--cores"), vllm[:2]) == ("5", ["VLLM_CPU_OMP_THREADS_BIND=70|71,72", "vllm"])


def test_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    draft, vllm = placed(monkeypatch, "m", "--draft", "s", "-tp", "2")
    assert value(draft, "--cores") == "3"
    assert vllm[:3] == ["VLLM_CPU_OMP_THREADS_BIND=0|1,2", "vllm", "serve"]


def test_gpus_by_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_vllm, "visible_gpus", lambda: ["0", "1", "2"])
    draft, vllm = placed(monkeypatch, "m", "--draft", "s", "--draft-device", "cuda:0")
    assert draft[:3] == ["CUDA_VISIBLE_DEVICES=0", "ssd", "draft"]
    assert value(draft, "--device") == "cuda"
    assert vllm[:3] == ["CUDA_VISIBLE_DEVICES=1,2", "vllm", "serve"]


def test_cores_that_vllm_was_given_are_not_the_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-1|2")
    draft, vllm = placed(monkeypatch, "m", "--draft", "s", "-tp", "2")
    assert value(draft, "--cores") == "3"
    assert vllm[0] == "vllm"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            ["model.Q4_K_M.gguf"],
            "is a GGUF file, and vLLM reads none: name the folder",
        ),
        (["m", "--max-n", "4"], "--max-n is not for --engine vllm: vLLM has no such limit"),
        (["m", "--deterministic"], "VLLM_BATCH_INVARIANT=1"),
        (["m", "--tool-format", "hermes"], "--tool-call-parser"),
        (["m", "--pad-drafts"], "--pad-drafts needs --draft"),
        (["m", "--device", "cuda:1"], "--device cuda:1: torch sees no GPU here"),
        (["m", "--draft", "s", "--mode", "sd"], "--mode sd is not for --engine vllm"),
        (["m", "--draft", "s", "--draft-width", "99"], "draft.width=99"),
        (["m", "--port", "99999"], "port=99999"),
        (["m", "--draft", "s", "--", "--worker-cls", "x"], "--worker-cls after `--` conflicts with"),
        (["m", "--float32-head", "--", "--hf-overrides", "{}"], "--hf-overrides after"),
        (["m", "--draft", "s", "--", "-tp", "8"], "-tp belongs before `--`"),
        (["m", "--draft", "s", "--", "--pipeline-parallel-size=2"], "name it with --draft-device"),
    ],
)
def test_what_has_no_place_is_refused_by_name(said: list[str], why: str) -> None:
    model, *rest = said
    assert why in refusal(model, "--engine", "vllm", *rest)


def test_every_option_of_a_server_is_mapped_or_refused_by_name() -> None:
    """A new one cannot be forgotten: it would be dropped in silence."""
    handled = {
        *serve_vllm._FLAGS,
        *serve_vllm._REFUSED,
        *("model", "mode", "draft", "lookahead", "backup", "device", "cores", "seed"),
        *("host", "port", "api_keys", "drain_seconds", "log_level", "log_format"),
    }
    assert {*fields_of(EngineConfig), *fields_of(ServerConfig)} == handled


def test_printed_commands_note_what_is_missing_here(tmp_path: Path) -> None:
    """On standard error: the commands may be for another machine, and are pasted from standard output."""
    result = serve(str(tmp_path / "nowhere"), "--draft", "s", "--engine", "vllm", "--print-commands")
    assert len(commands_in(result.stdout)) == 2
    notes = [line for line in result.stderr.splitlines() if line.startswith("note: ")]
    assert "no model at" in notes[0]
    assert "another machine" in notes[0]
    assert any("/run/ssd" in note for note in notes) != Path("/run/ssd").is_dir()


def test_a_missing_vllm_is_refused_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(serve_vllm, "is_installed", lambda: False)
    said = refusal("org/m", "--engine", "vllm", "--port", "0")
    assert "vLLM is not installed: pip install vllm (0.31 or newer" in said


def test_programs_that_run(started: list[Programs], tmp_path: Path) -> None:
    result = serve("m", "--draft", "s", "--engine", "vllm", "--api-key", "secret", "--log-level", "debug")
    assert result.exit_code == EXIT
    assert "vLLM on cores 0,1,2; the draft on cores 3. By hand:" in result.stderr
    assert "secret" not in result.output
    [programs] = started
    tmp_path = tmp_path / "run"
    launched = ["-m", "ssd.integrations.vllm.launch", str(tmp_path), "serve", "m"]
    assert list(programs.server.arguments[:5]) == launched
    assert programs.server.environment == {
        "VLLM_CPU_OMP_THREADS_BIND": "0,1,2",
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics"),
        "VLLM_RPC_BASE_PATH": str(tmp_path),
        "VLLM_API_KEY": "secret",
        "SSD_VLLM_API_KEYS": '["secret"]',
        "VLLM_LOGGING_LEVEL": "DEBUG",
    }
    assert (tmp_path / "metrics").is_dir()
    assert programs.draft is not None
    assert list(programs.draft.arguments[:3]) == ["-m", "ssd", "draft"]
    assert list(programs.draft.arguments[-3:]) == ["--listen", f"ipc://{tmp_path}/draft.sock", "--lifeline"]
    assert f"ipc://{tmp_path}/draft.sock" in " ".join(programs.server.arguments)
    assert programs.drain_seconds == 30
    assert programs.draft_waits_for is None


def test_what_runs_has_shares_of_this_machines_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started: list[Programs]
) -> None:
    """What is printed for other machines has not; and where it does not fit, nothing is started."""
    model = str(write_checkpoint("medium", tmp_path / "model"))
    monkeypatch.setattr(vllm_memory, "available_on_node_of", lambda core: None)
    monkeypatch.setattr(vllm_memory, "host_memory", lambda: HostMemory(24 << 30, 20 << 30))
    pair = (model, "--draft", model, "--engine", "vllm")
    assert serve(*pair, "--", "--enforce-eager").exit_code == EXIT
    [programs] = started
    assert programs.draft is not None
    words = list(programs.server.arguments)
    assert value(words, "--kv-cache-memory-bytes") == str(4 << 30)
    assert words[-1] == "--enforce-eager"
    assert int(value(list(programs.draft.arguments), "--kv-cache-bytes")) <= 2 << 30
    assert "--kv-cache-memory-bytes" not in printed(*pair[:3])[1]
    monkeypatch.setattr(vllm_memory, "host_memory", lambda: HostMemory(2 << 30, 1 << 30, is_limited=True))
    assert "use smaller models, free memory, or raise the limit of the container" in refusal(*pair)
    assert len(started) == 1


@pytest.mark.parametrize(
    ("said", "awaited"),
    [
        ((), ("127.0.0.1", 8000)),
        (("--port", "9", "--", "--host", "0.0.0.0", "--port=7"), ("0.0.0.0", 7)),
        (("--", "--uds", "/run/vllm"), None),
    ],
)
def test_one_gpu_is_shared(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    started: list[Programs],
    said: tuple[str, ...],
    awaited: tuple[str, int] | None,
) -> None:
    """The draft has a budget, vLLM the rest but for a margin, and the draft starts after vLLM."""
    model = str(write_checkpoint("medium", tmp_path / "model"))
    monkeypatch.setattr(serve_vllm, "visible_gpus", lambda: ["0"])
    monkeypatch.setattr(vllm_memory, "_gpu_memory", lambda gpu: (20 << 30, 24 << 30))
    result = serve(model, "--draft", model, "--engine", "vllm", *said)
    assert result.exit_code == EXIT, result.output
    assert "vLLM on GPU 0; the draft on GPU 0, which they share" in result.stderr
    [programs] = started
    assert programs.draft is not None
    assert programs.draft_waits_for == awaited
    assert 0.6 < float(value(list(programs.server.arguments), "--gpu-memory-utilization")) < 0.8
    assert int(value(list(programs.draft.arguments), "--kv-cache-bytes")) <= 2 << 30
    assert value(list(programs.draft.arguments), "--device") == "cuda"
    assert programs.draft.environment["CUDA_MPS_CLIENT_PRIORITY"] == "1"


@pytest.fixture
def who_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def vllm(*_: Any) -> int:
        raise ValueError("by vLLM")

    def ourselves(*_: Any) -> int:
        raise ValueError("by ourselves")

    monkeypatch.setattr(serve_vllm, "run_pair", vllm)
    monkeypatch.setattr(serve_command, "_serve_ourselves", ourselves)


NEVER = "using our own engine, which has never run on a GPU; "


@pytest.mark.usefixtures("who_serves")
@pytest.mark.parametrize(
    ("said", "gpus", "missing", "by", "line"),
    [
        (["org/m"], [], "", "by ourselves", ""),
        (["m"], ["0"], "", "by vLLM", ""),
        (["org/m", "--engine", "ssd"], ["0"], "", "by ourselves", ""),
        (["m", "--engine", "vllm"], [], "", "by vLLM", ""),
        (["org/m", "--device", "cpu"], ["0"], "", "by ourselves", ""),
        (["org/m"], ["0"], "no vLLM: get it", "by ourselves", f"{NEVER}no vLLM: get it"),
        (["org/m/m.gguf"], ["0"], "", "by ourselves", f"{NEVER}org/m/m.gguf is a GGUF file"),
    ],
)  # fmt: skip
def test_who_serves(
    monkeypatch: pytest.MonkeyPatch, said: list[str], gpus: list[str], missing: str, by: str, line: str
) -> None:
    monkeypatch.setattr(serve_vllm, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(serve_vllm, "why_missing", lambda: missing)
    result = serve(*said)
    assert re.search(rf"error: {by}$", result.stderr.strip())
    assert line in result.stderr
    assert (NEVER in result.stderr) == bool(line)
