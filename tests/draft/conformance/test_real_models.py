"""`ssd draft` and our engine, with models, keep the rules; the command plays the other side."""

import subprocess
import sys
from pathlib import Path

from ssd import LLM, SamplingParams
from tests.e2e.drafts import Drafts

KIT = [sys.executable, "-m", "ssd.draft.conformance"]


def test_ssd_draft_keeps_all_rules(tiny_draft: str, tmp_path: Path) -> None:
    drafts = Drafts({"draft": Path(tiny_draft)}, tmp_path, "--device", "cpu")
    try:
        done = subprocess.run(
            [*KIT, "--draft", drafts.addresses], capture_output=True, text=True, timeout=300, check=False
        )
    finally:
        drafts.close()
    assert done.returncode == 0, done.stdout
    assert "R28  pass" in done.stdout


def test_our_engine_keeps_all_rules(tiny_llama: Path, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/kit"
    kit = subprocess.Popen([*KIT, "--target", address], stdout=subprocess.PIPE, text=True)
    params = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
    try:
        with LLM(str(tiny_llama), mode="ssd", draft=address, device="cpu", show_progress=False) as llm:
            while kit.poll() is None:
                llm.generate(["one two three", "four five"], params, use_tqdm=False)
    finally:
        kit.kill()
        said, _ = kit.communicate()
    assert kit.returncode == 0, said
    assert "R20  pass" in said
