"""Who computes where, on machines that are made up."""

from typing import Any

import pytest

from ssd.config import DraftConfig, EngineConfig
from ssd.integrations.vllm.placement import Placement, on_cores, on_gpus
from ssd.runtime import cores

SHARED = ", which they share (`ssd doctor --model … --draft …` says whether that pays)"


def config(**settings: Any) -> EngineConfig:
    draft = DraftConfig(**{"model": "small", **settings.pop("draft", {})})
    return EngineConfig(model="m", mode="ssd", draft=draft, **settings)


def draft_of(found: Placement) -> DraftConfig:
    assert found.config.draft is not None
    return found.config.draft


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "physical_cores", lambda: [(core,) for core in range(8)])
    monkeypatch.setattr(cores, "usable_cores", lambda: list(range(8)))


@pytest.mark.parametrize(
    ("settings", "ranks", "bind", "draft"),
    [
        ({}, 1, "0,1,2,3,4,5", (6, 7)),
        ({}, 2, "0,1,2|3,4,5", (6, 7)),
        ({}, 4, "0|1,2|3|4,5", (6, 7)),
        ({"cores": (4, 5)}, 1, "4,5", (0, 1, 2, 3, 6, 7)),
        ({"draft": {"cores": (0,)}}, 1, "1,2,3,4,5,6,7", (0,)),
    ],
)
@pytest.mark.usefixtures("eight_cores")
def test_cores_are_shared_out(
    settings: dict[str, Any], ranks: int, bind: str, draft: tuple[int, ...]
) -> None:
    found = on_cores(config(device="cpu", **settings), ranks=ranks)
    assert found.target == {"VLLM_CPU_OMP_THREADS_BIND": bind}
    assert draft_of(found).cores == draft
    assert found.words == f"vLLM on cores {bind}; the draft on cores {','.join(map(str, draft))}"


@pytest.mark.usefixtures("eight_cores")
def test_what_vllm_was_told_stays() -> None:
    found = on_cores(config(device="cpu", cores=(2, 3)), ranks=2, bound="2|3")
    assert found.target == {}
    assert draft_of(found).cores == (0, 1, 4, 5, 6, 7)
    assert found.words.startswith("vLLM where VLLM_CPU_OMP_THREADS_BIND says (2|3)")


@pytest.mark.usefixtures("eight_cores")
def test_vllm_alone_is_not_bound() -> None:
    found = on_cores(EngineConfig(model="m", device="cpu"), ranks=1)
    assert (found.target, found.words) == ({}, "vLLM on all cores")


@pytest.mark.usefixtures("eight_cores")
def test_more_ranks_than_cores_are_refused() -> None:
    with pytest.raises(ValueError, match="8 ranks of vLLM need a core each, and it has 6"):
        on_cores(config(device="cpu"), ranks=8)


@pytest.mark.parametrize(
    ("settings", "gpus", "ranks", "target", "draft", "words"),
    [
        ({}, "0,1", 1, "0", "1", "vLLM on GPU 0; the draft on GPU 1"),
        ({}, "0,1,2,3", 2, "0,1,2", "3", "vLLM on GPU 0,1,2; the draft on GPU 3"),
        ({"draft": {"device": "cuda"}}, "0,1", 1, "0", "1", "vLLM on GPU 0; the draft on GPU 1"),
        ({"draft": {"device": "cuda:0"}}, "0,1,2", 2, "1,2", "0", "vLLM on GPU 1,2; the draft on GPU 0"),
        ({"draft": {"device": "cuda:1"}}, "7,5", 1, "7", "5", "vLLM on GPU 7; the draft on GPU 5"),
        ({"device": "cuda:1"}, "0,1,2", 1, "1", "2", "vLLM on GPU 1; the draft on GPU 2"),
        ({"draft": {"device": "cpu"}}, "0,1", 2, "0,1", "", "vLLM on GPU 0,1; the draft on the CPU"),
        ({}, "0,1", 2, "0,1", "1", f"vLLM on GPU 0,1; the draft on GPU 1{SHARED}"),
        ({}, "GPU-a", 1, "GPU-a", "GPU-a", f"vLLM on GPU GPU-a; the draft on GPU GPU-a{SHARED}"),
        ({"draft": {"device": "cuda"}}, "0,1", 2, "0,1", "1", f"vLLM on GPU 0,1; the draft on GPU 1{SHARED}"),
        ({"draft": {"device": "cuda:0"}}, "0", 1, "0", "0", f"vLLM on GPU 0; the draft on GPU 0{SHARED}"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("eight_cores")
def test_gpus_are_shared_out(
    settings: dict[str, Any], gpus: str, ranks: int, target: str, draft: str, words: str
) -> None:
    found = on_gpus(config(**settings), gpus.split(","), ranks=ranks)
    assert found.target == {"CUDA_VISIBLE_DEVICES": target}
    yields = {"CUDA_MPS_CLIENT_PRIORITY": "1"} if SHARED in words else {}
    assert found.draft == {"CUDA_VISIBLE_DEVICES": draft, **yields}
    assert found.shared_gpu == (draft if SHARED in words else "")
    assert draft_of(found).device == ("cuda" if draft else "cpu")
    # On the CPU it leaves cores to vLLM's own work there.
    assert draft_of(found).cores == (() if draft else (6, 7))
    assert found.words == words


@pytest.mark.parametrize(
    ("settings", "ranks", "reason"),
    [
        ({"draft": {"device": "cuda:5"}}, 1, "there is no cuda:5: 2 GPUs are visible, cuda:0 to cuda:1"),
        ({"draft": {"device": "cuda:0,cuda:1"}}, 1, "there is no cuda:0,cuda:1"),
        ({}, 3, "3 ranks of vLLM need more than the 2 GPUs there are"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], ranks: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        on_gpus(config(**settings), ["0", "1"], ranks=ranks)


@pytest.mark.parametrize("asked", [EngineConfig(model="m"), config(draft={"model": "ipc:///elsewhere"})])
def test_vllm_alone_has_all_gpus(asked: EngineConfig) -> None:
    found = on_gpus(asked, ["0", "1"], ranks=1)
    assert found.words == "vLLM on GPU 0,1"
    assert (found.target, found.draft) == ({"CUDA_VISIBLE_DEVICES": "0,1"}, {})
