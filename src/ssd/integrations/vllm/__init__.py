"""SSD inside stock vLLM: the settings with which vLLM verifies the speculation of our draft.

    llm = vllm.LLM(MODEL, **arguments("ipc:///run/ssd/draft.sock"))

vLLM's own worker is extended by `worker.SSDWorker`, which talks to the draft and decides tokens by seed and
position; `proposer.SilentProposer` only switches speculation on. Imports no vLLM, and neither our
models nor our engine.
"""

from typing import Any

from ssd.config import MAX_LOOKAHEAD
from ssd.integrations.vllm.settings import KEY, Settings

WORKER = "ssd.integrations.vllm.worker.SSDWorker"
PROPOSER = "ssd.integrations.vllm.proposer.SilentProposer"

__all__ = ["PROPOSER", "WORKER", "Settings", "arguments"]


def arguments(draft: str | None, *, lookahead: int = 4, **settings: Any) -> dict[str, Any]:
    """Keyword arguments for `vllm.LLM(...)`; `draft` is the address of a running `ssd draft`.

    Without a draft the same worker decodes plainly, and gives the same tokens.
    """
    if isinstance(lookahead, bool) or not isinstance(lookahead, int) or not 1 <= lookahead <= MAX_LOOKAHEAD:
        raise ValueError(f"lookahead={lookahead!r}: must be between 1 and {MAX_LOOKAHEAD}")
    chosen = Settings.from_additional_config({KEY: {"draft": draft, **settings}})
    return {
        "worker_cls": WORKER,
        "speculative_config": {
            "method": "custom_class",
            "model": PROPOSER,
            "num_speculative_tokens": lookahead,
        },
        "additional_config": chosen.to_additional_config(),
    }
