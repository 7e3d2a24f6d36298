"""Chooses the attention backend of a device: our kernels if they can be launched, else torch."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ssd.attention.backend import AttentionBackend
from ssd.attention.paged import PagedBackend
from ssd.attention.sdpa import SdpaBackend
from ssd.kvcache.pool import KVPool

if TYPE_CHECKING:
    from torch import Tensor


def eager_backend(pool: KVPool, num_heads: int, *, deterministic: bool) -> AttentionBackend:
    """The backend for steps of any shape."""
    fused = _fused(pool, num_heads, deterministic=deterministic)
    return fused or SdpaBackend(pool, num_heads, deterministic=deterministic)


def captured_backend(pool: KVPool, num_heads: int) -> AttentionBackend | None:
    """The backend for captured steps, which reads no value on the host. None: steps must run eagerly.

    Without our kernels, every row would gather all keys that it might see: 54 GiB a layer for a model of 1B
    parameters and texts of 128k tokens. Only tests do that, on a CPU instead of a GPU.
    """
    if pool.shape.device.type == "cpu":
        return PagedBackend(pool)
    return _fused(pool, num_heads, deterministic=False)


def deterministic_captured_backend(pool: KVPool, num_heads: int) -> AttentionBackend | None:
    """None if no backend that can be captured computes the same bits as the eager one."""
    return _fused(pool, num_heads, deterministic=True)


def mover(pool: KVPool) -> "Callable[[Tensor, Tensor], None]":
    """A function that copies slots of every layer; no destination may be a source."""
    if pool.shape.device.type == "cpu":
        return pool.move
    # Imported here because Triton takes long to import and is used on GPUs only.
    from ssd.kernels.kv import move_kv
    from ssd.kernels.language import can_launch

    return partial(move_kv, pool.keys, pool.values) if can_launch(pool.shape.device) else pool.move


def _fused(pool: KVPool, num_heads: int, *, deterministic: bool) -> AttentionBackend | None:
    if pool.shape.device.type == "cpu":
        return None
    # Imported here because Triton takes long to import and is used on GPUs only.
    from ssd.attention.fused import FusedBackend
    from ssd.kernels.language import can_launch
    from ssd.kernels.tiles import can_attend

    shape = pool.shape
    if not can_launch(shape.device) or not can_attend(num_heads, shape.num_kv_heads, shape.head_dim):
        return None
    return FusedBackend(pool, num_heads, deterministic=deterministic)
