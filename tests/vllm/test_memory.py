"""Memory shared out between vLLM and its draft: budgets that fit, or one sentence with what to change."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("hypothesis")  # It is not in vLLM's venv, which collects this file too.
from hypothesis import given
from hypothesis import strategies as st

from ssd.cli import vllm_memory
from ssd.cli.vllm_memory import with_memory
from ssd.config import DraftConfig, EngineConfig
from ssd.integrations.vllm.memory import Draft, MemoryShares, Target, share_host
from ssd.integrations.vllm.placement import Placement
from ssd.models.stored import stored_size
from ssd.processes.host_memory import HostMemory
from tests.tiny import write_checkpoint

GIB = 1 << 30
PAIR = (
    Target(name="big", weights=3 * GIB, kv_per_token=28 << 10, longest=32768),
    Draft(name="small", weights=GIB // 2, kv=2 * GIB, least_kv=GIB // 4),
)


def test_an_idle_machine_gives_both_what_they_usually_take() -> None:
    shares = share_host(24 * GIB, 22 * GIB, *PAIR)
    assert (shares.target_kv, shares.draft_kv) == (4 * GIB, 2 * GIB)
    assert shares.utilisation is None
    # No more KV than texts can fill, where the user says how many there may be at a time.
    few = replace(PAIR[0], longest=1024, most_texts=8)
    assert share_host(24 * GIB, 22 * GIB, few, PAIR[1]).target_kv == 8 * 1024 * (28 << 10)


def test_half_of_a_machine_is_shared_out() -> None:
    shares = share_host(24 * GIB, 11 * GIB, *PAIR)
    assert shares.target_kv is not None
    assert shares.draft_kv is not None
    assert GIB // 4 <= shares.draft_kv < 2 * GIB
    assert shares.target_kv >= 32768 * (28 << 10)


@given(
    available=st.integers(1, 64 * GIB),
    weights=st.integers(1, 32 * GIB),
    drafts=st.integers(1, 8 * GIB),
    longest=st.integers(0, 200_000),
    ranks=st.integers(1, 4),
)
def test_budgets_never_exceed_what_is_free(
    available: int, weights: int, drafts: int, longest: int, ranks: int
) -> None:
    target = replace(PAIR[0], weights=weights, longest=longest)
    draft = replace(PAIR[1], weights=drafts)
    try:
        shares = share_host(64 * GIB, available, target, draft, ranks=ranks)
    except ValueError:
        with pytest.raises(ValueError, match=r"\A[^\n]* use [^\n]*\Z"):
            share_host(64 * GIB, available, target, draft, ranks=ranks)
        return
    assert shares.target_kv is not None
    assert shares.draft_kv is not None
    assert shares.target_kv * ranks + shares.draft_kv + weights + drafts < available
    assert (shares.target_kv + 1) * ranks >= target.kv_per_token * longest
    assert draft.least_kv <= shares.draft_kv <= draft.kv


def test_what_does_not_fit_is_refused_with_what_to_change() -> None:
    with pytest.raises(ValueError, match=r"big and small need 7\.00 GiB of memory .* use smaller models"):
        share_host(24 * GIB, 6 * GIB, *PAIR)
    with pytest.raises(ValueError, match=r"big needs 5\.50 GiB"):
        share_host(24 * GIB, 5 * GIB, PAIR[0], None)
    long = replace(PAIR[0], longest=1_000_000)
    with pytest.raises(ValueError, match="a text of 1000000 tokens needs") as refused:
        share_host(24 * GIB, 22 * GIB, long, PAIR[1])
    named = re.search(r"--max-model-len (\d+)", str(refused.value))
    assert named is not None
    share_host(24 * GIB, 22 * GIB, replace(long, longest=int(named[1])), PAIR[1])
    with pytest.raises(ValueError, match="a text of"):
        share_host(24 * GIB, 22 * GIB, replace(long, longest=int(named[1]) + 129), PAIR[1])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint("medium", tmp_path_factory.mktemp("shared")))


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    monkeypatch.setattr(vllm_memory, "host_memory", lambda: HostMemory(24 * GIB, 20 * GIB))
    monkeypatch.setattr(vllm_memory, "available_on_node_of", lambda core: 12 * GIB)


def placed(model: str, **more: object) -> Placement:
    draft = DraftConfig(model=model, device="cpu")
    settings = {"model": model, "mode": "ssd", "device": "cpu", "draft": draft, **more}
    return Placement(config=EngineConfig(**settings), words="here")  # type: ignore[arg-type]


@pytest.mark.usefixtures("host")
def test_flags_and_the_drafts_setting_come_of_it(model: str) -> None:
    found = with_memory(placed(model), ranks=1, flags=())
    assert found.memory == ("--kv-cache-memory-bytes", str(4 * GIB))
    assert found.config.draft is not None
    assert found.config.draft.kv_cache_bytes


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    "flags",
    [
        ["--gpu-memory-utilization", "0.5"],
        ["--gpu_memory_utilization=0.5"],
        ["--kv-cache-memory-bytes=1"],
        ["--num-gpu-blocks-override", "9"],
    ],
)
def test_what_a_user_says_of_vllms_memory_wins(model: str, flags: list[str]) -> None:
    assert with_memory(placed(model), ranks=1, flags=flags) == placed(model)


@pytest.mark.usefixtures("host")
def test_other_ways_to_say_it(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = placed(model, kv_cache_bytes=GIB)
    assert with_memory(asked, ranks=1, flags=()) == asked
    on_gpus = replace(placed(model), on_gpus=True)
    assert with_memory(on_gpus, ranks=1, flags=()) == on_gpus
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    assert with_memory(placed(model), ranks=1, flags=()) == placed(model)


@pytest.mark.usefixtures("host")
def test_a_shared_gpu_is_asked_for_its_memory(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_memory, "_gpu_memory", lambda gpu: (20 * GIB, 24 * GIB))
    shared = replace(placed(model), on_gpus=True, shared_gpu="1")
    found = with_memory(shared, ranks=1, flags=())
    assert found.memory[0] == "--gpu-memory-utilization"
    assert 0.6 < float(found.memory[1]) < 0.8
    assert found.config.draft is not None
    assert found.config.draft.kv_cache_bytes


@pytest.mark.usefixtures("host")
def test_a_length_after_the_dashes_is_the_one_that_must_fit(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = vllm_memory._target(placed(model).config, ["--max-model-len", "77"], None)
    assert longest is not None
    assert longest.longest == 77
    unknown = vllm_memory._target(placed(model).config, ["--max-model-len=auto"], 5)
    assert unknown is not None
    assert (unknown.longest, unknown.most_texts) == (0, 5)
    with_own_draft = vllm_memory._target(placed(model).config, ["--speculative-config", "{}"], 5)
    assert with_own_draft is not None
    assert with_own_draft.most_texts == 0


def test_sizes_of_models_that_are_not_ours(tmp_path: Path) -> None:
    config = {
        "architectures": ["SomethingNew"],
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 64,
        "max_position_embeddings": 512,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model-1.safetensors").write_bytes(bytes(1000))
    (tmp_path / "model-2.safetensors").write_bytes(bytes(24))
    (tmp_path / "consolidated.safetensors").write_bytes(bytes(1024))
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(1024))
    found = stored_size(str(tmp_path), hf_cache=None, dtype=None)
    assert found is not None
    assert (found.weights, found.longest) == (1024, 512)
    assert found.kv_per_token == 2 * 2 * 2 * 16 * 2
    wide = stored_size(str(tmp_path), hf_cache=None, dtype="float32")
    assert wide is not None
    assert (wide.weights, wide.kv_per_token) == (2048, 2 * found.kv_per_token)
    assert stored_size(str(tmp_path / "nowhere"), hf_cache=None, dtype=None) is None


@pytest.mark.parametrize(
    ("more", "kv_dtype", "is_known"),
    [
        ({"sliding_window": 4096, "use_sliding_window": False}, None, True),
        ({"layer_types": ["full_attention", "full_attention"], "sliding_window": None}, None, True),
        ({"sliding_window": 4096}, None, False),
        ({"layer_types": ["sliding_attention", "full_attention"]}, None, False),
        ({"layer_types": ["linear_attention", "full_attention"]}, None, False),
        ({"full_attention_interval": 4}, None, False),
        ({"text_config": {"layer_types": ["sliding_attention"]}}, None, False),
        ({}, "something-new", False),
    ],
)
def test_keys_and_values_of_layers_that_forget_are_not_known(
    tmp_path: Path, more: dict[str, object], kv_dtype: str | None, is_known: bool
) -> None:
    """Else a model would be refused that vLLM alone would start."""
    found = stored_size(str(written(tmp_path, more)), hf_cache=None, dtype=None, kv_dtype=kv_dtype)
    assert found is not None
    assert found.kv_per_token == (2 * 2 * 4 * 16 * 2 if is_known else 0)


def written(folder: Path, more: dict[str, object]) -> Path:
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, **more}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(bytes(1000))
    return folder


@pytest.mark.parametrize(("said", "item"), [("auto", 2), ("fp8_e4m3", 1), ("int8_per_token_head", 1)])
def test_a_number_format_of_keys_after_the_dashes_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, item: int
) -> None:
    asked: list[Target] = []

    def shares(
        total: int, available: int, target: Target, draft: Draft | None, *, ranks: int
    ) -> MemoryShares:
        asked.append(target)
        return MemoryShares(None)

    monkeypatch.setattr(vllm_memory, "share_host", shares)
    placement = Placement(config=EngineConfig(model=str(written(tmp_path, {}))), words="")
    with_memory(placement, ranks=1, flags=["--kv-cache-dtype", said])
    assert [each.kv_per_token for each in asked] == [2 * 2 * 4 * 16 * item]


def test_a_hub_that_cannot_be_reached_leaves_memory_to_vllm(tmp_path: Path) -> None:
    """In a process of its own: the hub's address is read when its client is imported."""
    program = (
        "from ssd.models.stored import stored_size; "
        f"print(stored_size('org/name', hf_cache={str(tmp_path)!r}, dtype=None))"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (told.returncode, told.stdout.strip()) == (0, "None"), told.stderr
