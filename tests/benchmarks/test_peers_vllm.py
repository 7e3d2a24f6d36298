"""vLLM's worker with our draft: a stand-in for vLLM, a real draft process that it really greets."""

import os
import sys
import time
from pathlib import Path

import pytest

from benchmarks.peers.plans import Places, _plan
from benchmarks.peers.process import PeerError, Worker, WorkerPlan
from benchmarks.peers.records import PeersSettings
from benchmarks.peers.registry import PEERS
from tests.alive import is_alive

STAND_IN = '''
"""Counts up from the prompt, and greets the draft that it is told of."""
import json, os
from types import SimpleNamespace

from ssd.draft.client.client import DraftClient
from ssd.draft.protocol.messages import Hello
from ssd.draft.client.connection import AddressSource, FixedSources


class SamplingParams(SimpleNamespace):
    pass


class LLM:
    def __init__(self, model, **settings):
        from transformers import AutoConfig, AutoTokenizer

        size = AutoConfig.from_pretrained(model).vocab_size
        hello = Hello.of(
            AutoTokenizer.from_pretrained(model), vocab_size=size, name="tiny", max_model_len=64
        )
        address = settings["additional_config"]["ssd"]["draft"]
        self.client = DraftClient(
            FixedSources(AddressSource(address, hello, timeout=10.0)), lookahead=4
        )
        self.client.pool.start()
        with open(os.environ["STAND_IN_SAYS"], "w") as file:
            json.dump(settings, file)
        self.llm_engine, self.left = self, []

    def collective_rpc(self, name):
        assert name == "ssd_report"
        return [{"draft_up": self.client.is_ready}]

    def add_request(self, name, prompt, params):
        self.tokens, self.left = [], list(range(params.max_tokens))

    def has_unfinished_requests(self):
        return bool(self.left)

    def step(self):
        assert self.client.is_ready
        self.tokens.append(self.left.pop(0))
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=self.tokens)])]
'''


@pytest.fixture
def plan(tiny_llama: Path, tiny_draft: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerPlan:
    (tmp_path / "vllm.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("STAND_IN_SAYS", str(tmp_path / "says.json"))
    # Where the draft's folder comes to lie.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    settings = PeersSettings(
        model=str(tiny_llama), draft=tiny_draft, dtype="float32", peers=["vllm"], ssd_cases=[],
        peer_cases=["ssd4"], target_cores=[0], draft_cores=[], datasets=["code"], num_prompts=1,
        first_prompt=0, max_tokens=4, prompts={},
    )  # fmt: skip
    pythons = dict.fromkeys(("ssd", "vllm"), Path(sys.executable))
    return _plan(PEERS["vllm"], ["ssd4"], settings, Places(pythons=pythons), 64)


def drafts(folder: Path) -> list[int]:
    """Processes that listen in it."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"draft" in words and any(str(folder).encode() in word for word in words):
            found.append(int(file.parent.name))
    return found


def test_our_draft_is_there_before_vllm_is_asked_and_gone_with_it(plan: WorkerPlan, tmp_path: Path) -> None:
    with Worker(plan, tmp_path / "log") as worker:
        (draft,) = drafts(tmp_path)
        assert worker.ask("ssd4", [1, 2], 4)["tokens"] == [0, 1, 2, 3]
        assert is_alive(draft)
        said = (tmp_path / "says.json").read_text()
    assert '"num_speculative_tokens": 4' in said
    assert "SilentProposer" in said
    deadline = time.monotonic() + 20
    while is_alive(draft) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(draft)
    assert list(tmp_path.glob("ssd-*")) == [], "its socket went with it"


def test_a_draft_that_cannot_start_is_said(plan: WorkerPlan, tmp_path: Path) -> None:
    plan.job["draft_command"] += ["--precision", "int3"]
    with pytest.raises(PeerError, match="our draft ended with code 2"), Worker(plan, tmp_path / "log"):
        pass
    assert "int3" in (tmp_path / "log").read_text()
