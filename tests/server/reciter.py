"""A real checkpoint that recites a text: each of its tokens makes exactly one other follow.

Attention and MLP add nothing: a token's hidden state is its embedding, and the head turns each into the next.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from tests.tiny import CONFIGS, tiny_tokenizer

PIECES = [
    "<think>\n", "I won", "der.\n</th", "ink>\n", "\nLet me", " see.\n<tool", "_call>\n{",
    '"name": "look", ', '"arguments": {"at"', ': "the sky"}', "}\n</tool_", "call>\n<tool_call>",
    '{"name": "count"}</tool_call>',
]  # fmt: skip
"""An answer with reasoning and two calls, whose markers are cut anywhere."""
_TEMPLATE = (
    "{% if tools %}Tools, to be called with <tool_call>: {{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{{ '<think>' if enable_thinking }}{% endif %}"
    "{# answers may hold </think> #}"
)


def write_reciter(folder: Path, pieces: Sequence[str]) -> Path:
    """A model that answers any conversation with these pieces, a token each, and ends."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = _TEMPLATE
    # As in Qwen's vocabulary, markers are tokens but not special: they stay in the text.
    tokenizer.add_tokens(["<think>", *pieces])
    ids = [tokenizer.convert_tokens_to_ids(piece) for piece in pieces]
    starts = [tokenizer("assistant:").input_ids[-1], tokenizer.convert_tokens_to_ids("<think>")]
    follows = {
        **dict.fromkeys(starts, ids[0]),
        **dict(zip(ids, [*ids[1:], tokenizer.eos_token_id], strict=True)),
    }
    model = AutoModelForCausalLM.from_config(CONFIGS["llama-biased"]())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "norm" in name else 0.0)
        for place, (token, following) in enumerate(follows.items()):
            model.model.embed_tokens.weight[token, place] = 1.0
            model.lm_head.weight[following, place] = 8.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
