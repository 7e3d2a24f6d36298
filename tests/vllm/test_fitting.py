"""Where vLLM or its settings do not fit, a worker says what to do."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ssd.integrations.vllm import PROPOSER, contract, fitting
from ssd.integrations.vllm.fitting import checked_settings, expected_runner, output_rank

SPECULATION = SimpleNamespace(method="custom_class", model=PROPOSER, num_speculative_tokens=4)
NGRAM = SimpleNamespace(method="ngram_gpu", model=None, num_speculative_tokens=4)
ON_V2 = {"use_v2_model_runner": True, "speculative_config": NGRAM}
PARALLEL = {"distributed_executor_backend": "mp", "world_size": 2}


def config(**changes: Any) -> SimpleNamespace:
    usual = {
        "additional_config": {},
        "speculative_config": SPECULATION,
        "use_v2_model_runner": False,
        "parallel_config": SimpleNamespace(**PARALLEL),
        "model_config": SimpleNamespace(),
    }
    return SimpleNamespace(**{**usual, **changes})


@pytest.fixture
def any_vllm(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(contract, "broken", lambda folder, runner: [])
    monkeypatch.setattr(fitting, "installed_version", lambda: "0.32.0+cpu")
    return Path()


def test_what_fits_gives_the_settings(any_vllm: Path) -> None:
    settings = checked_settings(config(additional_config={"ssd": {"draft": "ipc:///d"}}), any_vllm)
    assert settings.draft == "ipc:///d"
    given = {"ssd": {"draft": "ipc:///v2"}}
    on_v2 = config(additional_config=given, use_v2_model_runner=True, speculative_config=NGRAM)
    assert checked_settings(on_v2, any_vllm).draft == "ipc:///v2"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"speculative_config": None}, "--speculative-config"),
        ({"speculative_config": SimpleNamespace(method="ngram", model=None)}, "--speculative-config"),
        ({"speculative_config": SimpleNamespace(method="custom_class", model="a.B")}, PROPOSER),
        ({"use_v2_model_runner": True}, "V2 model runner.*ngram_gpu"),
        ({"speculative_config": NGRAM}, "V1 model runner.*custom_class"),
        ({**ON_V2, "watermark_config": object()}, "a watermark: start vLLM without"),
        ({**ON_V2, "model_config": SimpleNamespace(enable_trace_replay=True)}, "trace replay"),
        ({**ON_V2, "model_config": SimpleNamespace(logits_processors=["a.B"])}, "of your own"),
        (
            {**ON_V2, "parallel_config": SimpleNamespace(**PARALLEL, enable_batch_sharded_sampling=True)},
            "batch-sharded sampling",
        ),
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


def test_a_version_that_does_not_fit_is_refused(any_vllm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "installed_version", lambda: "0.23.0")
    with pytest.raises(ValueError, match=r"vLLM 0\.23\.0 is too old"):
        checked_settings(config(), any_vllm)


@pytest.mark.parametrize(
    ("environment", "has_gpu", "lost", "expected"),
    [
        ({}, True, [], "v2"),
        ({}, False, [], "v1"),
        ({}, True, ["v2"], "v1"),
        ({"VLLM_USE_V2_MODEL_RUNNER": "0"}, True, [], "v1"),
        ({"VLLM_USE_V2_MODEL_RUNNER": "1"}, False, [], "v2"),
    ],
)
def test_the_runner_is_the_one_that_vllm_will_choose(
    any_vllm: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    has_gpu: bool,
    lost: list[str],
    expected: str,
) -> None:
    monkeypatch.setattr(contract, "broken", lambda folder, runner: ["a name"] if runner in lost else [])
    assert expected_runner(environment, any_vllm, has_gpu=has_gpu) == expected


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
