"""One vLLM of one kind that answers all rows, as a program: `python -m tests.exact.vllm.run KIND …`.

    stock      nothing of ours
    detached   our worker without a draft
    attached   our worker with a draft in the same process, which takes steps between vLLM's

Writes a line of JSON for each row: texts, and what was counted. test_exact.py compares the files. Only the
socket to the draft is missing here; tests/vllm/test_serve.py has one.
"""

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ssd.draft.client.connection import FixedSources
from ssd.draft.protocol.messages import Hello
from ssd.integrations.vllm import arguments
from tests.e2e.draft_in_memory import PEER, InMemoryDraft
from tests.exact.vllm import rows
from tests.exact.vllm.rows import Row

_BLOCK_SIZE, _NUM_BLOCKS = 32, 12
"""The fewest tokens a block that vLLM's attention for CPUs takes; few blocks, so that vLLM preempts."""
_STEPS_BEFORE_EVENTS = 5
_START_SECONDS = 60
_TURNS = 8
"""Steps of the draft between two of vLLM."""


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "model": str(arguments.models / "good"),
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 160,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "block_size": _BLOCK_SIZE,
        "num_gpu_blocks_override": _NUM_BLOCKS,
        "enable_prefix_caching": True,
        "disable_log_stats": False,
        "async_scheduling": arguments.runner == "v2" and not arguments.synchronous,
    }


