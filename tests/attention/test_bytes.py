"""What attention holds at a time, at the shapes of a real draft: counted on tensors without memory."""

import weakref
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ssd.attention.backend import AttentionBackend
from ssd.attention.batch import Batch, BatchWriter
from ssd.attention.inputs import PlainInput
from ssd.attention.paged import PagedBackend
from ssd.attention.rotation import Rotation
from ssd.attention.sdpa import SdpaBackend
from ssd.kvcache.pool import KVPool, PoolShape
from ssd.runtime.layout import packed_layout

GIB = 1 << 30
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 32, 8, 64
"""Llama-3.2-1B's."""
CONTEXT, BLOCK, CHUNK, WIDTH = 131072, 16, 128, 16
META = torch.device("meta")


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Of all that operations allocate; views of what is there count nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {_storage(each) for each in torch.utils._pytree.tree_leaves((args, kwargs)) if _is(each)}
        out = func(*args, **(kwargs or {}))
        for each in torch.utils._pytree.tree_leaves(out):
            if _is(each) and _storage(each) not in known | self._storages:
                self._add(each)
        return out

    def _add(self, tensor: Tensor) -> None:
        storage, size = tensor.untyped_storage(), tensor.untyped_storage().nbytes()
        self._storages.add(_storage(tensor))
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._remove, _storage(tensor), size)

    def _remove(self, key: int, size: int) -> None:
        self._storages.discard(key)
        self.now -= size


def _is(value: object) -> bool:
    return isinstance(value, Tensor)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def peak_of(backend: AttentionBackend, batch: Batch) -> int:
    """A layer's, its plan included."""
    num_rows = batch.num_rows
    heads = torch.empty(num_rows, NUM_HEADS + NUM_KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device=META)
    values = torch.empty(num_rows, NUM_KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device=META)
    rotation = Rotation.none(num_rows, HEAD_DIM, META)
    with LiveBytes() as live:
        backend.plan(batch).attend(0, heads, values, rotation)
    return int(live.peak)


def test_without_kernels_a_step_of_a_draft_fits_beside_its_model() -> None:
    """A chunk of a prompt that is as long as can be, and sixteen texts that are; a step of the real size."""
    num_blocks = CONTEXT // BLOCK
    shape = PoolShape(1, NUM_KV_HEADS, HEAD_DIM, 2 * num_blocks, BLOCK, torch.bfloat16, META, 16)
    pool = KVPool(shape)
    apart = list(range(0, 2 * num_blocks, 2))
    rows = [PlainInput([1] * CHUNK, CONTEXT - CHUNK, apart, 1, generated=False)]
    rows += [PlainInput([1], CONTEXT - 1, apart, 1, generated=True) for _ in range(WIDTH)]
    batch = BatchWriter(BLOCK, scratch_slot=0).write(rows, packed_layout(rows))
    eager = peak_of(SdpaBackend(pool, NUM_HEADS), batch)
    assert eager < 4 * GIB, f"{eager / GIB:.1f} GiB"
    there = {
        each.name: getattr(batch, each.name).to(META)
        for each in fields(batch)
        if isinstance(getattr(batch, each.name), Tensor)
    }
    # What it is instead of: each row with all keys gathered for itself.
    assert peak_of(PagedBackend(pool), replace(batch, **there)) > 40 * GIB
