"""Where vLLM does not fit, a worker says what to do; and every name that is leaned on is there."""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ssd.integrations.vllm import PROPOSER, contract, fitting
from ssd.integrations.vllm.contract import broken
from ssd.integrations.vllm.fitting import checked_settings, output_rank, why_unfit

SPECULATION = SimpleNamespace(method="custom_class", model=PROPOSER, num_speculative_tokens=4)


def config(**changes: Any) -> SimpleNamespace:
    usual = {
        "additional_config": {},
        "speculative_config": SPECULATION,
        "use_v2_model_runner": False,
        "parallel_config": SimpleNamespace(distributed_executor_backend="mp", world_size=2),
    }
    return SimpleNamespace(**{**usual, **changes})


@pytest.fixture
def any_vllm(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(fitting, "broken", lambda folder: [])
    monkeypatch.setattr(fitting, "installed_version", lambda: "0.32.0+cpu")
    return Path()


def test_what_fits_gives_the_settings(any_vllm: Path) -> None:
    settings = checked_settings(config(additional_config={"ssd": {"draft": "ipc:///d"}}), any_vllm)
    assert settings.draft == "ipc:///d"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speculative_config": None}, "--speculative-config"),
        ({"speculative_config": SimpleNamespace(method="ngram", model=None)}, "--speculative-config"),
        ({"speculative_config": SimpleNamespace(method="custom_class", model="a.B")}, PROPOSER),
        ({"use_v2_model_runner": True}, "unset VLLM_USE_V2_MODEL_RUNNER"),
        ({"additional_config": {"ssd": {"draught": 1}}}, "did you mean 'draft'"),
        (
            {
                "parallel_config": SimpleNamespace(
                    distributed_executor_backend="external_launcher", world_size=2
                )
            },
            "let vLLM start its ranks",
        ),
        (
            {
                "speculative_config": SimpleNamespace(
                    method="custom_class", model=PROPOSER, num_speculative_tokens=40
                )
            },
            "1 to 16",
        ),
    ],
)
def test_what_does_not_fit_is_refused(any_vllm: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        checked_settings(config(**changes), any_vllm)


def test_a_vllm_that_is_too_old_is_refused() -> None:
    assert "too old: install 0.31 or newer" in why_unfit("0.30.1", Path())
    assert "too old" not in why_unfit("0.100.0", Path())


def test_a_version_that_does_not_fit_is_refused(any_vllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "installed_version", lambda: "0.23.0")
    with pytest.raises(ValueError, match=r"vLLM 0\.23\.0 is too old"):
        checked_settings(config(), any_vllm)


@pytest.mark.parametrize(
    ("world", "tensor", "context", "expected"), [(1, 1, 1, 0), (2, 2, 1, 0), (32, 8, 1, 24), (8, 2, 2, 4)]
)
def test_the_output_rank_is_the_first_of_the_last_stage(
    world: int, tensor: int, context: int, expected: int
) -> None:
    parallel = SimpleNamespace(
        world_size=world, tensor_parallel_size=tensor, prefill_context_parallel_size=context
    )
    assert output_rank(parallel) == expected


def test_another_platform_is_refused() -> None:
    platform = SimpleNamespace(is_cpu=lambda: False, is_cuda_alike=lambda: False, device_name="tpu")
    with pytest.raises(ValueError, match="not on tpu"):
        fitting.worker_base(platform)


def folders() -> list[Path]:
    """The installed vLLM, and others that are only unpacked."""
    spec = find_spec("vllm")
    installed = [Path(spec.origin).parent] if spec is not None and spec.origin is not None else []
    named = os.environ.get("SSD_TEST_VLLM_FOLDERS", "")
    return [*installed, *(Path(each) for each in named.split(os.pathsep) if each)]


@pytest.mark.vllm
@pytest.mark.parametrize("folder", folders() or [None])
def test_every_name_that_is_leaned_on_is_there(folder: Path | None) -> None:
    if folder is None:
        pytest.skip("no vLLM: install it, or name unpacked ones in SSD_TEST_VLLM_FOLDERS")
    assert broken(folder) == []


def test_a_name_that_changed_is_named(tmp_path: Path) -> None:
    """With a vLLM of two files: one that fits, and is then changed, name by name."""
    assert len(broken(tmp_path)) == sum(line.startswith(" ") for line in contract.NAMES.split("\n"))
    file = tmp_path / "v1" / "sample" / "sampler.py"
    file.parent.mkdir(parents=True)
    source = (
        "class Sampler:\n"
        "    def __init__(self, logprobs_mode='raw', use_fp64_gumbel=False):\n"
        "        self.logprobs_mode, self.x = logprobs_mode, 1\n"
        "        self.use_fp64_gumbel: bool = use_fp64_gumbel\n"
        "    def sample(self, logits, sampling_metadata, logprobs_mode_override=None): ...\n"
    )
    file.write_text(source)
    faults = " ".join(broken(tmp_path))
    assert "no Sampler.sample" not in faults
    assert "no Sampler.use_fp64_gumbel" not in faults
    assert "no Sampler.logprobs_mode" not in faults
    assert "v1/sample/sampler.py has no Sampler.greedy_sample" in faults
    elsewhere = tmp_path / "changed"
    shutil.copytree(tmp_path / "v1", elsewhere / "v1")
    changed = source.replace("sampling_metadata,", "metadata,").replace("use_fp64", "use_fp32")
    (elsewhere / "v1" / "sample" / "sampler.py").write_text(changed)
    faults = " ".join(broken(elsewhere))
    assert "has Sampler.sample(self, logits, metadata, logprobs_mode_override=…), and" in faults
    assert "no Sampler.use_fp64_gumbel" in faults


@pytest.mark.parametrize(("more", "fits"), [("", True), (", c=1", True), (", c", False)])
def test_what_follows_must_have_a_default(
    tmp_path: Path, more: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "NAMES", "file.py\n    function(a, ...)\n    nothing()")
    (tmp_path / "file.py").write_text(f"def function(a{more}): ...\ndef nothing(): ...")
    assert (broken(tmp_path) == []) == fits
