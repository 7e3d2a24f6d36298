"""One forward of the target that decides tokens, with or without drafted ones: the heart of every decoder.

Coupled acceptance. The token at a position is defined by the target's logits and the noise
at that position alone, y = argmax(z/T + g). The forward gives z at the last known token and
after each drafted one, so y is evaluated at every place the drafted tokens lead to, and a
drafted token is accepted while it equals y:

    known: … x      drafted: s1 s2 s3      decided: y0 y1 y2 y3
    y0 = s1, y1 = s2, y2 ≠ s3   →   new tokens y0 y1 y2, outcome (2, y2)

Every emitted token is the target's own, so a draft can cost time but never change a token.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ssd.decoding.decoder import Decided, DecodeRow, PromptScoring
from ssd.runtime.runner import Runner
from ssd.sampling import SampledToken, SamplingRow, TokenLogprobs, sample, token_logprobs


def verify(runner: Runner, rows: Sequence[DecodeRow]) -> list[Decided]:
    forward = [row.to_runner() for row in rows]
    logits = runner.forward(forward)
    positions = [decided_positions(row) for row in rows]
    places, end = list[int](), 0
    for runner_row, decided in zip(forward, positions, strict=True):
        end += runner_row.num_logits
        places.extend(range(end - len(decided), end))
    # All logit rows decide a token, which is nearly always so: then none is copied.
    chosen = logits if len(places) == end else logits[places]
    sampled = iter(sample(chosen, [position for decided in positions for position in decided]))
    results, first = [], 0
    for row, runner_row, decided in zip(rows, forward, positions, strict=True):
        tokens = [next(sampled) for _ in decided]
        results.append(Decided(accept(tokens, row.drafted), _score(row.scoring, logits, first)))
        first += runner_row.num_logits
    return results


def decided_positions(row: DecodeRow) -> list[SamplingRow]:
    """The position after the last known token, and those after each drafted one as if it were right."""
    if row.sampling is None:
        return []
    known, drafted = row.sampling, row.drafted
    later = [
        replace(known, position=known.position + count, output=known.output.followed_by(drafted[:count]))
        for count in range(1, len(drafted) + 1)
    ]
    return [known, *later]


def accept(decided: Sequence[SampledToken], drafted: Sequence[int]) -> tuple[SampledToken, ...]:
    """The decided tokens up to and including the first that no drafted token foretold."""
    num_accepted = 0
    while num_accepted < len(drafted) and decided[num_accepted].token == drafted[num_accepted]:
        num_accepted += 1
    return tuple(decided[: num_accepted + 1])


def _score(scoring: PromptScoring | None, logits: Tensor, first: int) -> tuple[TokenLogprobs, ...]:
    if scoring is None or not scoring.tokens:
        return ()
    tokens = scoring.tokens
    return tuple(token_logprobs(logits[first : first + len(tokens)], tokens, scoring.num_top))
