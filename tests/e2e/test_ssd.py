"""Mode ssd with real processes and sockets: the AR tokens, whoever drafts and whatever happens."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from campaigns.e2e.process_faults import Slow, Struck, spoilable_links
from ssd import LLM, SamplingParams
from tests.alive import is_alive
from tests.tiny import write_checkpoint

PROMPTS = ["The quick brown fox jumps over", "def add(a, b):\n    return a + b\n", "Once upon a time"]
COMMON: dict[str, Any] = {"device": "cpu", "deterministic": True, "show_progress": False}


def params(max_tokens: int = 40) -> list[SamplingParams]:
    return [
        SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=1),
        SamplingParams(temperature=0.7, seed=3, max_tokens=max_tokens, repetition_penalty=1.2, top_p=0.9),
        SamplingParams(temperature=1.0, seed=5, max_tokens=max_tokens, n=2, min_tokens=5, stop=["e", "a b"]),
    ]


def outputs(llm: LLM) -> list[Any]:
    found = [each.outputs for each in llm.generate(PROMPTS, params(), use_tqdm=False)]
    core = llm._engine.core
    core.check_integrity()
    assert core._blocks.usage == 0
    return found


@pytest.fixture(scope="module")
def expected(target: Path) -> list[Any]:
    return outputs(LLM(str(target), **COMMON))


@pytest.fixture(scope="module")
def address(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A draft that someone else runs."""
    where = f"ipc://{tmp_path_factory.mktemp('socket')}/draft.sock"
    command = [sys.executable, "-m", "ssd", "draft", "--model", str(target), "--listen", where]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    # An engine does not wait long for a draft of others, and on a busy machine one takes its time to start.
    assert process.stdout.readline().startswith("drafting with")
    yield where
    process.terminate()
    assert process.wait(60) == 0


@pytest.mark.parametrize("name", ["itself", "cut", "padded"])
def test_ssd_equals_ar(target: Path, drafts: dict[str, Path], expected: list[Any], name: str) -> None:
    # Rounded weights would make the draft that is always right wrong now and then.
    own: dict[str, Any] = {"precision": "model"} if name == "itself" else {}
    # Of a tree one path is accepted at most, so trees would not show how often it is right.
    form: dict[str, Any] = {"enable_trees": name != "itself"}
    with LLM(str(target), mode="ssd", draft={"model": str(drafts[name]), **own}, **form, **COMMON) as llm:
        decoder: Any = llm._engine.core.decoder
        decoder._runner = Slow(decoder._runner)
        assert outputs(llm) == expected
        stats = llm.stats
    assert stats.draft is not None
    assert stats.draft.num_losses == 0
    assert stats.draft.num_frames > 0
    if name == "itself":
        assert stats.speculation.hits > 0
        assert stats.speculation.accepted > 0.8 * stats.speculation.drafted


def test_two_engines_share_a_draft_behind_an_address(target: Path, address: str, expected: list[Any]) -> None:
    with (
        LLM(str(target), mode="ssd", draft=address, **COMMON) as first,
        LLM(str(target), mode="ssd", draft=address, **COMMON) as second,
    ):
        assert outputs(first) == expected
        assert outputs(second) == expected
        assert outputs(first) == expected


def test_a_draft_of_another_family_is_refused_with_a_remedy(tmp_path: Path, address: str) -> None:
    from tests.tiny import tiny_tokenizer

    other = write_checkpoint("qwen2", tmp_path / "other")
    tiny_tokenizer(["entirely different words about rivers, mountains and trains"]).save_pretrained(other)
    with pytest.raises(ValueError, match="use a draft of the same family"):
        LLM(str(other), mode="ssd", draft=address, **COMMON)


def test_a_draft_that_cannot_start_says_so(target: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no model at .*nothing"):
        LLM(str(target), mode="ssd", draft=str(tmp_path / "nothing"), **COMMON)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="architecture 'none' is not supported"):
        LLM(str(target), mode="ssd", draft=str(tmp_path), **COMMON)
    shutil.copytree(target, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ValueError, match="the draft did not start"):
        LLM(str(target), mode="ssd", draft=str(tmp_path), **COMMON)


