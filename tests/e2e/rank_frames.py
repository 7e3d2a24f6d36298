"""A draft of one rank and of two beside it: the same frames, but for rounding.

    python -m tests.e2e.rank_frames MODEL_FOLDER

Both grow the same texts and hear the same outcomes, the first's own likeliest tokens among them.
"""

import json
import random
import sys
from dataclasses import replace

import numpy as np

from ssd.config import DraftConfig
from ssd.draft.forest.frames import Frames
from ssd.draft.forest.grower import ForestGrower
from ssd.draft.forest.planted import Planted
from ssd.draft.messages import Open, Sampling, pack_ints
from ssd.draft.program import build_grower, shape_for, start_team
from ssd.runtime.loading import LoadedModel, load_model
from tests.still_clock import still

STEPS, SEQUENCES, VOCAB = 24, 3, 300


def grower(loaded: LoadedModel, config: DraftConfig) -> ForestGrower:
    return build_grower(loaded, shape_for(loaded, config), config, clock=still)


def plant(side: ForestGrower, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(SEQUENCES):
        tokens = [rng.randrange(2, VOCAB) for _ in range(5 + 40 * number)]
        heat = 0.8 if number == 1 else 0.0
        sampling = Sampling(seed=number, temperature=heat)
        opening = Open(number, 1, pack_ints(tokens), len(tokens), 400, 8, sampling)
        side.open(number, Planted(opening, max_len=side.max_model_len, vocab_size=VOCAB))


def worst_gap(one: Frames | None, two: Frames | None) -> float:
    """Of log-probabilities; infinite where the nodes are others."""
    if one is None or two is None:
        return 0.0 if one is two else float("inf")
    if not np.array_equal(one.new.nodes, two.new.nodes) or not np.array_equal(one.heads, two.heads):
        return float("inf")
    return float(np.abs(one.new.logprobs - two.new.logprobs).max(initial=0.0))


def play(sides: tuple[ForestGrower, ForestGrower]) -> dict[str, float]:
    """Now and then an outcome: the first child of the root that was told last, or another token."""
    rng, worst, num_nodes, counts = random.Random(1), 0.0, 0, [0] * SEQUENCES
    for step in range(STEPS):
        (one, _), (two, _) = (each.grow() for each in sides)
        worst = max(worst, worst_gap(one, two))
        num_nodes += 0 if one is None else one.new.nodes.shape[1]
        if one is None or step % 3 != 2:
            continue
        for _row, part in one.parts():
            children = [
                token for token, parent in zip(part.tokens, part.parents, strict=True) if parent == part.root
            ]
            said = children[0] if children and rng.random() < 0.7 else rng.randrange(2, VOCAB)
            counts[part.seq] += 1
            for each in sides:
                each.advance(part.seq, counts[part.seq], [said])
    return {"worst": worst, "nodes": num_nodes}


def main() -> None:
    config = DraftConfig(
        model=sys.argv[1], device="cpu", dtype="float32", precision="model", kv_cache_bytes=1 << 25,
        max_num_seqs=4,
    )  # fmt: skip
    team = start_team(replace(config, tensor_parallel_size=2))
    assert team is not None
    two = grower(load_model(team.runner, ranks=team.ranks), config)
    one = grower(load_model(config.runner), config)
    for side in (one, two):
        plant(side, 0)
    print(json.dumps(play((one, two))))
    team.close()


if __name__ == "__main__":
    main()
