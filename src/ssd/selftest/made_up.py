"""Models with random weights of any shape, in memory or as a pair of small checkpoints.

The draft of the pair consists of the target's first layers, so some of its guesses are right. Downloads
nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

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
_ARCHITECTURE = "LlamaForCausalLM"
_SPREAD = 0.2
"""Standard deviation of the small pair's weights: large enough that texts do not repeat one token."""


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
            family=family_of(_ARCHITECTURE),
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
"""Shape of the checkpoint pair: for checking results, not times."""


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
    pool = KVPool(
        PoolShape(
            *(config.num_layers, config.num_kv_heads, config.head_dim, NUM_BLOCKS, BLOCK),
            # The torch form reads tree slots even if there are no trees.
            *(dtype, device, max(DETERMINISTIC_KEY_TILE, NODES_PER_TREE)),
            num_trees=num_trees,
        )
    )
    attention = eager_backend(pool, config.num_heads, deterministic=False)
    nowhere = Path("made up")
    return LoadedModel(
        Checkpoint(nowhere, config, nowhere),
        EagerRunner(model, attention, pool),
        pool,
        config.max_position,
        capture,
    )


def write_pair(folder: Path) -> tuple[Path, Path]:
    """Writes target and draft as folders with weights, configuration and tokenizer."""
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(shape, generator=generator) * _SPREAD if len(shape) > 1 else torch.ones(shape)
        for name, shape in tensor_shapes(TINY.config).items()
    }
    # The last layer contributes little, so that a draft without it is often right.
    for part in ("self_attn.o_proj", "mlp.down_proj"):
        weights[f"model.layers.{TINY.layers - 1}.{part}.weight"] *= 0.25
    shallow = replace(TINY, layers=TINY.layers - 1)
    target = _write(folder / "target", TINY, weights)
    names = tensor_shapes(shallow.config)
    return target, _write(folder / "draft", shallow, {name: weights[name] for name in names})


def _write(folder: Path, shape: MadeUpShape, weights: Mapping[str, Tensor]) -> Path:
    folder.mkdir(parents=True)
    save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": [_ARCHITECTURE],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.config.max_position,
        "rms_norm_eps": shape.config.norm_eps,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config))
    _tokenizer().save_pretrained(folder)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token for each byte."""
    words = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
