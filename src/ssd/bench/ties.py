"""How close a decision was where two texts part: the gap between the scores of their two tokens, in logits.

Knows a loaded target and two texts of it. A score is what sampling compares: a token's logit, and above T = 0
the seed's noise times T. One more forward, over the text that both share, computes it after the run.
"""

from collections.abc import Sequence

import torch

from ssd.attention.inputs import PlainInput
from ssd.bench.engines import CaseEngines
from ssd.runtime.runner import forward
from ssd.sampling import gumbel_noise_at


def gap_between(
    engines: CaseEngines, prompt: str, shared: Sequence[int], tokens: Sequence[int], *, t: float, seed: int
) -> float:
    """Of the two `tokens` that follow a prompt and the `shared` text after it, at temperature `t`."""
    loaded = engines.engine.loaded
    ids = [*engines.engine.requests.tokenizer(prompt).input_ids, *shared]
    blocks = list(range(-(-len(ids) // loaded.pool.shape.block_size)))
    logits = forward(loaded.runner, [PlainInput(ids, 0, blocks, 1, generated=False)])[0]
    scores = logits[torch.tensor(tokens, device=logits.device)].cpu()
    if t > 0:
        scores = scores + t * gumbel_noise_at(seed, len(ids), torch.tensor(tokens))
    return abs(float(scores[0] - scores[1]))
