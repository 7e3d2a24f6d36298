"""What it takes to load a model and give it memory: the part that engine and draft both have.

Nobody writes one by hand: EngineConfig and DraftConfig make theirs.
"""

from dataclasses import dataclass
from typing import Literal

DType = Literal["auto", "bfloat16", "float16", "float32"]
Precision = Literal["auto", "model", "int8"]
"""How a draft's weights are kept: in its own number format, or rounded to int8."""
MAX_NUM_SEQS = 64
BLOCK_SIZE = 16
KV_CACHE_BYTES = 2 << 30
DECODE_TILE, PREFILL_TILE = 16, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    model: str
    device: str = "auto"
    dtype: DType = "auto"
    cores: tuple[int, ...] = ()
    precision: Precision = "model"
    """Rounded weights change logits: for drafts alone, which are only ever checked."""
    head: int | None = None
    """So many frequent tokens have logits; None: all. For drafts alone."""
    max_model_len: int | None = None
    max_num_seqs: int = MAX_NUM_SEQS
    num_trees: int = 0
    """Sequences that may have a tree: of a draft that works ahead, or in one verification."""
    least_trees: int = 0
    """A draft cannot do without; a target's texts come first."""
    block_size: int = BLOCK_SIZE
    kv_cache_bytes: int | None = None
    """None: `KV_CACHE_BYTES` on a CPU; on a GPU what is left."""
    kv_share: float = 1.0
    """Of what a GPU has left: less where another model is still to come."""
    num_blocks: int | None = None
    step_rows: int = 512
    """Of the largest step: what memory is planned for."""
    step_logits: int = MAX_NUM_SEQS
    """Rows of it whose logits are wanted."""
    deterministic: bool = False
    decode_tile: int = DECODE_TILE
    prefill_tile: int = PREFILL_TILE
