"""What a draft would have guessed for texts that the target wrote: the round model's view of the prompts.

One forward of the draft over each text tells, at every place, its likeliest next tokens, how sure it was and
which of them the target took. The chances are calibrated by the draft's own rule, from the same texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ssd.attention.rows import PlainRow
from ssd.config import MAX_CHILDREN, MAX_LOOKAHEAD
from ssd.draft.children import Children, likely_children
from ssd.draft.ngram import right_guesses
from ssd.planning.text import MISSED, Text
from ssd.runtime.loading import LoadedModel
from ssd.runtime.runner import forward
from ssd.sampling import History, SamplingParams, SamplingRow
from ssd.tuning.calibration import Calibration, Observation


@dataclass(frozen=True, slots=True)
class Written:
    """A prompt and what the target wrote after it."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    params: SamplingParams
    seed: int


def texts_of(draft: LoadedModel, written: Sequence[Written]) -> list[Text]:
    guesses = [_guesses(draft, each) for each in written]
    ranks = [
        [_rank(children, token) for children, token in zip(found, each.tokens, strict=True)]
        for found, each in zip(guesses, written, strict=True)
    ]
    calibration = Calibration()
    for found, taken in zip(guesses, ranks, strict=True):
        for children, rank in zip(found, taken, strict=True):
            calibration.learn(Observation(children.raws, None if rank == MISSED else rank))
    return [
        Text(
            _chances(found, calibration),
            np.array(taken, dtype=np.int64),
            np.array(right_guesses(each.prompt, each.tokens, MAX_LOOKAHEAD), dtype=np.int64),
        )
        for found, taken, each in zip(guesses, ranks, written, strict=True)
    ]


def _guesses(draft: LoadedModel, written: Written) -> list[Children]:
    ids, count = [*written.prompt, *written.tokens], len(written.tokens)
    if len(ids) > draft.max_model_len:
        raise ValueError(
            f"a prompt and its answer have {len(ids)} tokens, the draft takes {draft.max_model_len}: give "
            "shorter prompts, or fewer --max-tokens"
        )
    blocks = list(range(-(-len(ids) // draft.pool.shape.block_size)))
    logits = forward(draft.runner, [PlainRow(ids[:-1], 0, blocks, count, generated=False)])
    rows = [
        SamplingRow(
            params=written.params,
            seed=written.seed,
            position=len(written.prompt) + place,
            prompt=written.prompt,
            output=History(written.tokens[:place]),
        )
        for place in range(count)
    ]
    return likely_children(logits, rows, MAX_CHILDREN, head_tokens=draft.head_tokens)


def _rank(children: Children, token: int) -> int:
    found = np.flatnonzero(children.tokens == token)
    return int(found[0]) if len(found) else MISSED


def _chances(
    found: Sequence[Children], calibration: Calibration
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    chances = np.zeros((len(found), MAX_CHILDREN))
    for place, children in enumerate(found):
        said = np.exp(calibration.logprobs(children.raws))
        chances[place, : len(said)] = said
    return chances
