"""Scenes by number, each kernel beside its oracle: more than the fixed grid of the tests.

    python -m campaigns.kernels.grid --record FILE.jsonl [--examples 200] [--first 0] [--trees]

`--trees` draws rounds of a draft's trees instead, which have numbers of their own.
A number is the same scene everywhere. The interpreter takes some 0.1 ms for each operation of a program, so
shapes are small; splits are too, so that there are some all the same. What the record holds is not run again.
"""

import argparse
import random
import sys
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.kernels.interpreter import interpret_kernels

interpret_kernels()

import torch

from campaigns.record import Record
from ssd.draft.server.kernel_checks import ForestScene, check_steps
from ssd.draft.tree.tables import Shape
from ssd.kernels import tiles
from ssd.runtime.kernel_checks import AttentionCase, CaseSequence, KernelCase, LogitsCase, check_kernels
from tests.kernels.bfloat16 import bfloat16_computes

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LEAST_SPLIT, FIXED_SPLIT = 32, 64
MOST_KEYS, MOST_ROWS, MOST_NODES, MOST_TOKENS = 150, 9, 100, 2100


def scene_of(number: int) -> KernelCase:
    """Two of three are attention's."""
    rng = random.Random(f"scene {number}")
    return _words(rng) if number % 3 == 2 else _scene(rng)


def _scene(rng: random.Random) -> AttentionCase:
    num_kv_heads, deterministic = rng.choice((1, 1, 2, 3)), rng.random() < 0.3
    return AttentionCase(
        num_kv_heads * rng.choice((1, 2, 4, 7)),
        num_kv_heads,
        rng.choice((16, 32, 64)),
        rng.choice(DTYPES),
        tuple(_part(rng, is_text=deterministic or rng.random() < 0.5) for _ in range(rng.randint(1, 3))),
        page=rng.choice((1, 5, 8, 16, 64)),
        padding=rng.randint(0, 3),
        deterministic=deterministic,
        seed=rng.randrange(10**6),
    )


def _part(rng: random.Random, *, is_text: bool) -> CaseSequence:
    start, count = rng.randint(0 if is_text else 1, MOST_KEYS), rng.randint(1, MOST_ROWS)
    return CaseSequence(start, count, None if is_text else rng.randint(0, MOST_NODES))


def _words(rng: random.Random) -> LogitsCase:
    return LogitsCase(
        rng.randint(1, 4),
        rng.randint(1, MOST_TOKENS),
        truncates=rng.random() < 0.5,
        head_tokens=rng.random() < 0.5,
        dtype=rng.choice(DTYPES),
        seed=rng.randrange(10**6),
    )


def rounds_of(number: int) -> ForestScene:
    """Trees of any shape; those with many slots are half full, so that the second word is met."""
    rng = random.Random(f"trees {number}")
    outcome, slots = rng.randint(1, 6), rng.choice((3, 9, 20, 64, 65, 90))
    shape = Shape(
        rng.randint(2, 4),
        rng.randint(1, 6),
        rows=rng.randint(1, 8),
        lookup=rng.randint(0, 4),
        slots=slots,
        children=rng.randint(1, 4),
        outcome=outcome,
        ring=rng.choice((6, 8, 16)),
        ends=rng.randint(1, 3),
        block=rng.choice((1, 5, 16)),
        blocks=rng.choice((40, 400)),
        first_tree_slot=rng.randrange(10**6),
    )
    return ForestScene(shape, crowd=60 if slots > 60 else 0, seed=rng.randrange(10**6))


def checked(scene: KernelCase | ForestScene) -> dict[str, Any]:
    """Of each kernel how far it is from its oracle; and whether all are near enough."""
    started = time.process_time()
    dtype = torch.float64 if isinstance(scene, ForestScene) else scene.dtype
    splits = patch.multiple(tiles, _LEAST_SPLIT=LEAST_SPLIT, FIXED_SPLIT=FIXED_SPLIT)
    with splits, bfloat16_computes() if dtype == torch.bfloat16 else nullcontext():
        findings = list(
            check_steps(CPU, (scene,)) if isinstance(scene, ForestScene) else check_kernels(CPU, (scene,))
        )
    return {
        "scene": str(scene),
        "dtype": str(dtype).removeprefix("torch."),
        "equal": all(each.is_sound for each in findings),
        "worst": {each.kernel: each.worst for each in findings},
        "trouble": [each.error for each in findings if each.error],
        "seconds": round(time.process_time() - started, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--trees", action="store_true")
    options = parser.parse_args()
    draw, prefix = (rounds_of, "trees ") if options.trees else (scene_of, "")
    torch.set_num_threads(1)
    record, counts, worst = Record(options.record, {}), Counter[str](), dict[str, float]()
    unequal = 0
    for number in range(options.first, options.first + options.examples):
        found = record.find(f"{prefix}{number}")
        if found is None:
            found = checked(draw(number))
            record.add(f"{prefix}{number}", found)
        if not found["equal"]:
            unequal += 1
            sys.stdout.write(f"{number} DIFFERS: {found}\n")
        for kernel, gap in found["worst"].items():
            name = f"{kernel} {found['dtype']}"
            counts[name] += 1
            worst[name] = max(worst.get(name, 0.0), gap)
    for name, count in sorted(counts.items()):
        sys.stdout.write(f"{name:20} {count:5} compared, worst {worst[name]:.1e}\n")
    return int(unequal > 0)


if __name__ == "__main__":
    sys.exit(main())
