"""Checks that AR, SD and SSD generate the same tokens with a small random target and draft.

Uses deterministic mode and float32, so that ties are resolved equally. Also measures the host time of a step.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssd.config import Mode
from ssd.engine.llm import LLM
from ssd.engine.outputs import EngineStats
from ssd.sampling import SamplingParams
from ssd.selftest.made_up import write_pair
from ssd.selftest.results import CheckResult

_PART = "modes"
_MODES: tuple[Mode, ...] = ("ar", "sd", "ssd")
_PROMPTS = ("Once upon a time", "def add(a, b):\n", "1 2 3 4 5")
_TOKENS = 48


@dataclass(frozen=True, slots=True)
class ModeRun:
    texts: list[tuple[int, ...]]
    stats: EngineStats

    @property
    def host_seconds(self) -> float:
        """Mean time of a step without its forward and waiting."""
        return self.stats.host_seconds / max(1, self.stats.num_steps)


def run_modes(device: str) -> dict[Mode, ModeRun]:
    """Run each mode on the same prompts and seeds with one loaded target."""
    with tempfile.TemporaryDirectory(prefix="ssd-selftest-") as folder:
        target, draft = write_pair(Path(folder))
        settings: dict[str, Any] = {"device": device, "dtype": "float32", "deterministic": True}
        drafting = {"model": str(draft), "device": device, "precision": "model", "kv_cache_bytes": 1 << 26}
        runs: dict[Mode, ModeRun] = {}
        with LLM(
            str(target),
            show_progress=False,
            num_blocks=64,
            max_num_seqs=4,
            kv_cache_bytes=1 << 26,
            **settings,
        ) as llm:
            for mode in _MODES:
                if mode != "ar":
                    llm.switch_mode(mode, draft=drafting)
                runs[mode] = _run(llm)
    return runs


def _run(llm: LLM) -> ModeRun:
    params = [
        SamplingParams(temperature=heat, seed=7, max_tokens=_TOKENS, ignore_eos=True) for heat in (0.0, 0.8)
    ]
    texts = [
        output.outputs[0].token_ids
        for each in params
        for output in llm.generate(list(_PROMPTS), each, use_tqdm=False)
    ]
    return ModeRun(texts, llm.stats)


def mode_results(runs: dict[Mode, ModeRun]) -> Iterator[CheckResult]:
    plain = runs["ar"]
    for mode in ("sd", "ssd"):
        speculation = runs[mode].stats.speculation
        same = sum(a == b for a, b in zip(runs[mode].texts, plain.texts, strict=True))
        counts = (
            f"{same} of {len(plain.texts)} texts as mode ar writes them, "
            f"{speculation.accepted} of {speculation.drafted} drafted tokens accepted"
        )
        if same < len(plain.texts):
            yield CheckResult(_PART, mode, counts, "failed", "a mode must not change a token")
        elif not speculation.accepted:
            why = "no drafted token was accepted: nothing was shown"
            yield CheckResult(_PART, mode, counts, "failed", why)
        else:
            yield CheckResult(_PART, mode, counts)
