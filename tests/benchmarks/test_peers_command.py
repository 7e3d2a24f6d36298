"""`python -m benchmarks.peers` as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.peers", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=800)


def test_peers_from_the_command_line(tiny_llama: Path, tiny_draft: str, tmp_path: Path) -> None:
    prompts = tmp_path / "code.jsonl"
    prompts.write_text("".join(json.dumps({"text": f"def add{n}(a, b):"}) + "\n" for n in range(4)))
    arguments = (
        *(str(tiny_llama), "--draft", tiny_draft, "--peers", "transformers,openvino"),
        *("--peer-python", f"openvino={tmp_path}/none", "--dtype", "float32", "--ssd-cases", "ar"),
        *("--peer-cases", "plain", "--datasets", str(prompts), "--num-prompts", "2", "--max-tokens", "8"),
        *("--run", str(tmp_path / "run")),
    )
    first, again = run(*arguments), run(*arguments)
    assert first.returncode == 0, first.stderr
    assert "without openvino:" in first.stderr
    assert "optimum-cli export openvino" in first.stderr
    assert "the best peer, transformers plain" in first.stdout
    assert first.stdout == again.stdout
    assert "loading" not in again.stderr
