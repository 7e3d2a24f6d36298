"""Tiny random checkpoints, written by transformers itself, with a small real tokenizer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

_CORPUS = [
    "The quick brown fox jumps over the lazy dog. Größe, naïve café, 你好, 🙂 and 👩‍🚀!",
    "def add(a, b):\n    return a + b\n\nfor i in range(10):\n    print(add(i, 1))",
    "Once upon a time there was a small model that wrote, and a large one that read.",
]

_SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "eos_token_id": 1,
    "bos_token_id": 0,
    "initializer_range": 0.2,
}

# Original context 32, prompts far beyond it: dropping the scaling changes the tokens.
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

CONFIGS: dict[str, Any] = {
    "llama3": lambda: LlamaConfig(**_SHAPE, rope_parameters=_LLAMA3_ROPE),
    "llama-tied": lambda: LlamaConfig(**{**_SHAPE, "tie_word_embeddings": True}),
    "llama-biased": lambda: LlamaConfig(**_SHAPE, attention_bias=True, mlp_bias=True),
    "mistral": lambda: MistralConfig(**_SHAPE, sliding_window=None, head_dim=32),
    "qwen2": lambda: Qwen2Config(**_SHAPE),
    # Wide enough for sums to depend on their order.
    "medium": lambda: Qwen2Config(
        **{**_SHAPE, "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8}
    ),
    "padded": lambda: Qwen2Config(**{**_SHAPE, "vocab_size": 640}),
    "short": lambda: Qwen2Config(**{**_SHAPE, "max_position_embeddings": 48}),
    "qwen3": lambda: Qwen3Config(**_SHAPE, head_dim=32),
}


def write_checkpoint(kind: str, folder: Path, *, seed: int = 0, **save_options: Any) -> Path:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind]())
    _randomise_vectors(model)
    model.save_pretrained(folder, **save_options)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def cut_layers(folder: Path, num_layers: int, into: Path) -> Path:
    """The first layers of a model, as a model: a draft that is sometimes right."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.model.layers = model.model.layers[:num_layers]
    model.config.num_hidden_layers = num_layers
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = model.config.layer_types[:num_layers]
    model.save_pretrained(into)
    tiny_tokenizer().save_pretrained(into)
    return into


def _randomise_vectors(model: Any) -> None:
    """Biases start at 0 and norms at 1: a loader that dropped them would go unnoticed."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)


def tiny_tokenizer(corpus: Sequence[str] = _CORPUS) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    template = (
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=template
    )
