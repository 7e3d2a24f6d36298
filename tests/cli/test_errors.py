"""What a user gets wrong ends with code 2, one sentence and what to do; nothing of it is a traceback."""

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ssd.cli.main import app
from tests.tiny import write_checkpoint

WRONG = {
    # Paths.
    "generate nowhere -p hi": "name a folder with config.json, a .gguf file, or a model on the hub",
    "generate empty -p hi": "name one, or a model on the hub",
    "generate damaged.gguf -p hi": "download it again",
    "generate unknown -p hi": "use one of these",
    "generate m -p hi --config nowhere.yaml": "check the path",
    "generate m -p hi --config damaged.yaml": "write `name: value` lines",
    "generate m -p hi --trace nowhere/trace.json": "make it, or name another place",
    "generate m -p hi --trace empty": "name another file",
    "draft --make-keys m/config.json/keys": "check the path and your rights there, or name another",
    "plan --hardware nowhere.toml": "check the path, or see `ssd plan --list`",
    "bench report nowhere": "`ssd bench run --run DIR` makes one",
    # Flags that do not go together, and values that are none.
    "generate -p hi": "a name on the hub",
    "generate m --model other -p hi": "name one",
    "generate m -p hi --mode ssd": "name a small model of the same family",
    "generate m -p hi --logprobs 3": "add that, or leave it out",
    "generate m -p hi --cores x": "write numbers and ranges, such as 0,2-4",
    "generate m -p hi --cores 3-1": "write numbers and ranges",
    "generate m -p hi --cores [/x]": "write numbers and ranges",
    "generate m -p ''": "a prompt is empty",
    "generate m -p hi --dtype int3": "bfloat16",
    "generate m -p hi --device tpu": "use 'auto', 'cpu', 'cuda' or 'cuda:N'",
    "generate m -p hi --temperature -1": "Invalid value for '--temperature'",
    "generate m -p hi --max-model-len 100000": "use at most that",
    "generate m -p hi --tensor-parallel-size 2": "leave it at 1, or use `ssd serve --engine vllm`",
    "generate m -p hi --speculative-config {": "quote it as one word",
    "chat --url http://a --vllm http://b": "name one",
    "chat --url http://a --max-model-len 9": "leave it out",
    "serve m --engine ssd --print-commands": "add that, or leave it out",
    "serve m --engine ssd -- --x": "leave it out, or add --engine vllm",
    "serve m --engine ssd --pad-drafts": "--pad-drafts is for --engine vllm",
    "serve m --engine ssd --log-level loud": "is not one of 'debug', 'info', 'warning', 'error'",
    "serve damaged.gguf --engine vllm --print-commands": "or use --engine ssd",
    "plan --target nothing": "or give a model's config.json",
    "bench run m --run r --cases nothing": "A case is ar, sd, sd4, ssd",
    "bench run m --run r --cases ssd": "name a small model of the same family with --draft",
    "bench run m --run r --datasets nothing": "or a .jsonl file",
    # Addresses.
    "chat --url http://127.0.0.1:1": "is the server running there?",
    "serve m --engine ssd --port TAKEN": "choose another host or port",
    "generate m -p hi --draft ipc:///d.sock --draft-timeout 2": "an idle draft speaks every 2 seconds: use 3",
    "draft --model m": "see ssd draft --help",
    "draft --model m --listen nothing": "use ipc:///path/to/socket or tcp://host:port",
    "draft --model m --listen tcp://127.0.0.1:5555": "make them with `ssd draft --make-keys FOLDER`",
    "draft --model m --listen ipc:///nowhere/d.sock": "name another place or port",
    "generate m -p hi --draft ipc:///nowhere/d.sock --draft-timeout 3": "runs at that address",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("wrong")
    write_checkpoint("llama3", made / "m")
    for name in ("empty", "unknown"):
        (made / name).mkdir()
    (made / "unknown/config.json").write_text('{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}')
    (made / "damaged.gguf").write_bytes(b"hello")
    (made / "damaged.yaml").write_text("a: [\n")
    (made / "damaged.jsonl").write_text("hello\n")
    (made / "few.jsonl").write_text('{"text": "a"}\n')
    return made


@pytest.mark.parametrize("command", WRONG)
def test_errors_say_what_to_do(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = shlex.split(command.replace("TAKEN", str(taken.getsockname()[1])))
        done = CliRunner().invoke(app, words, input="", env={"COLUMNS": "200"})
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit)
    assert WRONG[command] in " ".join(done.stderr.replace("│", "").split())


EARLY = {
    "generate m -p hi --device tpu": "use 'auto', 'cpu', 'cuda' or 'cuda:N'",
    "generate m -p hi --dtype int3": "bfloat16",
    "generate m -p hi --temperature -1": "Invalid value for '--temperature'",
    "generate m -p hi --max-model-len x": "Invalid value for '--max-model-len'",
    "generate m -p hi --mode ssd": "name a small model of the same family",
    "generate damaged.gguf -p hi": "download it again",
    "generate tiny/missing -p hi": "the hub cannot be reached: connect",
    "chat m --draft tiny/missing": "the hub cannot be reached: connect",
    "serve tiny/missing --device cpu --port 0": "the hub cannot be reached: connect",
    "serve m --port TAKEN": "choose another host or port",
    "serve m --engine vllm --port TAKEN": "choose another host or port",
    "serve m --engine vllm -- --port TAKEN": "choose another host or port",
    "generate m -p hi --draft other": "use a draft of the same family",
    "serve m --draft other --device cpu --port 0": "use a draft of the same family",
    "generate m -p hi --device cpu --kv-cache-bytes 1000000000000000": "out of memory before anything",
    "plan m --target 8B": "name one",
}
"""What is refused before torch is imported, which takes seconds of a processor; and what is said of it."""
for _path in (
    "generate /nowhere -p hi",
    "chat /nowhere",
    "serve /nowhere --device cpu --port 0",
    "serve m --draft /nowhere --device cpu --port 0",
    "serve /nowhere --engine vllm --port 0",
    "draft --model /nowhere --listen ipc:///tmp/nowhere.sock",
    "bench run /nowhere --run /tmp/nowhere",
    "doctor --model /nowhere",
):
    EARLY[_path] = "no model at"

_REFUSED_EARLY = """
import json, sys
from typer.testing import CliRunner
from ssd.cli.main import app
for command, said in json.loads(sys.argv[1]).items():
    done = CliRunner().invoke(app, command.split(), env={"COLUMNS": "200"})
    assert done.exit_code == 2, (command, done.output)
    assert said in " ".join(done.output.replace("│", "").split()), (command, done.output)
    assert "torch" not in sys.modules, command
"""


def test_what_cannot_work_is_refused_before_torch_is_imported(folder: Path) -> None:
    """In a process of its own, where nothing else has imported torch."""
    other = folder / "other"
    shutil.copytree(folder / "m", other, dirs_exist_ok=True)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {f"{word}?": token for word, token in words.items()}
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        commands = {command.replace("TAKEN", port): said for command, said in EARLY.items()}
        done = subprocess.run(
            [sys.executable, "-c", _REFUSED_EARLY, json.dumps(commands)],
            cwd=folder,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
