"""Memory that models will take, and the refusal of what does not fit, on hosts that are made up."""

import re
from dataclasses import replace

import pytest

from ssd.config import DraftConfig, EngineConfig
from ssd.draft.protocol.sockets import Heard
from ssd.draft.server import main as program
from ssd.engine import build
from ssd.engine.model_placement import refuse_without_memory
from ssd.processes.host_memory import HostMemory
from ssd.runtime.memory_needs import check_host_memory, memory_needs
from tests.tiny import write_checkpoint


class _NoLink:
    """Never asked for anything."""

    def send(self, peer: bytes, frame: bytes) -> None:
        raise NotImplementedError

    def receive(self, timeout: float) -> Heard | None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


GIB = 1 << 30
PROCESS = GIB // 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_checkpoint("medium", tmp_path_factory.mktemp("needs")))


def config(model: str, kv: int = GIB) -> EngineConfig:
    return EngineConfig(
        model=model, mode="ssd", device="cpu", draft=DraftConfig(model=model, device="cpu"), kv_cache_bytes=kv
    )


def test_weights_kv_and_a_process_count_for_each(model: str) -> None:
    asked = config(model)
    needs = [memory_needs("target", asked.runner), memory_needs("draft", asked.draft_runner)]
    wanted = sum(each.weights + each.kv + PROCESS for each in needs)
    refuse_without_memory(asked, HostMemory(64 * GIB, wanted), [])
    with pytest.raises(ValueError, match=r"out of memory before anything is loaded: 3\.\d+ GiB are needed"):
        refuse_without_memory(asked, HostMemory(64 * GIB, wanted - 1), [])


def test_the_kv_cache_that_it_names_fits(model: str) -> None:
    tight = HostMemory(2 * GIB, 2 * GIB, is_limited=True)
    with pytest.raises(
        ValueError, match=r"there are 2\.0 GiB \(the limit of its cgroup\), 2\.0 GiB available"
    ) as refused:
        refuse_without_memory(config(model), tight, [])
    named = re.search(r"--kv-cache-bytes (\d+)", str(refused.value))
    assert named is not None
    refuse_without_memory(config(model, kv=int(named[1])), tight, [])
    with pytest.raises(ValueError, match="--kv-cache-bytes"):
        refuse_without_memory(config(model, kv=int(named[1]) + (2 << 20)), tight, [])


def test_without_room_for_weights_a_smaller_model_is_named(model: str) -> None:
    with pytest.raises(ValueError, match="use a smaller model"):
        refuse_without_memory(config(model), HostMemory(GIB, GIB), [])


def test_what_lies_there_or_on_a_gpu_is_not_asked_about(model: str) -> None:
    asked = config(model)
    only_draft = HostMemory(2 * GIB, 2 * GIB)
    refuse_without_memory(asked, only_draft, [], target_is_loaded=True)
    on_gpu = replace(asked, device="cuda:0", draft=DraftConfig(model=model, device="cuda:0"))
    refuse_without_memory(on_gpu, HostMemory(0, 0), ["cuda:0"])


def test_an_engine_is_refused_before_it_loads(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "host_memory", lambda: HostMemory(GIB, GIB, is_limited=True))
    monkeypatch.setattr(build, "load_ready", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(ValueError, match="out of memory before anything is loaded"):
        build.build_engine(config(model))


def test_a_draft_is_refused_before_it_loads(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "host_memory", lambda: HostMemory(GIB, GIB, is_limited=True))
    monkeypatch.setattr(program, "load_model", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(ValueError, match=r"draft: .* of weights and 1\.00 GiB of KV cache"):
        program.build_server(DraftConfig(model=model, device="cpu", kv_cache_bytes=GIB), _NoLink())


def test_nothing_to_load_needs_nothing() -> None:
    check_host_memory([], HostMemory(0, 0))
