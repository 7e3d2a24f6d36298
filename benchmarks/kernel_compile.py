"""Registers, shared memory and spills of each kernel, as its compiler reports them; needs no GPU.

    python -m benchmarks.kernel_compile [--models qwen3-0.6b --targets sm_90 gfx942 --record FILE.jsonl]

Every kernel is launched by its own launcher, at the shapes of real models, with a compiler for each target
in place of a driver. Ends with 1 if a kernel does not compile, spills, or needs more shared memory than the
target has. `--few` compiles each kernel a few times only. Needs Triton.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from benchmarks.flags import parser
from ssd.draft.tree.arrays import TorchArrays
from ssd.draft.tree.children import SAMPLED_CANDIDATES
from ssd.draft.tree.device_news import NewBlocks
from ssd.draft.tree.device_runs import RecentText, empty_paths
from ssd.draft.tree.gpu import STEPS, FusedForest
from ssd.draft.tree.gpu_rows import FusedEdits, FusedNewsWriter, FusedRunFinder
from ssd.draft.tree.tables import Shape
from ssd.integrations.vllm.device_trees import HEADS, empty_nodes, walk_nodes
from ssd.kernels import rows
from ssd.kernels.attention import PagedAttention, VisibleKeys
from ssd.kernels.decide import decide_rows
from ssd.kernels.floors import floors_of
from ssd.kernels.kv import move_kv
from ssd.kernels.rope import rotate_and_write_kv
from ssd.kernels.tiles import AttentionShape
from ssd.kernels.vocabulary import children_of
from ssd.kvcache.pool import NODES_PER_TREE
from ssd.sampling.draws import Draws, Truncation

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED_MEMORY = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "gfx942": 64 << 10}
"""That one program may have."""


@dataclass(frozen=True, slots=True)
class Model:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    drafts: bool


MODELS = {
    "llama-3.1-70b": Model(64, 8, 128, 8192, 28_672, 128_256, drafts=False),
    "llama-3.1-8b": Model(32, 8, 128, 4096, 14_336, 128_256, drafts=False),
    "llama-3.2-3b": Model(24, 8, 128, 3072, 8192, 128_256, drafts=True),
    "llama-3.2-1b": Model(32, 8, 64, 2048, 8192, 128_256, drafts=True),
    "qwen3-32b": Model(64, 8, 128, 5120, 25_600, 151_936, drafts=False),
    "qwen3-0.6b": Model(16, 8, 128, 1024, 3072, 151_936, drafts=True),
    "qwen2.5-0.5b": Model(14, 2, 64, 896, 4864, 151_936, drafts=True),
}
_PAGE, _KEYS, _COLUMNS = 16, 4096, 2048
_CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


@dataclass(frozen=True, slots=True)
class Line:
    """What the compiler says of one kernel with one set of constants."""

    target: str
    model: str
    case: str
    kernel: str
    tile: str
    registers: int
    shared: int
    spills: int
    """Bytes of stack on NVIDIA's, registers spilt on AMD's."""

    @property
    def is_sound(self) -> bool:
        return self.spills == 0 and self.shared <= SHARED_MEMORY[self.target]


class StubDriver:
    """As much of a driver as a launch asks for that is never run."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> str:
        return str(self._target)

    def get_current_stream(self, device: str) -> int:
        return 0


Compiled = tuple[str, dict[str, Any], Any]
_COMPILE_AND_RUN = JITFunction.run


def compile_only(launched: list[Compiled]) -> Callable[..., None]:
    """In place of `JITFunction.run`: compiles what is launched, and notes it."""

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        made = _COMPILE_AND_RUN(kernel, *args, grid=grid, warmup=True, **options)
        launched.append((kernel.__name__, options, made))

    return run


