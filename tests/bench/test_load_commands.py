"""`ssd bench serve` as a user runs it, with a real server and a real guidellm."""

import json
import os
import shutil
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from ssd.bench.load import LoadFolder
from tests.server.process import serving


def ssd(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ssd", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=800)


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "code.jsonl"
    file.write_text("".join(json.dumps({"text": f"def add{n}(a, b):"}) + "\n" for n in range(4)))
    return str(file)


@pytest.fixture
def guidellm() -> str:
    found = shutil.which(os.environ.get("SSD_GUIDELLM", "guidellm"))
    if found is None:
        pytest.skip("no guidellm: name it in SSD_GUIDELLM, or put it on the PATH")
    return found


def test_load_of_a_real_server(
    tiny_llama: Path, tiny_draft: str, prompts: str, guidellm: str, tmp_path: Path
) -> None:
    with serving(
        tiny_llama, tmp_path / "log", {"served_model_name": "tiny"}, mode="ssd", draft=tiny_draft
    ) as server:
        done = ssd(
            *("serve", "--url", server.url, "--against-ar", "--devices", "2", "--draft-devices", "1"),
            *(
                "--users",
                "2",
                "--rates",
                "4",
                "--requests",
                "6",
                "--rate-requests",
                "6",
                "--max-tokens",
                "8",
                "--guidellm",
                guidellm,
            ),
            *("--datasets", prompts, "--num-prompts", "4", "--run", str(tmp_path / "run")),
        )
        drafted = server.metric("ssd_spec_decode_num_draft_tokens_total")
    assert done.returncode == 0, done.stderr
    records = LoadFolder(tmp_path / "run").records()
    counts = {(each.endpoint, each.level.kind): len(each.answers) for each in records}
    assert counts == {("ssd", "users"): 12, ("ar", "users"): 12, ("ssd", "rate"): 6, ("ar", "rate"): 6}
    assert all(answer.num_tokens == 8 for each in records for answer in each.answers)
    assert drafted > 0
    assert "beside ar" in done.stdout
    arrivals = sorted(answer.began for answer in records[-1].answers)
    gaps = [later - sooner for sooner, later in pairwise(arrivals)]
    assert statistics.pstdev(gaps) > 0.2 * statistics.mean(gaps), "a Poisson process is not even"


def test_a_generator_that_is_missing_is_named_with_its_commands(prompts: str, tmp_path: Path) -> None:
    done = ssd(
        *("serve", "--url", "http://127.0.0.1:9", "--model", "m", "--guidellm", "no-such-program"),
        *("--datasets", prompts, "--run", str(tmp_path)),
    )
    assert done.returncode == 2
    assert "pip install torch guidellm" in done.stderr
