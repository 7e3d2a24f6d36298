"""The dense decoder of the Llama and Qwen shape.

Knows the arithmetic of one forward over rows of tokens. Does not know sequences, blocks or batches: the
attention plan holds which keys each row sees, and `tiles` how rows are grouped for the linears.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ssd.attention.backend import AttentionPlan
from ssd.attention.rotation import Rotation
from ssd.models.config import ModelConfig
from ssd.models.int8 import InputBits, Int8Matrix, rounded
from ssd.models.linear import Linear, MakeMatMul, Matrix, Weighted, matmul
from ssd.models.rope import RopeTable, rope_table
from ssd.models.row_math import RowMath, row_math_on
from ssd.models.shards import ShardThreads, sharded
from ssd.models.weights import TrackedSource, WeightSource


@dataclass(frozen=True, slots=True)
class DecoderInput:
    """The rows of one forward: a token and a position for each row."""

    tokens: Tensor
    positions: Tensor
    plan: AttentionPlan
    tiles: tuple[int, ...] = ()
    """Row counts of consecutive tiles; empty: all rows at once."""


class RMSNorm:
    def __init__(self, weight: Tensor, eps: float, row_math: RowMath) -> None:
        self._weight = weight
        self._shape = tuple(weight.shape)
        self._eps = eps
        self._row_math = row_math

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self._shape, self._weight, self._eps)

    def add(self, hidden: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor]:
        """hidden + delta, and its norm."""
        if delta is None:
            return hidden, self(hidden)
        return self._row_math.add_norm(hidden, delta, self._weight, self._eps)


@dataclass(frozen=True, slots=True)
class _WeightReader:
    """Reads weights by their Hugging Face names, which start with `prefix`."""

    source: WeightSource
    dtype: torch.dtype
    device: torch.device
    int8_input_bits: InputBits | None
    """None: matrices are not rounded."""
    prefix: str = ""

    def tensor(self, name: str) -> Tensor:
        return self.source.read(f"{self.prefix}{name}").to(self.device, self.dtype)

    def matrix(self, name: str) -> Matrix:
        if self.int8_input_bits is None:
            return self.tensor(name)
        # Rounded from the stored format: a detour through bfloat16 would round twice.
        return rounded(self.source.read(f"{self.prefix}{name}"), self.int8_input_bits)

    def layer(self, index: int) -> "_WeightReader":
        return replace(self, prefix=f"model.layers.{index}.")

    def linear(self, name: str, *, bias: bool) -> Weighted:
        return self.matrix(f"{name}.weight"), self.tensor(f"{name}.bias") if bias else None


class DecoderLayer:
    def __init__(
        self,
        index: int,
        config: ModelConfig,
        checkpoint: _WeightReader,
        make: MakeMatMul,
        row_math: RowMath,
    ) -> None:
        self._index = index
        self._row_math = row_math
        self._head_dim = config.head_dim
        self._num_heads = config.num_heads
        self._num_kv_heads = config.num_kv_heads
        bias, eps = config.attention_bias, config.norm_eps
        # Qwen2 has biases on q, k and v only; a Llama with attention_bias also has one on the output.
        output_bias = bias and not config.family.qkv_bias
        projections = [checkpoint.linear(f"self_attn.{name}_proj", bias=bias) for name in "qkv"]
        self._qkv = Linear(projections, make)
        self._output = Linear([checkpoint.linear("self_attn.o_proj", bias=output_bias)], make)
        halves = [checkpoint.linear(f"mlp.{name}_proj", bias=config.mlp_bias) for name in ("gate", "up")]
        self._gate_up = Linear(halves, make)
        self._down = Linear([checkpoint.linear("mlp.down_proj", bias=config.mlp_bias)], make)
        self._input_norm = RMSNorm(checkpoint.tensor("input_layernorm.weight"), eps, row_math)
        self._mlp_norm = RMSNorm(checkpoint.tensor("post_attention_layernorm.weight"), eps, row_math)
        self._qk_norms: tuple[RMSNorm, RMSNorm] | None = None
        if config.family.qk_norm:
            self._qk_norms = (
                RMSNorm(checkpoint.tensor("self_attn.q_norm.weight"), eps, row_math),
                RMSNorm(checkpoint.tensor("self_attn.k_norm.weight"), eps, row_math),
            )

    def __call__(
        self, hidden: Tensor, delta: Tensor | None, rows: DecoderInput, rotation: Rotation
    ) -> tuple[Tensor, Tensor]:
        """Hidden states, and what to add to them; `delta` is what the layer before adds."""
        hidden, x = self._input_norm.add(hidden, delta)
        hidden, x = self._mlp_norm.add(hidden, self._attention(x, rows, rotation))
        return hidden, self._mlp(x, rows.tiles)

    def _attention(self, x: Tensor, rows: DecoderInput, rotation: Rotation) -> Tensor:
        projected = self._qkv(x, rows.tiles).view(x.shape[0], -1, self._head_dim)
        heads, values = projected[:, : -self._num_kv_heads], projected[:, -self._num_kv_heads :]
        if self._qk_norms is not None:
            query_norm, key_norm = self._qk_norms
            queries, keys = heads[:, : self._num_heads], heads[:, self._num_heads :]
            heads = torch.cat((query_norm(queries), key_norm(keys)), dim=1)
        return self._output(rows.plan.attend(self._index, heads, values, rotation), rows.tiles)

    def _mlp(self, x: Tensor, tiles: Sequence[int]) -> Tensor:
        gate_up = self._gate_up(x, tiles)
        if tiles and gate_up.dtype == torch.float32:
            gate, up = gate_up.chunk(2, dim=-1)
            return self._down(silu_in_pieces(gate) * up, tiles)
        return self._down(self._row_math.silu_mul(gate_up), tiles)


def silu_in_pieces(x: Tensor) -> Tensor:
    """SiLU whose bits do not depend on how torch divides elements among threads.

    In float32 the vectorised exponential and its scalar fallback differ in the last bit, and torch uses the
    fallback for the incomplete vector at the end of a thread's share. Pieces of this size are computed by one
    thread and consist of complete vectors. (In 16-bit formats both round to the same number.)
    """
    flat = x.reshape(-1)
    pieces = [F.silu(piece) for piece in torch.split(flat, 16_384)]
    return torch.cat(pieces).view(x.shape)


class DenseDecoder:
    """A model's weights and their forward."""

    def __init__(
        self,
        config: ModelConfig,
        source: WeightSource,
        *,
        num_positions: int,
        dtype: torch.dtype,
        device: torch.device,
        int8_input_bits: InputBits | None = None,
        head_tokens: Sequence[int] | None = None,
        threads: ShardThreads | None = None,
        row_math: RowMath | None = None,
    ) -> None:
        """`int8_input_bits`: None holds matrices in `dtype`, otherwise they are in int8.

        `threads`: cuts linears into shards, so that results do not depend on the number of threads.

        `row_math`: None chooses by the device.
        `head_tokens`: restricts logits to these tokens, which must be in rising order.
        """
        make: MakeMatMul = matmul if threads is None else sharded(matmul, threads)
        self.head_tokens = None if head_tokens is None else torch.tensor(head_tokens, device=device)
        """The tokens that have logits, in rising order; None: the whole vocabulary."""
        row_math = row_math or row_math_on(device)
        source = TrackedSource(source)
        top = _WeightReader(source, dtype, device, int8_input_bits)
        self._embedding = top.matrix("model.embed_tokens.weight")
        self._layers = [
            DecoderLayer(index, config, top.layer(index), make, row_math)
            for index in range(config.num_layers)
        ]
        self._norm = RMSNorm(top.tensor("model.norm.weight"), config.norm_eps, row_math)
        head = self._embedding if config.tie_embeddings else top.matrix("lm_head.weight")
        if self.head_tokens is not None:
            head = head[self.head_tokens]
        self._head = Linear([(head, None)], make)
        self._rope: RopeTable = rope_table(
            config.rope, config.head_dim, num_positions, device=device, factors=source.rope_factors()
        )
        source.refuse_unread(tied=config.tie_embeddings)
        self._dtype = dtype
        self.config = config
        self.on_layer: Callable[[], None] = lambda: None
        """Called after each layer, so that a long forward can show progress."""

    @property
    def num_columns(self) -> int:
        """Number of logits in a row."""
        return self.config.vocab_size if self.head_tokens is None else len(self.head_tokens)

    def hidden(self, rows: DecoderInput) -> Tensor:
        """Final hidden states, [rows, hidden_size]."""
        hidden = self._embedded(rows.tokens)
        delta: Tensor | None = None
        rotation = self._rope.at(rows.positions)
        for layer in self._layers:
            hidden, delta = layer(hidden, delta, rows, rotation)
            self.on_layer()
        return self._norm.add(hidden, delta)[1]

    def _embedded(self, tokens: Tensor) -> Tensor:
        found = self._embedding[tokens]
        return found.to_dtype(self._dtype) if isinstance(found, Int8Matrix) else found

    def logits(self, hidden: Tensor, tiles: Sequence[int] = ()) -> Tensor:
        """Logits [rows, num_columns] in the model's number format."""
        return self._head(hidden, tiles)