def figures(made: Any) -> tuple[int, int, int]:
    """Registers, shared memory, spills."""
    if "cubin" not in made.asm:
        found = {
            name: int(re.findall(rf"\.{name}:\s+(\d+)", made.asm["amdgcn"])[-1])
            for name in ("vgpr_count", "vgpr_spill_count", "sgpr_spill_count")
        }
        return (
            found["vgpr_count"],
            made.metadata.shared,
            found["vgpr_spill_count"] + found["sgpr_spill_count"],
        )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        command = [str(_CUOBJDUMP), "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack, local = (
        int(re.findall(rf"{name}:(\d+)", said)[-1]) for name in ("REG", "STACK", "LOCAL")
    )
    return registers, made.metadata.shared, stack + local


def cases(model: Model, *, few: bool) -> Iterator[tuple[str, Callable[[], object]]]:
    """Named launches: one sequence and many, alone, verified, in trees, in chunks."""
    counts = [(9, 1)] if few else [(1, 1), (1, 64), (5, 1), (9, 1), (17, 1), (17, 64), (512, 1)]
    for num_rows, sequences in counts:
        yield (
            f"{sequences} × {num_rows} rows",
            lambda: attend(model, num_rows, sequences, deterministic=False),
        )
        yield (
            f"{sequences} × {num_rows} rows, fixed",
            lambda: attend(model, num_rows, sequences, deterministic=True),
        )
    yield "rotate, write", lambda: rotate_and_write(model)
    yield "norm, silu", lambda: between(model)
    yield "decide", lambda: decide(model)
    for num_steps in [4] if few else [1, 2, 4, 8]:
        yield f"walk, {num_steps} tokens", lambda: walk(num_steps)
    if model.drafts:
        yield "move", lambda: move(model)
        yield "children", lambda: children(model)
        for width, number in [(12, 4)] if few else [(12, 4), (64, 8)]:
            yield f"trees, {width} × {number}", lambda: trees(width, number)