class Vllm:
    """vLLM in this process, with nothing of ours."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        from vllm import EngineArgs, __version__
        from vllm.v1.engine.llm_engine import LLMEngine

        self.engine = LLMEngine.from_engine_args(EngineArgs(**options))
        core = self.engine.engine_core.engine_core
        self.scheduler, self.worker = core.scheduler, core.model_executor.driver_worker.worker
        self.counted, self._version = Counter[str](), __version__

    def answer(self, row: Row) -> dict[str, Any]:
        self.counted.clear()
        ids = [f"{row.name}, {number}" for number in range(row.num_prompts)]
        for request_id, prompt, params in zip(ids, row.prompts, row.params(), strict=True):
            self.engine.add_request(request_id, prompt, sampling_params(params))
        aborted = [ids[number] for number in row.aborted]
        before, texts, num_steps = self._of_vllm(), dict[str, Any](), 0
        while self.engine.has_unfinished_requests():
            for found in self.engine.step():
                for output in found.outputs:
                    texts[f"{found.request_id}, {output.index}"] = shown(output)
            num_steps += 1
            if num_steps == _STEPS_BEFORE_EVENTS:
                self.engine.abort_request(aborted)
            self.after_step(row, num_steps)
        texts = {
            key: text for key, text in sorted(texts.items()) if not key.startswith(tuple(aborted) or "-")
        }
        self.counted.update(_since(before, self._of_vllm()))
        return {
            "name": row.name,
            "texts": texts,
            "counted": dict(self.counted),
            "version": self._version,
        }

    def after_step(self, row: Row, num_steps: int) -> None:
        requests = self.scheduler.requests.values()
        self.counted["chunked"] += sum(
            0 < each.num_computed_tokens < each.num_prompt_tokens for each in requests
        )

    def _of_vllm(self) -> dict[str, float]:
        wanted = {"vllm:num_preemptions": "preempted", "vllm:prefix_cache_hits": "prefix hits"}
        return {wanted[each.name]: each.value for each in self.engine.get_metrics() if each.name in wanted}


class Attached(Vllm):
    """Our worker with a draft."""

    def __init__(self, options: Mapping[str, Any], models: Path) -> None:
        from ssd.draft.client import replica
        from ssd.integrations.vllm import opening

        # A killed draft is there again at once: the next row waits for it.
        vars(replica)["LONGEST_DELAY"] = replica.FIRST_DELAY

        def sources(address: str, hello: Hello, **_: Any) -> FixedSources:
            self.draft = InMemoryDraft(models / "good", hello, lambda: 0.0, width=16)
            return FixedSources(self.draft)

        vars(opening)["sources_at"] = sources
        super().__init__(options)
        self._models, self._kind, self._is_killed = models, "good", False

    def answer(self, row: Row) -> dict[str, Any]:
        if row.draft != self._kind:
            losses = self.report()["draft_losses"]
            self._kind = row.draft
            self.draft.replace(self._models / row.draft)
            self._wait_for(lambda report: report["draft_losses"] > losses)
        self._wait_for(lambda report: report["draft_up"])
        before = self.report()
        found = super().answer(row)
        if self._is_killed:
            self._is_killed = False
            self._wait_for(lambda report: report["draft_losses"] > before["draft_losses"])
        counted = _since(before, self.report())
        found["counted"] |= {
            "drafted": counted.get("spec_decode_num_draft_tokens.draft", 0),
            "accepted": counted.get("spec_decode_num_accepted_tokens.draft", 0),
            "hits": counted["spec_hits"],
            "padding": counted["spec_padding_tokens"],
            "lost": counted["draft_losses"],
            "errors": counted.get("drafting_errors", 0),
        }
        return found

    def after_step(self, row: Row, num_steps: int) -> None:
        super().after_step(row, num_steps)
        if row.is_draft_killed and num_steps == _STEPS_BEFORE_EVENTS:
            self.draft.kill()
            self._is_killed = True
        self.draft.pump(_TURNS)
        self._check_what_the_draft_holds()

    def report(self) -> dict[str, float]:
        return dict(self.worker.ssd_report())

    def _wait_for(self, condition: Callable[[dict[str, float]], object]) -> None:
        """A thread of the client finds out that a draft is lost, and connects to the next."""
        deadline = time.monotonic() + _START_SECONDS
        while not condition(self.report()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the draft is not where it should be: {self.report()}")
            self.draft.pump(1)
            time.sleep(0.01)

    def _check_what_the_draft_holds(self) -> None:
        """Each text of the draft is its own request's; it may be a step older or newer than vLLM's."""
        client = self.worker._drafting.sessions.speculator.client
        client.check_integrity()
        service = self.draft.service
        peer = service._peers.get(PEER) if service is not None else None
        if service is None or peer is None:
            return
        service.check_integrity()
        owners = {each.seq: str(key) for key, each in client._sessions.items()}
        for seq, session in peer.sessions.items():
            request = self.scheduler.requests.get(owners.get(seq, ""))
            if request is not None:
                text, held = list(request.all_token_ids), session.tokens
                common = min(len(text), len(held))
                if held[:common] != text[:common]:
                    raise AssertionError(f"the draft holds {held} for {request.request_id}: {text}")
                self.counted["audited"] += 1


class TwiceOnV1(Attached):
    """Each row without the draft and with the draft, in the same vLLM."""

    def answer(self, row: Row) -> dict[str, Any]:
        self.worker.ssd_detach()
        alone = super().answer(row)
        self.worker.ssd_attach()
        return {**super().answer(row), "alone": alone["texts"]}


def _since(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0) for name, value in after.items()}


def shown(output: Any) -> dict[str, Any]:
    """All that two runs must have in common.

    A stop string ends a text within a step: how many tokens vLLM sampled beyond it depends on the step.
    """
    if output.finish_reason == "stop" and isinstance(output.stop_reason, str):
        return {"text": output.text}
    logprobs = [{token: each.logprob for token, each in place.items()} for place in output.logprobs or ()]
    return {"text": output.text, "tokens": list(output.token_ids), "logprobs": logprobs}


def sampling_params(given: Mapping[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    params = dict(given)
    if "regex" in params:
        params["structured_outputs"] = StructuredOutputsParams(regex=params.pop("regex"))
    return SamplingParams(**params)


def prepare() -> None:
    """Before vLLM is imported."""
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        # Requests without a seed draw by their ids: those have to be the same in each kind.
        VLLM_DISABLE_REQUEST_ID_RANDOMIZATION="1",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_LOGGING_LEVEL="ERROR",
        VLLM_CPU_OMP_THREADS_BIND=str(min(os.sched_getaffinity(0))),
        HF_HUB_OFFLINE="1",
        OMP_NUM_THREADS="1",
        OMP_WAIT_POLICY="passive",
        TORCHDYNAMO_DISABLE="1",
    )


def started(asked: argparse.Namespace) -> Vllm:
    options = settings(asked)
    if asked.kind == "stock":
        return Vllm(options)
    ours: dict[str, Any] = {"runner": asked.runner, "salt": "exact", "backup": "none"}
    if asked.kind == "detached":
        return Vllm({**options, **arguments(None, **ours)})
    kind = Attached if asked.runner == "v2" else TwiceOnV1
    return kind({**options, **arguments("ipc:///nowhere", padded=asked.padded, **ours)}, asked.models)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kind", choices=("stock", "detached", "attached"))
    parser.add_argument(
        "--models", type=Path, required=True, help="a folder with models good, fair and random"
    )
    parser.add_argument("--rows", choices=("SHORT", "LONG", "V1"), default="SHORT")
    parser.add_argument("--runner", choices=("v1", "v2"), default="v2")
    parser.add_argument("--only", default="", help="rows whose names have this word")
    parser.add_argument("--synchronous", action="store_true")
    parser.add_argument("--padded", action="store_true")
    parser.add_argument("--into", type=Path, required=True)
    asked = parser.parse_args()
    prepare()
    vllm = started(asked)
    with asked.into.open("w") as file:
        for row in (each for each in getattr(rows, asked.rows) if asked.only in each.name):
            file.write(json.dumps(vllm.answer(row)) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
