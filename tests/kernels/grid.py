"""Scenes that hypothesis makes up, each kernel beside its oracle.

python -m tests.kernels.grid [--examples 200] [--seed 0]
"""

import argparse
import sys
from collections import Counter
from contextlib import nullcontext

from tests.kernels.interpreter import interpret_kernels

interpret_kernels()

import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from ssd.runtime.kernel_checks import Part, Scene, Words, check_kernels
from tests.kernels.bfloat16 import bfloat16_computes

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

texts = st.builds(Part, st.integers(0, 600), st.integers(1, 17))
trees = st.builds(Part, st.integers(1, 600), st.integers(1, 17), st.integers(0, 111))


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    num_kv_heads = draw(st.integers(1, 3))
    deterministic = draw(st.booleans())
    kinds = texts if deterministic else st.one_of(texts, trees)
    return Scene(
        num_kv_heads * draw(st.integers(1, 8)),
        num_kv_heads,
        draw(st.sampled_from((64, 128))),
        draw(st.sampled_from(DTYPES)),
        tuple(draw(st.lists(kinds, min_size=1, max_size=3))),
        page=draw(st.sampled_from((1, 5, 8, 16, 64))),
        padding=draw(st.integers(0, 5)),
        deterministic=deterministic,
        seed=draw(st.integers(0, 10**6)),
    )


words = st.builds(
    Words,
    st.integers(1, 5),
    st.integers(1, 3000),
    truncates=st.booleans(),
    head_tokens=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 10**6),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    worst: dict[str, float] = {}

    @seed(options.seed)
    @settings(
        max_examples=options.examples, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.one_of(scenes(), words))
    def check(scene: Scene | Words) -> None:
        with bfloat16_computes() if scene.dtype == torch.bfloat16 else nullcontext():
            for finding in check_kernels(CPU, (scene,)):
                name = f"{finding.kernel} {str(scene.dtype).removeprefix('torch.')}"
                counts[name] += 1
                worst[name] = max(worst.get(name, 0.0), finding.worst)
                assert finding.is_sound, finding

    check()
    for name, count in sorted(counts.items()):
        print(f"{name:20} {count:5} equal, worst {worst[name]:.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
