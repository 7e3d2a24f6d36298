"""What a seed means: targets, drafts, a network and a plan of faults. Nothing here runs.

Each scenario has some of the kinds of faults only, so that combinations differ more than if each had a little
of all. Most pools have room for all sequences; a few are tight, and a few are crowded: too narrow for what
their tenants want.
"""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ssd.draft.protocol.messages import Sampling
from tests.pool.draft import BLOCK, DraftPlan
from tests.pool.faults import KINDS
from tests.pool.target import TargetPlan

GREEDY = (Sampling(seed=1), Sampling(seed=2, end_ids=[1]))
SAMPLED = (
    Sampling(seed=3, temperature=0.7),
    Sampling(seed=4, temperature=0.8, top_p=0.9),
    Sampling(seed=5, repetition_penalty=1.1, frequency_penalty=0.2),
    Sampling(seed=6, temperature=1.0, top_k=5, top_p=0.9, min_tokens=4),
    Sampling(seed=7, temperature=float("nan")),
    Sampling(seed=8, bad_word_ids=[[5, 6], [7]], logit_bias=[(9, 2.0)]),
    Sampling(seed=9, end_ids=[-1, 2**40], noise="of another version", temperature=0.5),
)
_ASKED = 1400
"""Tokens of the longest prompts: a target asks for room before it sends so much."""
_KEYS = ("", "", "red", "blue", "green")
_MIN_STEPS_PER_ROUND = 2.5
"""A draft can run at least this many steps in a round of the fastest target. An outcome waits for the running
step, and processing it takes another one. With fewer steps a draft can be late for every outcome although
nothing is faulty."""


@dataclass(frozen=True, slots=True)
class Strike:
    at: float
    kind: str


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    drafts: tuple[DraftPlan, ...]
    targets: tuple[TargetPlan, ...]
    latency: float
    strikes: tuple[Strike, ...]
    is_roomy: bool
    """Every draft has room for all sequences, and time for them."""
    is_crowded: bool
    """A draft's steps have far fewer rows than its tenants want."""

    @property
    def num_sequences(self) -> int:
        return sum(each.batch for each in self.targets)


def scenario_of(seed: int, *, kinds: Sequence[str] = ()) -> Scenario:
    """`kinds`: those of the faults to choose from; empty: all."""
    chance = random.Random(f"{seed} scenario")
    num_targets, num_drafts = chance.choice((1, 1, 2, 2, 2, 3, 3, 4)), chance.choice((1, 2, 2, 2, 3, 3, 4, 6))
    style = chance.choice(("roomy", "roomy", "roomy", "roomy", "tight", "crowded"))
    lookahead, samples = chance.randint(2, 6), chance.random() < 0.15
    round_seconds = 10 ** chance.uniform(-1.2, -0.6)
    by_name, long_prompt = chance.random() < 0.3, chance.choice((90, 90, 150, 150, _ASKED))
    targets = tuple(
        _target(chance, place, lookahead, round_seconds, long_prompt, samples=samples, by_name=by_name)
        for place in range(num_targets)
    )
    num_sequences, fastest = sum(each.batch for each in targets), min(each.round_seconds for each in targets)
    weights = {
        key: chance.choice((0.5, 1.0, 2.0, 4.0)) for key in sorted({each.key for each in targets} - {""})
    }
    sequences = {
        "roomy": num_sequences + 16,
        "tight": max(_least_trees(targets, weights), num_sequences // 2),
        "crowded": num_sequences + 16,
    }
    width = 3 if style == "crowded" else chance.choice((8, 12, 16)) + num_sequences
    # Long prompts by small chunks would take longer than their requests.
    chunk = 512 if long_prompt == _ASKED else 16 if style == "crowded" else chance.choice((16, 64, 128))
    least_rows = _least_rows(targets, weights) if style == "roomy" else 0
    rows, row_seconds = max(width, least_rows), round_seconds / 1000
    draft = DraftPlan(
        "tcp://",
        sequences=sequences[style],
        width=rows,
        chunk=max(chunk, least_rows),
        num_blocks=long_prompt // BLOCK + chance.choice((14, 30)) if style == "tight" else 900,
        context=2048 if long_prompt == _ASKED else chance.choice((256, 512)),
        lookahead=lookahead,
        step_seconds=min(
            round_seconds / chance.uniform(2.0, 4.0), fastest / _MIN_STEPS_PER_ROUND - rows * row_seconds
        ),
        row_seconds=row_seconds,
        weights=weights,
        samples=samples,
    )
    drafts = tuple(_named(draft, f"tcp://draft{place}:1") for place in range(num_drafts))
    return Scenario(
        seed,
        drafts,
        targets,
        latency=10 ** chance.uniform(-4.0, -2.0),
        strikes=_strikes(chance, kinds),
        is_roomy=style == "roomy",
        is_crowded=style == "crowded",
    )


def _least_trees(targets: Sequence[TargetPlan], weights: Mapping[str, float]) -> int:
    """With fewer, a tenant's share would be less than a tree, and it would have none."""
    tenants = [*weights.values()] + [1.0 for each in targets if not each.key]
    return math.ceil(sum(tenants) / min(tenants)) + 1


def _least_rows(targets: Sequence[TargetPlan], weights: Mapping[str, float]) -> int:
    """Rows of a step that give every tenant two a round for each of its sequences. With fewer, texts of a
    tenant with a small weight grow faster than the draft reads them."""
    sequences = Counter[str]()
    for each in targets:
        sequences[each.key or each.name] += each.batch
    parts = {tenant: weights.get(tenant, 1.0) for tenant in sequences}
    most = max(count / parts[tenant] for tenant, count in sequences.items()) * sum(parts.values())
    return math.ceil(2 * most / _MIN_STEPS_PER_ROUND)


def _named(plan: DraftPlan, address: str) -> DraftPlan:
    return DraftPlan(**{name: getattr(plan, name) for name in plan.__slots__} | {"address": address})


def _target(
    chance: random.Random,
    place: int,
    lookahead: int,
    round_seconds: float,
    long_prompt: int,
    *,
    samples: bool,
    by_name: bool,
) -> TargetPlan:
    forces = chance.choice((0, 0, 4))
    return TargetPlan(
        f"target{place}",
        key=chance.choice(_KEYS),
        batch=chance.randint(1, 4),
        lookahead=lookahead,
        backup=chance.choice(("none", "ngram", "auto", "jit")),
        num_trees=chance.choice((0, 0, 4)),
        round_seconds=round_seconds * chance.uniform(0.8, 1.2),
        row_seconds=round_seconds / 300,
        timeout=chance.uniform(2.5, 4.0),
        surprises=chance.choice((6, 12, 30)),
        forces=forces,
        strays=chance.choice((0, 5)) if forces else 0,
        prompt=chance.choice((8, 40)),
        long_prompt=long_prompt,
        tokens=chance.choice((30, 90)),
        samplings=GREEDY + (SAMPLED if samples else ()),
        by_name=by_name,
    )


_FIRST, _LAST = 0.5, 3.0
"""Seconds between which faults begin."""


def _strikes(chance: random.Random, kinds: Sequence[str]) -> tuple[Strike, ...]:
    known = [*(kinds or KINDS)]
    enabled = chance.sample(known, min(len(known), chance.randint(1, 8)))
    count = chance.randint(3, 16)
    return tuple(
        sorted(
            (Strike(chance.uniform(_FIRST, _LAST), chance.choice(enabled)) for _ in range(count)),
            key=lambda each: each.at,
        )
    )
