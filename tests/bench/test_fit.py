"""What cannot be had here is refused before anything is loaded: from settings and headers alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ssd.bench.cases import parse_case
from ssd.bench.engines import CaseEngines
from ssd.config import DraftConfig, EngineConfig
from ssd.engine.build import build_engine
from ssd.models import arithmetic
from ssd.models.arithmetic import Arithmetic
from ssd.runtime import loading
from tests.tiny import tiny_tokenizer, write_checkpoint


@pytest.fixture(autouse=True)
def _nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("weights were loaded before the refusal")

    monkeypatch.setattr(loading, "DenseDecoder", refuse)


def build(config: EngineConfig) -> Any:
    return build_engine(config)


def bench(config: EngineConfig) -> Any:
    assert config.draft is not None
    case = parse_case(f"{config.mode}+int8" if config.draft.precision == "int8" else config.mode)
    draft = replace(config.draft, precision="auto")
    return CaseEngines(replace(config, mode="ar", draft=None), draft, [case])


STARTS = pytest.mark.parametrize("start", [build, bench])
MODES = pytest.mark.parametrize("mode", ["sd", "ssd"])
Start = Callable[[EngineConfig], Any]


@STARTS
@MODES
def test_int8_on_a_cpu_without_it(
    start: Start, mode: Any, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = Arithmetic(bfloat16=False, packs_float32=False, int8_steps=None)
    monkeypatch.setattr(arithmetic, "arithmetic", lambda: has)
    model = str(tiny_llama)
    draft = DraftConfig(model=model, device="cpu", precision="int8")
    config = EngineConfig(model=model, draft=draft, mode=mode, device="cpu")
    with pytest.raises(ValueError, match=r"no int8 linears.*use precision 'auto' or 'model'"):
        start(config)


@STARTS
@MODES
def test_a_draft_with_another_tokenizer(start: Start, mode: Any, tiny_llama: Path, tmp_path: Path) -> None:
    other = write_checkpoint("qwen2", tmp_path)
    tiny_tokenizer(["entirely different words about rivers, mountains and trains"]).save_pretrained(other)
    config = EngineConfig(model=str(tiny_llama), draft=DraftConfig(model=str(other)), mode=mode, device="cpu")
    with pytest.raises(ValueError, match="their tokenizers differ"):
        start(config)