def attend(model: Model, num_rows: int, sequences: int, *, deterministic: bool) -> None:
    total = num_rows * sequences
    demand = AttentionShape(
        total, sequences + 1, _KEYS, model.num_heads, model.num_kv_heads, model.head_dim, 2
    )
    sight = VisibleKeys(
        _integers(total),
        _integers(total),
        _integers(total, 2),
        _integers(sequences + 1, _KEYS // _PAGE),
        _integers(sequences + 1),
        _PAGE,
        NODES_PER_TREE if model.drafts and not deterministic else 0,
    )
    pool = _reals(model.num_kv_heads, _KEYS, model.head_dim)
    queries = _reals(total, model.num_heads + model.num_kv_heads, model.head_dim)[:, : model.num_heads]
    PagedAttention(sight, demand, deterministic=deterministic).attend(queries, pool, pool)


def rotate_and_write(model: Model) -> None:
    pool = _reals(model.num_kv_heads, _KEYS, model.head_dim)
    projected = _reals(1, model.num_heads + 2 * model.num_kv_heads, model.head_dim)
    heads, values = projected[:, : -model.num_kv_heads], projected[:, -model.num_kv_heads :]
    angles = torch.zeros(1, 1, model.head_dim // 2)
    rotate_and_write_kv(heads, values, angles, angles, pool, pool, _integers(1))


def between(model: Model) -> None:
    """What is computed for a row between linears."""
    hidden = _reals(1, model.hidden_size)
    rows.add_norm(hidden, hidden, hidden[0], 1e-5)
    rows.silu_mul(_reals(1, 2 * model.intermediate_size))


def move(model: Model) -> None:
    pool = _reals(2, model.num_kv_heads, _KEYS, model.head_dim)
    move_kv(pool, pool, _integers(9), _integers(9))


def decide(model: Model) -> None:
    logits, draws, floors = _reals(1, model.vocab_size), _draws(1), torch.zeros(1)
    for given in (None, floors):
        decide_rows(logits, draws, given)


def walk(num_steps: int) -> None:
    """Drafted tokens on vLLM's V2 runner; the same for every model."""
    lengths = torch.zeros(1, dtype=torch.int32)
    # vLLM 0.31 has int32 here, later ones int64.
    for request_rows in (lengths, _integers(1)):
        walk_nodes(
            empty_nodes(1, lengths.device),
            torch.zeros(1, HEADS, dtype=torch.int32),
            request_rows=request_rows,
            lengths=lengths,
            texts=torch.zeros(1, _KEYS, dtype=torch.int32),
            num_sampled=lengths,
            num_steps=num_steps,
        )


def children(model: Model) -> None:
    """As a draft launches it: each row has the noise of its target, `philox` or `murmur3`."""
    logits, floors = _reals(1, model.vocab_size), torch.zeros(1)
    draws = replace(_draws(1), is_murmur=torch.zeros(1, dtype=torch.bool))
    for head_tokens in (None, _integers(model.vocab_size)):
        children_of(logits, draws, None, 4, head_tokens)
        children_of(logits, draws, floors, 4, head_tokens)
    children_of(logits, draws, None, 8)
    reals = torch.zeros(1, dtype=torch.float64)
    largest, truncation = torch.zeros(1, SAMPLED_CANDIDATES), Truncation(reals, _integers(1), reals)
    for each in (logits, logits.float()):
        floors_of(each, largest, torch.zeros(1), truncation)


def trees(width: int, number: int) -> None:
    """The steps of a draft beside its forward; the same for every model."""
    shape = Shape(1, width, rows=width + 128, lookup=width // 3, children=number, blocks=_KEYS // _PAGE)
    forest = FusedForest(TorchArrays(), shape, kernels=frozenset(STEPS))
    forest.select()
    num_rows, cpu = shape.num_rows + shape.lookup, torch.device("cpu")
    own, recent, paths = (
        forest.rows.part(0, shape.num_rows),
        RecentText.of(shape, cpu),
        empty_paths(shape, num_rows, cpu),
    )
    FusedRunFinder(shape, cpu).find(forest.tables, own, recent, forest.runs, paths)
    forest.lay_runs()
    for head_tokens in (None, torch.arange(_COLUMNS)):
        edits = FusedEdits(shape, _COLUMNS, head_tokens, cpu)
        edits.apply(torch.zeros(num_rows, _COLUMNS), forest.tables, forest.rows, paths, recent)
        new = NewBlocks(_integers(2), _integers(2), _integers(2, 2))
        FusedNewsWriter(recent, edits).write(forest.tables, forest.outcomes, new)
    size = (num_rows, number)
    forest.attach((_integers(*size), torch.zeros(size)))
    forest.apply()


def _integers(*size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.int64)


def _reals(*size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.bfloat16)


def _draws(count: int) -> Draws:
    return Draws(_integers(count), _integers(count), torch.zeros(count))


def lines_of(target: str, names: Sequence[str], *, few: bool) -> Iterator[Line]:
    launched: list[Compiled] = []
    JITFunction.run = compile_only(launched)
    driver.set_active(StubDriver(TARGETS[target]))
    known: set[Any] = set()
    for name in names:
        for case, launch in cases(MODELS[name], few=few):
            launched.clear()
            launch()
            for kernel, options, made in launched:
                if made.hash in known:
                    continue
                known.add(made.hash)
                tile = " ".join(f"{key}={value}" for key, value in options.items())
                yield Line(target, name, case, kernel, tile, *figures(made))


def main() -> int:
    flags = {"models": [*MODELS], "targets": [*TARGETS], "record": None, "few": False}
    options = parser(__doc__, flags).parse_args()
    record = open(options.record, "w") if options.record else None  # noqa: SIM115
    worst = 0
    print(f"{'target':7} {'model':14} {'case':20} {'kernel':18} {'regs':>4} {'shared':>7} {'spills':>6}")
    for target in options.targets:
        for line in lines_of(target, options.models, few=options.few):
            print(
                f"{line.target:7} {line.model:14} {line.case:20} {line.kernel:18} {line.registers:4} "
                f"{line.shared:7} {line.spills:6} {'' if line.is_sound else 'NOT SOUND'}",
                flush=True,
            )
            worst += not line.is_sound
            if record:
                record.write(json.dumps(asdict(line)) + "\n")
    print(f"{worst} of them spill or do not fit" if worst else "none spills, and all fit")
    return int(worst > 0)


if __name__ == "__main__":
    sys.exit(main())
