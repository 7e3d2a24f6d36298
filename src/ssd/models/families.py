"""The model families that the dense decoder supports, and how they differ.

Knows the names found in config.json and GGUF headers. The architecture that a checkpoint declares selects
its family; the path is ignored.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    architecture: str
    gguf_architecture: str | None
    """None: llama.cpp uses another family's name (llama for Mistral)."""
    qkv_bias: bool = False
    qk_norm: bool = False
    gguf_interleaves_qk: bool = False
    """llama.cpp stores q and k rows with the two rotary halves interleaved."""


_FAMILIES = (
    Family("LlamaForCausalLM", "llama", gguf_interleaves_qk=True),
    Family("MistralForCausalLM", None),
    Family("Qwen2ForCausalLM", "qwen2", qkv_bias=True),
    Family("Qwen3ForCausalLM", "qwen3", qk_norm=True),
)

KNOWN_ARCHITECTURES = tuple(family.architecture for family in _FAMILIES)


def family_of(architecture: str) -> Family:
    for family in _FAMILIES:
        if family.architecture == architecture:
            return family
    raise ValueError(
        f"architecture {architecture!r} is not supported; supported are {', '.join(KNOWN_ARCHITECTURES)}: "
        "use one of these, or let vLLM verify (ssd serve --engine vllm)"
    )


def architecture_of_gguf(gguf_architecture: str) -> str:
    for family in _FAMILIES:
        if family.gguf_architecture == gguf_architecture:
            return family.architecture
    known = ", ".join(family.gguf_architecture for family in _FAMILIES if family.gguf_architecture)
    raise ValueError(
        f"GGUF architecture {gguf_architecture!r} is not supported; supported are {known}: use one of these"
    )
