"""Autoregressive decoding: one forward, one token for each sequence.

Every other decoder must produce the tokens this one does.
"""

from collections.abc import Sequence

from torch import Tensor

from ssd.decoding.decoder import Decided, DecodeRow
from ssd.runtime.runner import Runner
from ssd.sampling import TokenLogprobs, sample, token_logprobs


class AutoregressiveDecoder:
    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def step(self, rows: Sequence[DecodeRow]) -> list[Decided]:
        forward = [row.to_runner() for row in rows]
        logits = self._runner.forward(forward)
        ends, end = [], 0
        for runner_row in forward:
            end += runner_row.num_logits
            ends.append(end)
        deciding = [index for index, row in enumerate(rows) if row.sampling is not None]
        # Slicing costs nothing where every logit row decides a token, which is nearly always.
        chosen = logits if len(deciding) == end else logits[[ends[index] - 1 for index in deciding]]
        sampled = sample(chosen, [row.sampling for row in rows if row.sampling is not None])
        token_of = dict(zip(deciding, sampled, strict=True))
        return [
            Decided(
                tokens=(token_of[index],) if index in token_of else (),
                prompt_logprobs=_score(row, logits[ends[index] - forward[index].num_logits : ends[index]]),
            )
            for index, row in enumerate(rows)
        ]


def _score(row: DecodeRow, logits: Tensor) -> tuple[TokenLogprobs, ...]:
    if row.scoring is None or not row.scoring.tokens:
        return ()
    tokens = row.scoring.tokens
    return tuple(token_logprobs(logits[: len(tokens)], tokens, row.scoring.num_top))
