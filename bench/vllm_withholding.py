"""Our worker inside vLLM, keeping its proposals to itself: steps have the same rows with a draft and without.

For bench/vllm_steps.py. Everything else is done: outcomes are told, frames taken in, paths chosen.
"""

from typing import Any

from vllm.v1.outputs import DraftTokenIds

from ssd.integrations.vllm.worker import SSDWorker


class WithholdingWorker(SSDWorker):
    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        if self._sessions is not None:
            # None of its tokens is ever accepted here: it would soon be told to rest.
            self._sessions.policy._let_rest = lambda: None  # type: ignore[method-assign]

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        proposed = super().take_draft_token_ids()
        return proposed and DraftTokenIds(proposed.req_ids, [[] for _ in proposed.req_ids])
