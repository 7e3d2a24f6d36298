"""Which backend computes attention on a device: our kernels where they can be launched, else torch."""

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
    """For steps of any shape."""
    fused = _fused(pool, num_heads, deterministic=deterministic)
    return fused or SdpaBackend(pool, num_heads, deterministic=deterministic)


def captured_backend(pool: KVPool, num_heads: int) -> AttentionBackend | None:
    """For steps that are captured: no value is read on the host. None: steps are better computed eagerly.

    Without kernels each row would have all keys that it could see gathered for itself: 54 GiB a layer for a
    model of 1B parameters with texts of 128k tokens. Only a CPU that stands in for a GPU does that, in tests.
    """
    if pool.shape.device.type == "cpu":
        return PagedBackend(pool)
    return _fused(pool, num_heads, deterministic=False)


def deterministic_captured_backend(pool: KVPool, num_heads: int) -> AttentionBackend | None:
    """None: no attention that can be captured has the bits of the eager one."""
    return _fused(pool, num_heads, deterministic=True)


def mover(pool: KVPool) -> "Callable[[Tensor, Tensor], None]":
    """Copies slots to others of every layer, of which none is a source: `KVPool.move`, or our kernel."""
    if pool.shape.device.type == "cpu":
        return pool.move
    # Not before they are wanted: Triton takes long to import, and is of use on a GPU only.
    from ssd.kernels.kv import move_kv
    from ssd.kernels.trust import may_run

    return partial(move_kv, pool.keys, pool.values) if may_run("move", pool.shape.device) else pool.move


def _fused(pool: KVPool, num_heads: int, *, deterministic: bool) -> AttentionBackend | None:
    if pool.shape.device.type == "cpu":
        return None
    # Not before they are wanted: Triton takes long to import, and is of use on a GPU only.
    from ssd.attention.fused import FusedBackend
    from ssd.kernels.tiles import can_attend
    from ssd.kernels.trust import may_run

    shape = pool.shape
    if not may_run("attention", shape.device) or not can_attend(
        num_heads, shape.num_kv_heads, shape.head_dim
    ):
        return None
    return FusedBackend(pool, num_heads, deterministic=deterministic)
