"""The decoder's view of a model, read from its Hugging Face configuration.

Knows configuration keys and which of them change the arithmetic. Does not know tensors. Raises ValueError
for features that the decoder cannot compute.
"""

from dataclasses import dataclass
from typing import Any, Literal

from ssd.models.families import Family, family_of


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: `default`, `linear` (one factor) or `llama3` (frequency-dependent)."""

    theta: float
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeConfig
    max_position: int
    tie_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    dtype: str | None = None
    """The number format declared in the checkpoint; None: undeclared."""

    @property
    def num_parameters(self) -> int:
        """Number of weights that a forward reads: the head counts, also if tied; the embedding does not."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size
        return self.num_layers * (attention + mlp) + self.vocab_size * self.hidden_size


def model_config(config: Any, architecture: str) -> ModelConfig:
    """Translates a transformers configuration object of a known architecture."""
    family = family_of(architecture)
    _refuse_unsupported(config, architecture)
    num_heads = config.num_attention_heads
    return ModelConfig(
        family=family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=num_heads,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or num_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // num_heads,
        norm_eps=config.rms_norm_eps,
        rope=_rope(config),
        max_position=config.max_position_embeddings,
        tie_embeddings=bool(config.tie_word_embeddings),
        attention_bias=family.qkv_bias or bool(getattr(config, "attention_bias", False)),
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
        dtype=_declared_dtype(config),
    )


def _declared_dtype(config: Any) -> str | None:
    declared = getattr(config, "dtype", None)
    return None if declared is None else str(declared).removeprefix("torch.")


def _refuse_unsupported(config: Any, architecture: str) -> None:
    quantisation = getattr(config, "quantization_config", None)
    if quantisation:
        fields = quantisation if isinstance(quantisation, dict) else quantisation.to_dict()
        method = fields.get("quant_method", "unknown")
        raise ValueError(
            f"this checkpoint is quantised with {method!r}, which is not supported: "
            "use the unquantised checkpoint or a GGUF file of the model"
        )
    uses_window = getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None)
    if uses_window:
        raise ValueError(
            f"{architecture} with a sliding window of {config.sliding_window} is not supported: "
            "use a version of the model without sliding-window attention"
        )
    activation = getattr(config, "hidden_act", "silu")
    if activation != "silu":
        raise ValueError(f"{architecture} with activation {activation!r} is not supported, only 'silu' is")


def _rope(config: Any) -> RopeConfig:
    parameters = dict(getattr(config, "rope_parameters", None) or {})
    parameters.update(getattr(config, "rope_scaling", None) or {})
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    theta = parameters.get("rope_theta", getattr(config, "rope_theta", None) or 10_000.0)
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError("partial rotary embeddings are not supported")
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=parameters["factor"])
    if kind == "llama3":
        return RopeConfig(
            theta=theta,
            kind="llama3",
            factor=parameters["factor"],
            low_freq_factor=parameters["low_freq_factor"],
            high_freq_factor=parameters["high_freq_factor"],
            original_max_position=parameters["original_max_position_embeddings"],
        )
    raise ValueError(f"rope scaling {kind!r} is not supported, only default, linear and llama3 are")
