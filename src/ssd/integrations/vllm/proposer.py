"""The class for `speculative_config.model`: enables speculation in vLLM, and proposes nothing itself.

Proposals come from the worker, which knows request ids; vLLM passes only rows to a proposer.
"""

from collections.abc import Sequence
from typing import Any

from ssd.integrations.vllm import WORKER


class SilentProposer:
    def __init__(self, vllm_config: Any) -> None:
        worker = vllm_config.parallel_config.worker_cls
        if worker != WORKER:
            raise ValueError(
                f"SilentProposer proposes nothing by itself, and the worker class is {worker!r}: "
                f"start vLLM with --worker-cls {WORKER}"
            )

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to load: the draft runs elsewhere."""

    def propose(self, sampled_token_ids: Sequence[Sequence[int]], *_: Any, **__: Any) -> list[list[int]]:
        return [[] for _ in sampled_token_ids]
