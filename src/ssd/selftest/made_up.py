"""Models of any shape in memory, with random weights."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ssd.attention.choice import eager_backend
from ssd.attention.sdpa import DETERMINISTIC_KEY_TILE
from ssd.kvcache.pool import NODES_PER_TREE, KVPool, PoolShape
from ssd.models.checkpoint import Checkpoint
from ssd.models.config import ModelConfig, RopeConfig
from ssd.models.decoder import DenseDecoder
from ssd.models.families import family_of
from ssd.runtime.capture import Capture
from ssd.runtime.eager import EagerRunner
from ssd.runtime.loading import LoadedModel

BLOCK, NUM_BLOCKS = 16, 64


@dataclass(frozen=True, slots=True)
class MadeUpShape:
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocab: int
    head_dim: int

    @classmethod
    def like(cls, model: ModelConfig) -> "MadeUpShape":
        """The shape of a real model."""
        return cls(
            model.num_layers,
            model.hidden_size,
            model.intermediate_size,
            model.num_heads,
            model.num_kv_heads,
            model.vocab_size,
            model.head_dim,
        )

    @property
    def config(self) -> ModelConfig:
        return ModelConfig(
            family=family_of("LlamaForCausalLM"),
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_layers=self.layers,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            norm_eps=1e-6,
            rope=RopeConfig(theta=10_000.0),
            max_position=BLOCK * NUM_BLOCKS,
            tie_embeddings=False,
            attention_bias=False,
            mlp_bias=False,
        )


TINY = MadeUpShape(3, 128, 256, 4, 2, 512, 64)
"""For checking results, not times."""


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shapes by the tensors' names in a checkpoint."""
    hidden, heads = config.hidden_size, config.num_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    layer = {
        "self_attn.q_proj": (heads, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (config.intermediate_size, hidden),
        "mlp.up_proj": (config.intermediate_size, hidden),
        "mlp.down_proj": (hidden, config.intermediate_size),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    table = (config.vocab_size, hidden)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": table, "lm_head.weight": table}
    for index in range(config.num_layers):
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    return shapes | {"model.norm.weight": (hidden,)}


class RandomWeights:
    """A weight source that makes each tensor on its device when it is read."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        self._shapes, self._device, self._dtype = tensor_shapes(config), device, dtype

    def names(self) -> frozenset[str]:
        return frozenset(self._shapes)

    def read(self, name: str) -> Tensor:
        shape = self._shapes[name]
        if len(shape) == 1:
            return torch.ones(shape, device=self._device, dtype=self._dtype)
        weight = torch.randn(shape, device=self._device, dtype=self._dtype)
        return weight.mul_(float(shape[-1] ** -0.5))

    def rope_factors(self) -> None:
        return None


def made_up_pool(config: ModelConfig, device: torch.device, dtype: torch.dtype, *, num_trees: int) -> KVPool:
    return KVPool(
        PoolShape(
            *(config.num_layers, config.num_kv_heads, config.head_dim, NUM_BLOCKS, BLOCK),
            # The torch form reads tree slots even if there are no trees.
            *(dtype, device, max(DETERMINISTIC_KEY_TILE, NODES_PER_TREE)),
            num_trees=num_trees,
        )
    )


def loaded_model(
    shape: MadeUpShape,
    device: torch.device,
    dtype: torch.dtype,
    *,
    num_trees: int = 0,
    capture: Capture | None = None,
) -> LoadedModel:
    """A model with random weights in memory, for timing forwards and a draft's steps."""
    config = shape.config
    model = DenseDecoder(
        config,
        RandomWeights(config, device, dtype),
        num_positions=config.max_position,
        dtype=dtype,
        device=device,
    )
    pool = made_up_pool(config, device, dtype, num_trees=num_trees)
    attention = eager_backend(pool, config.num_heads, deterministic=False)
    nowhere = Path("made up")
    return LoadedModel(
        Checkpoint(nowhere, config, nowhere),
        EagerRunner(model, attention, pool),
        pool,
        config.max_position,
        capture,
    )
