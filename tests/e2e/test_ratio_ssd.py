"""Ratio acceptance with a draft that works ahead: the texts are distributed as the target's own.

A real draft service in memory, adversarial about time: it takes no, one or several steps while the
target verifies. Texts of three tokens are few enough under top_k to compare counts with the law.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from campaigns.e2e.faults import Bench, Target, Trial
from campaigns.e2e.other_drafts import blurred_draft
from ssd import SamplingParams
from ssd.attention.inputs import PlainInput
from ssd.decoding.ahead import DraftAhead
from ssd.decoding.decoder import Decoder
from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import FixedSources
from ssd.draft.client.controller import Controller, VerifyTimes
from ssd.draft.client.speculator import Speculator
from ssd.draft.protocol.messages import Hello
from ssd.runtime.runner import forward
from ssd.sampling import History, SamplingRow
from ssd.sampling.ratio import target_probabilities
from tests.e2e.draft_in_memory import InMemoryDraft

PROMPT = "Once upon a time"
LENGTH, NUM_TEXTS = 4, 1536
SAMPLING = {"temperature": 1.5, "top_k": 2, "max_tokens": LENGTH, "ignore_eos": True}


class FreeRows(VerifyTimes):
    """Times in which every row is free: whether speculation pays for so small a model is not asked here."""

    is_in_doubt = False

    def note(self, num_rows: int, seconds: float, *, is_speculating: bool, has_trees: bool = False) -> None:
        pass


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("models"))


def law(bench: Bench) -> dict[tuple[int, ...], float]:
    """The probability of each text, one forward a prefix."""
    prompt = bench.llm.tokenizer(PROMPT).input_ids
    params = SamplingParams(**SAMPLING)  # type: ignore[arg-type]
    texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        longer: dict[tuple[int, ...], float] = {}
        for text, probability in texts.items():
            tokens = [*prompt, *text]
            logits = forward(bench._runner, [PlainInput(tokens, 0, range(8), 1, generated=False)])[0]
            row = SamplingRow(params, 0, len(tokens), prompt, History(tokens, len(prompt)))
            p = target_probabilities(logits, row)
            for token in np.flatnonzero(p).tolist():
                longer[(*text, token)] = probability * float(p[token])
        texts = longer
    return texts


def drawn(bench: Bench, draft: Path, saguaro: float) -> tuple[Counter[tuple[int, ...]], int]:
    hello = Hello.of(bench.llm.tokenizer, vocab_size=512, name="target", max_model_len=512)
    trial = Trial("none", "none", seed=7)
    trial.draft = InMemoryDraft(draft, hello, trial.clock, width=64)
    trial.client = DraftClient(FixedSources(trial.draft), lookahead=3, clock=trial.clock)
    controller = Controller()
    controller.times = FreeRows()
    speculator = Speculator(
        trial.client, lookahead=3, backup="none", controller=controller, clock=trial.clock
    )
    target = Target(bench._runner, trial)
    core = bench.llm._engine.core
    plain, core._decoder, core._acceptance = (
        core._decoder,
        Decoder(target, DraftAhead(speculator, acceptance="ratio", saguaro=saguaro)),
        "ratio",
    )
    try:
        params = [SamplingParams(seed=seed, **SAMPLING) for seed in range(NUM_TEXTS)]  # type: ignore[arg-type]
        found = bench.llm.generate([PROMPT] * NUM_TEXTS, params, use_tqdm=False)
    finally:
        core._decoder, core._acceptance = plain, "coupled"
    accepted = sum(each.outputs[0].speculation.accepted for each in found)
    return Counter(each.outputs[0].token_ids for each in found), accepted


KINDS = [
    (0.0, 0.5),
    (0.01, 1.0),
    *(pytest.param(*each, marks=pytest.mark.slow) for each in ((0.0, 1.0), (0.01, 0.5))),
]


@pytest.mark.parametrize(("blur", "saguaro"), KINDS)
def test_texts_follow_the_targets_law(bench: Bench, tmp_path: Path, blur: float, saguaro: float) -> None:
    expected = law(bench)
    counts, accepted = drawn(bench, blurred_draft(bench.target, blur, tmp_path), saguaro)
    assert set(counts) <= set(expected)
    assert accepted > NUM_TEXTS // 8  # otherwise nothing was tested
    observed = [counts[text] for text in expected]
    total = sum(expected.values())
    wanted = [NUM_TEXTS * probability / total for probability in expected.values()]
    assert scipy.stats.chisquare(observed, wanted).pvalue > 1e-4
