"""Makes the draft client and the sessions from vLLM's settings."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssd.draft.client.client import DraftClient
from ssd.draft.client.connection import sources_at
from ssd.draft.client.speculator import Speculator
from ssd.draft.protocol.messages import Hello
from ssd.draft.protocol.sockets import Keys
from ssd.integrations.vllm.batch_rows import BatchRows
from ssd.integrations.vllm.meter import Meter
from ssd.integrations.vllm.sessions import Sessions
from ssd.integrations.vllm.settings import Settings

logger = logging.getLogger(__name__)

_DEEPEST = 32
"""Largest lookahead that is asked of a draft."""
_MOST_PREPARED = 1024
"""Most sequences whose mirrors are allocated at the start, 0.1 MB each: allocating more stalls a step."""


@dataclass(frozen=True)
class Opening:
    vllm_config: Any
    hello: Hello
    settings: Settings
    rows: BatchRows
    noise: str
    meter: Meter
    """Shared by all sessions of the process: Prometheus registers each name once."""
    is_v2: bool = False
    is_async: bool = False

    def open_sessions(self) -> Sessions:
        """Connect to the draft in the background; does not wait for it."""
        settings, model = self.settings, self.vllm_config.model_config
        if settings.draft is None:
            raise ValueError("no draft is named: set ssd.draft to the address of a running `ssd draft`")
        lookahead = self.vllm_config.speculative_config.num_speculative_tokens
        if self.is_async:
            # When the device chooses tokens, outcomes of two steps may not have reached the draft: it has to
            # look 3 · lookahead + 2 tokens ahead, and looks 2 · lookahead + 1 ahead by itself.
            lookahead = min(_DEEPEST, (3 * lookahead + 2) // 2)
        keys = Keys(Path(settings.draft_keys)) if settings.draft_keys is not None else None
        sources = sources_at(settings.draft, self.hello, timeout=settings.draft_timeout, keys=keys)
        num_sequences = min(self.vllm_config.scheduler_config.max_num_seqs, _MOST_PREPARED)
        client = DraftClient(
            sources, lookahead=lookahead, num_sequences=num_sequences, pool_size=settings.pool_size
        )
        # Steps report it too, but an idle server runs none.
        client.pool.watch(lambda is_there: self.meter.show(draft_up=float(is_there)))
        speculator = Speculator(client, lookahead=lookahead, backup=settings.backup)
        speculator.start(timeout=0.0)
        logger.info("connecting to the draft at %s", settings.draft)
        return Sessions(
            speculator,
            self.rows.seed_of,
            max_model_len=model.max_model_len,
            coupled=settings.coupled,
            noise=self.noise,
            reopens_preempted=self.is_v2,
            padded_to=lookahead if settings.padded else 0,
            meter=self.meter,
        )


def hello_of(model: Any) -> Hello:
    """What a draft is told of the target. Loads its tokenizer, which the draft compares with its own."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        model.tokenizer, revision=model.tokenizer_revision, trust_remote_code=model.trust_remote_code
    )
    return Hello.of(
        tokenizer,
        vocab_size=model.get_vocab_size(),
        name=Path(model.model).name,
        max_model_len=model.max_model_len,
    )
