"""Real vLLM with our worker, and a real draft service, in one process: a test reads both between two steps.

Only the socket is missing: the draft's line is made of queues, and it takes so many steps for each of vLLM's.
What it holds after a step does not depend on who got the cores.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from campaigns.vllm.real import prepare
from ssd.draft.client.connection import FixedSources
from ssd.draft.protocol.messages import Hello
from ssd.draft.server.session import DraftSession
from tests.e2e.draft_in_memory import PEER, InMemoryDraft

_START_SECONDS = 120


class InProcess:
    """`turns`: steps of the draft for one of vLLM; `options` are vLLM's own."""

    def __init__(
        self,
        target: Path,
        draft: Path,
        *,
        lookahead: int = 4,
        width: int = 12,
        turns: int = 2,
        **options: Any,
    ) -> None:
        prepare(ranks=1)
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        from ssd.integrations.vllm import arguments, opening
        from ssd.integrations.vllm.sessions import Sessions

        def sources(address: str, hello: Hello, **_: Any) -> FixedSources:
            # A clock that stands still: this draft is silent whenever nobody lets it compute.
            self.draft = InMemoryDraft(draft, hello, lambda: 0.0, width=width, kv_cache_bytes=256 << 20)
            return FixedSources(self.draft)

        def take_in(sessions: Sessions) -> None:
            """While vLLM computes."""
            self.draft.pump(turns)
            sessions.speculator.take_in()

        vars(opening)["sources_at"] = sources
        # Of every session: some are opened again after an error.
        setattr(Sessions, "take_in", take_in)  # noqa: B010  # to mypy it is another function
        self.engine = LLMEngine.from_engine_args(
            EngineArgs(
                str(target),
                dtype="float32",
                enforce_eager=True,
                **options,
                **arguments("ipc:///nowhere", lookahead=lookahead, backup="none", salt="in process"),
            )
        )
        core = self.engine.engine_core.engine_core
        self.scheduler = core.scheduler
        self.worker = core.model_executor.driver_worker.worker
        self.wait_for_draft()

    @property
    def speculator(self) -> Any:
        return self.worker._drafting.sessions.speculator

    def step(self) -> list[Any]:
        """One of vLLM; then the draft hears what came out of it."""
        outputs: list[Any] = self.engine.step()
        self.draft.pump(1)
        return outputs

    def report(self) -> dict[str, float]:
        return dict(self.worker.ssd_report())

    def held(self) -> Iterator[tuple[str, DraftSession]]:
        """Each sequence that the draft holds, and the request that the worker takes it for."""
        known = {each.seq: str(key) for key, each in self.speculator.client._sessions.items()}
        service = self.draft.service
        peer = service._peers.get(PEER) if service is not None else None
        for seq, session in peer.sessions.items() if peer is not None else ():
            yield known[seq], session

    def wait_for_draft(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self.report()["draft_up"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no draft within {_START_SECONDS} s")
            self.draft.pump(1)
            time.sleep(0.01)
