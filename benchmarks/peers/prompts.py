"""Prompts as token ids of the target's tokenizer: the same for everyone, whatever theirs would make of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ssd.bench.datasets import dataset_label, load_prompts
from ssd.bench.runs import digests
from ssd.models.checkpoint import open_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrompts:
    ids: dict[str, list[list[int]]]
    """By data set."""
    digests: dict[str, str]
    """Of the texts."""
    encode: Callable[[str], list[int]]

    @property
    def longest(self) -> int:
        return max(len(prompt) for prompts in self.ids.values() for prompt in prompts)


def load_token_prompts(
    model: str, datasets: Sequence[str], folder: Path | None, count: int, first: int
) -> TokenPrompts:
    texts = {dataset_label(name): load_prompts(name, folder, count, first) for name in datasets}
    if not texts:
        raise ValueError("no data set is named: --datasets humaneval,alpaca …")
    tokenizer = open_checkpoint(model).tokenizer()

    def encode(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False).input_ids)

    ids = {name: [list(tokenizer(text).input_ids) for text in each] for name, each in texts.items()}
    return TokenPrompts(ids=ids, digests=digests(texts), encode=encode)
