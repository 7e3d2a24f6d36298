"""The dense decoder of the Llama and Qwen shape.

Knows the arithmetic of one forward over rows of tokens. Does not know sequences, blocks or batches: the
attention plan holds which keys each row sees, and `tiles` how rows are grouped for the linears.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ssd.attention.backend import AttentionPlan
from ssd.config import Precision
from ssd.models.config import ModelConfig
from ssd.models.linear import Linear, MakeMatMul, Weighted, matmul_maker
from ssd.models.rope import RopeTable, rope_table, rotate
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
    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight
        self._shape = tuple(weight.shape)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self._shape, self._weight, self._eps)


class _WeightReader:
    """Reads weights by their Hugging Face names, which start with `prefix`."""

    def __init__(self, source: WeightSource, prefix: str, dtype: torch.dtype, device: torch.device) -> None:
        self._source, self._prefix, self._dtype, self._device = source, prefix, dtype, device

    def tensor(self, name: str) -> Tensor:
        return self._source.read(f"{self._prefix}{name}").to(self._device, self._dtype)

    def layer(self, index: int) -> "_WeightReader":
        return _WeightReader(self._source, f"model.layers.{index}.", self._dtype, self._device)

    def linear(self, name: str, *, bias: bool) -> Weighted:
        return self.tensor(f"{name}.weight"), self.tensor(f"{name}.bias") if bias else None


class DecoderLayer:
    def __init__(
        self,
        index: int,
        config: ModelConfig,
        checkpoint: _WeightReader,
        make: MakeMatMul,
    ) -> None:
        self._index = index
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
        self._input_norm = RMSNorm(checkpoint.tensor("input_layernorm.weight"), eps)
        self._mlp_norm = RMSNorm(checkpoint.tensor("post_attention_layernorm.weight"), eps)
        self._qk_norms: tuple[RMSNorm, RMSNorm] | None = None
        if config.family.qk_norm:
            self._qk_norms = (
                RMSNorm(checkpoint.tensor("self_attn.q_norm.weight"), eps),
                RMSNorm(checkpoint.tensor("self_attn.k_norm.weight"), eps),
            )

    def __call__(self, x: Tensor, rows: DecoderInput, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self._attention(self._input_norm(x), rows, cos, sin)
        return x + self._mlp(self._mlp_norm(x), rows.tiles)

    def _attention(self, x: Tensor, rows: DecoderInput, cos: Tensor, sin: Tensor) -> Tensor:
        heads = self._qkv(x, rows.tiles).view(x.shape[0], -1, self._head_dim)
        num_rotated = self._num_heads + self._num_kv_heads
        rotated, values = heads[:, :num_rotated], heads[:, num_rotated:]
        if self._qk_norms is not None:
            query_norm, key_norm = self._qk_norms
            queries, keys = rotated[:, : self._num_heads], rotated[:, self._num_heads :]
            rotated = torch.cat((query_norm(queries), key_norm(keys)), dim=1)
        rotated = rotate(rotated, cos, sin)
        queries, keys = rotated[:, : self._num_heads], rotated[:, self._num_heads :]
        return self._output(rows.plan.attend(self._index, queries, keys, values), rows.tiles)

    def _mlp(self, x: Tensor, tiles: Sequence[int]) -> Tensor:
        gate, up = self._gate_up(x, tiles).chunk(2, dim=-1)
        activated = silu_in_pieces(gate) if tiles and gate.dtype == torch.float32 else F.silu(gate)
        return self._down(activated * up, tiles)


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
        precision: Precision = "model",
        head_tokens: Sequence[int] | None = None,
        threads: ShardThreads | None = None,
    ) -> None:
        """`threads`: cuts linears into shards, so that results do not depend on the number of threads.

        `head_tokens`: restricts logits to these tokens, which must be in rising order.
        """
        make = matmul_maker(precision, device, dtype)
        if threads is not None:
            make = sharded(make, threads)
        self.head_tokens = None if head_tokens is None else torch.tensor(head_tokens, device=device)
        """The tokens that have logits, in rising order; None: the whole vocabulary."""
        source = TrackedSource(source)
        top = _WeightReader(source, "", dtype, device)
        self._embedding = top.tensor("model.embed_tokens.weight")
        self._layers = [
            DecoderLayer(index, config, top.layer(index), make) for index in range(config.num_layers)
        ]
        self._norm = RMSNorm(top.tensor("model.norm.weight"), config.norm_eps)
        head = self._embedding if config.tie_embeddings else top.tensor("lm_head.weight")
        if self.head_tokens is not None:
            head = head[self.head_tokens]
        self._head = Linear([(head, None)], make)
        self._rope: RopeTable = rope_table(
            config.rope, config.head_dim, num_positions, device=device, factors=source.rope_factors()
        )
        source.refuse_unread(tied=config.tie_embeddings)
        self.config = config
        self.on_layer: Callable[[], None] = lambda: None
        """Called after each layer, so that a long forward can show progress."""

    @property
    def num_columns(self) -> int:
        """Number of logits in a row."""
        return self.config.vocab_size if self.head_tokens is None else len(self.head_tokens)

    def hidden(self, rows: DecoderInput) -> Tensor:
        """Final hidden states, [rows, hidden_size]."""
        x = self._embedding[rows.tokens]
        cos, sin = self._rope.at(rows.positions)
        for layer in self._layers:
            x = layer(x, rows, cos, sin)
            self.on_layer()
        return self._norm(x)

    def logits(self, hidden: Tensor, tiles: Sequence[int] = ()) -> Tensor:
        """Logits [rows, num_columns] in the model's number format."""
        return self._head(hidden, tiles)