def test_a_killed_draft_comes_back(tmp_path: Path) -> None:
    with spoilable_links():
        struck = Struck(tmp_path)
        killed, corrupted = struck.run("SIGKILL", 1), struck.run("corrupt", 2)
        assert (killed.wrong, killed.leaks, corrupted.wrong, corrupted.leaks) == (0, 0, 0, 0)
        assert struck.llm.stats.draft is not None
        assert struck.llm.stats.draft.num_losses >= 1
        pid = struck.pid
        struck.close()
    assert not is_alive(pid)


def test_a_killed_draft_comes_back_without_being_asked_for(target: Path) -> None:
    with LLM(str(target), draft=str(target), mode="ssd", **COMMON) as llm:
        client = llm._engine.core.decoder.proposer.speculator.client  # type: ignore[attr-defined]
        os.kill(client.pool.replicas[0].source.pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while client.stats.num_connects < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert client.stats.num_losses == 1
        assert client.is_ready


def test_a_draft_is_replaced_while_requests_run(
    target: Path, drafts: dict[str, Path], expected: list[Any]
) -> None:
    """And texts are the same with a draft that is never right."""
    with LLM(str(target), mode="ssd", draft=str(drafts["another"]), **COMMON) as llm:
        decoder: Any = llm._engine.core.decoder
        decoder._runner = Slow(decoder._runner)
        old_pid = decoder.proposer.speculator.client.pool.replicas[0].source.pid
        assert outputs(llm) == expected
        llm.replace_draft(str(target))
        assert outputs(llm) == expected
        deadline = time.monotonic() + 60
        while (
            decoder.proposer.speculator.client.pool.replicas[0].source.pid == old_pid
            and time.monotonic() < deadline
        ):
            assert outputs(llm) == expected
        # Whoever looks after the line ends the old one in the background.
        while is_alive(old_pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not is_alive(old_pid)
        hits = llm.stats.speculation.hits
        assert outputs(llm) == expected
        assert llm.stats.speculation.hits > hits


def test_tcp_needs_keys_and_lets_only_their_holder_in(
    target: Path, tmp_path: Path, expected: list[Any]
) -> None:
    from ssd.draft.protocol.sockets import make_keys

    with pytest.raises(ValueError, match="needs keys"):
        LLM(str(target), mode="ssd", draft="tcp://127.0.0.1:5999", **COMMON)
    make_keys(tmp_path / "keys")
    make_keys(tmp_path / "strange")
    where = f"tcp://127.0.0.1:{_free_port()}"
    # A stranger who has got hold of the draft's public key is a stranger still.
    shutil.copy(tmp_path / "keys/engine/draft.key", tmp_path / "strange/engine/draft.key")
    keys, strange = str(tmp_path / "keys/engine"), str(tmp_path / "strange/engine")
    options = ["--model", str(target), "--listen", where, "--keys", str(tmp_path / "keys/draft")]
    draft = subprocess.Popen([sys.executable, "-m", "ssd", "draft", *options])
    try:
        near = {"model": where, "keys": keys, "timeout": 60}
        with LLM(str(target), mode="ssd", draft=near, **COMMON) as llm:
            assert outputs(llm) == expected
        strangers = {"model": where, "keys": strange, "timeout": 3.0}
        with pytest.raises(ValueError, match="the draft did not start"):
            LLM(str(target), mode="ssd", draft=strangers, **COMMON)
    finally:
        draft.terminate()
        draft.wait(10)


def test_a_recorded_run_shows_that_draft_and_target_overlap(target: Path, tmp_path: Path) -> None:
    with LLM(str(target), mode="ssd", draft=str(target), **COMMON) as llm:
        decoder: Any = llm._engine.core.decoder
        decoder._runner = Slow(decoder._runner)
        timeline = llm.record()
        outputs(llm)
    timeline.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    verifying, drafting = (
        [(each["ts"], each["ts"] + each["dur"]) for each in events if each["name"] == name]
        for name in ("verify", "draft step")
    )
    shared = sum(
        max(0.0, min(v_end, d_end) - max(v_start, d_start))
        for v_start, v_end in verifying
        for d_start, d_end in drafting
    )
    assert shared > 0.2 * sum(end - start for start, end in verifying)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
