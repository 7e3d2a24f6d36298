"""SSD inside stock vLLM: the settings with which vLLM verifies the speculation of our draft.

    llm = vllm.LLM(MODEL, **arguments("ipc:///run/ssd/draft.sock"))

vLLM's own worker is extended by `worker.SSDWorker`, which talks to the draft. vLLM has two model runners, and
the method of `speculative_config` decides which of them may run: `custom_class` V1, `ngram_gpu` V2. Both only
switch speculation on; proposals come from the worker. Imports no vLLM, and neither our models nor our engine.
"""

from typing import Any, Literal

from ssd.config import MAX_LOOKAHEAD
from ssd.integrations.vllm.settings import KEY, Settings

WORKER = "ssd.integrations.vllm.worker.SSDWorker"
PROPOSER = "ssd.integrations.vllm.proposer.SilentProposer"

__all__ = ["PROPOSER", "WORKER", "Runner", "Settings", "arguments", "speculation"]

Runner = Literal["v1", "v2"]
"""vLLM's model runner."""


def arguments(
    draft: str | None, *, lookahead: int = 4, runner: Runner = "v1", **settings: Any
) -> dict[str, Any]:
    """Keyword arguments for `vllm.LLM(...)`; `draft` is the address of a running `ssd draft`.

    Without a draft the same worker decodes plainly, and gives the same tokens.
    """
    if isinstance(lookahead, bool) or not isinstance(lookahead, int) or not 1 <= lookahead <= MAX_LOOKAHEAD:
        raise ValueError(f"lookahead={lookahead!r}: must be between 1 and {MAX_LOOKAHEAD}")
    chosen = Settings.from_additional_config({KEY: {"draft": draft, **settings}})
    return {
        "worker_cls": WORKER,
        "speculative_config": speculation(runner, lookahead),
        "additional_config": chosen.to_additional_config(),
    }


def speculation(runner: Runner, lookahead: int) -> dict[str, Any]:
    """vLLM's `speculative_config` for a runner. Of V2's methods, `ngram_gpu` needs no draft model."""
    if runner == "v1":
        return {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": lookahead}
    return {
        "method": "ngram_gpu",
        "num_speculative_tokens": lookahead,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 1,
    }
