"""Settings for loading a model and its KV cache, made by EngineConfig and DraftConfig."""

from dataclasses import dataclass
from typing import Literal

DType = Literal["auto", "bfloat16", "float16", "float32"]
Precision = Literal["auto", "model", "int8"]
"""How matrices are held: in the model's number format, or in int8."""
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
    is_draft: bool = False
    """A draft's tokens are verified, so `auto` may round its weights."""
    head: int | None = None
    """Number of frequent tokens for which logits are computed; None: all. For drafts only."""
    max_model_len: int | None = None
    max_num_seqs: int = MAX_NUM_SEQS
    num_trees: int = 0
    """Most sequences with a tree: at a draft, or in one verification."""
    least_trees: int = 0
    """Trees that must fit into memory: 1 for a draft, 0 for a target."""
    block_size: int = BLOCK_SIZE
    kv_cache_bytes: int | None = None
    """None: `KV_CACHE_BYTES` on a CPU, the free memory on a GPU."""
    kv_share: float = 1.0
    """Share of a GPU's free memory; less than 1 if another model will be loaded there."""
    num_blocks: int | None = None
    step_rows: int = 512
    """Rows of the largest step, for which memory is reserved."""
    step_logits: int = MAX_NUM_SEQS
    """Rows of that step whose logits are computed."""
    deterministic: bool = False
    decode_tile: int = DECODE_TILE
    prefill_tile: int = PREFILL_TILE
