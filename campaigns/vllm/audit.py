"""Real vLLM under many requests at once: does the draft hold each request's own text, and no other?

    python -m campaigns.vllm.audit --target FOLDER --draft FOLDER --record FILE.jsonl

Requests come at random, end, are aborted, and their ids come again at once. The KV cache is so small that
vLLM preempts, prompts are read in chunks and share their beginnings. After each step every sequence of the
draft is compared with its request in vLLM's scheduler. At the end each request runs again, alone and without
a draft; and some once more together, while our own code fails. What must have happened is counted.
"""

import argparse
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.records import Record
from campaigns.vllm.in_process import InProcess

CASE = "audit with recovery"
"""Records named `audit` are older: errors ended drafting then."""
MOST = 16
MUST_HAPPEN = ("compared", "preempted", "aborted", "reused", "chunked", "prefix hits", "accepted")
_MAX_LEN = 128
_BLOCK, _NUM_BLOCKS = 32, 22
"""Of tokens: enough for sixteen prompts, and not for what follows them."""
_BUDGET = 64
"""Tokens of a step: less than the prompts that may come with it."""
_PREFIXES = (
    "You are a careful assistant. Answer in one short sentence, and say so when you do not know. Be kind to "
    "those who ask, and never tell them that a question is too simple to be answered. Question: ",
    "def solve(numbers):\n    # Returns the sum of all even numbers greater than ten.\n    total = 0\n"
    "    assert all(isinstance(each, int) for each in numbers), numbers\n",
    "Once upon a time, in a small village by the sea, there lived an old fisherman and his daughter. Every "
    "morning they went out with their boat, and every evening they came home with empty nets. ",
)
"""Longer than a block."""
_ENDINGS = (
    "What is the capital of France?",
    "One day they found",
    "for number in numbers:",
    "The storm",
    "Why is the sky red in the evening?",
    "total += sum(numbers)\nreturn",
)
_SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.8, "top_p": 0.9, "seed": -3},
    {"temperature": 0.9, "top_k": 40, "presence_penalty": 0.5},
)


@dataclass
class Asked:
    """One life of an id."""

    request_id: str
    prompt: list[int]
    sampling: dict[str, Any]
    max_tokens: int
    tokens: list[int] = field(default_factory=list)
    is_aborted: bool = False


class Audit:
    def __init__(self, target: Path, draft: Path, *, seed: int) -> None:
        self.vllm = InProcess(
            target,
            draft,
            width=32,
            max_model_len=_MAX_LEN,
            max_num_seqs=MOST,
            max_num_batched_tokens=_BUDGET,
            block_size=_BLOCK,
            num_gpu_blocks_override=_NUM_BLOCKS,
            enable_prefix_caching=True,
        )
        self._chance = random.Random(seed)
        self._encode = self.vllm.engine.get_tokenizer().encode
        self.asked: list[Asked] = []
        self._live: dict[str, Asked] = {}
        self._ended: list[str] = []
        """Since the last step."""
        self.counted: Counter[str] = Counter()

    def run(self, num_requests: int) -> None:
        # All at once, each long enough for another block: the cache cannot hold what becomes of them.
        for _ in range(MOST):
            self._ask(self._arrival(shortest=20))
        while self._live or len(self.asked) < num_requests:
            room = min(MOST - len(self._live), num_requests - len(self.asked))
            for _ in range(min(self._chance.randrange(6), max(room, 0))):
                self._ask(self._arrival(shortest=4))
            self._ended = []
            for request_id in [each for each in self._live if self._chance.random() < 0.02]:
                self._abort(request_id)
            self._step()
            self.check()
        # vLLM tells a worker of those who ended with the next step.
        self._step()
        self.counted["held at the end"] = len(list(self.vllm.held()))

    def check(self) -> None:
        """What the draft holds is what vLLM says, to the last token, and nothing is missing."""
        requests, held = self.vllm.scheduler.requests, dict(self.vllm.held())
        begun = {key for key, each in requests.items() if each.status.name in ("RUNNING", "PREEMPTED")}
        assert begun <= held.keys(), f"the draft lacks {begun - held.keys()}"
        for key, session in held.items():
            if key in requests:
                assert session.tokens == list(requests[key].all_token_ids), key
                self.counted["compared"] += 1
            else:
                # It ended with this step. Tokens behind its end are dropped by vLLM, not by its worker.
                assert key in self._ended, f"{key} ended before"
                text = self._text_of(key)
                assert session.tokens[: len(text)] == text, key
        self.vllm.speculator.client.check_integrity()
        service = self.vllm.draft.service
        assert service is not None
        service.check_integrity()

    def again(self, asked: list[Asked]) -> list[list[int]]:
        """The same requests once more, at once."""
        for each in asked:
            self._add(each)
        found = dict[str, list[int]]()
        while self.vllm.engine.has_unfinished_requests():
            for output in self.vllm.step():
                found[output.request_id] = list(output.outputs[0].token_ids)
        self.vllm.step()
        return [found[each.request_id] for each in asked]

    def _text_of(self, request_id: str) -> list[int]:
        [*_, last] = [each for each in self.asked if each.request_id == request_id]
        return last.prompt + last.tokens

    def _arrival(self, shortest: int) -> Asked:
        chance = self._chance
        fresh = f"r{len(self.asked)}"
        # Ids of those who ended come again at once.
        request_id = self._ended.pop() if self._ended else fresh
        self.counted["reused"] += request_id != fresh
        prompt = self._encode(chance.choice(_PREFIXES) + chance.choice(_ENDINGS))
        return Asked(request_id, prompt, chance.choice(_SAMPLING), chance.randint(shortest, 24))

    def _ask(self, asked: Asked) -> None:
        self._add(asked)
        self.asked.append(asked)
        self._live[asked.request_id] = asked

    def _add(self, asked: Asked) -> None:
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=asked.max_tokens, ignore_eos=True, **asked.sampling)
        self.vllm.engine.add_request(asked.request_id, {"prompt_token_ids": asked.prompt}, params)

    def _abort(self, request_id: str) -> None:
        self.vllm.engine.abort_request([request_id])
        self._live.pop(request_id).is_aborted = True
        self.counted["aborted"] += 1
        if self._chance.random() < 0.5:
            self._ask(Asked(request_id, self._encode(self._chance.choice(_ENDINGS)), _SAMPLING[1], 8))
            self.counted["reused"] += 1

    def _step(self) -> None:
        for output in self.vllm.step():
            asked = self._live[output.request_id]
            asked.tokens = list(output.outputs[0].token_ids)
            if output.finished:
                del self._live[output.request_id]
                self._ended.append(output.request_id)
        requests = self.vllm.scheduler.requests.values()
        self.counted["chunked"] += sum(
            0 < each.num_computed_tokens < each.num_prompt_tokens for each in requests
        )
        running = sum(each.status.name == "RUNNING" for each in requests)
        self.counted["most at once"] = max(self.counted["most at once"], running)


def alone(audit: Audit) -> int:
    """How many requests say the same without a draft and without others, to their end or abortion."""
    vllm, num_equal = audit.vllm, 0
    vllm.worker.ssd_detach()
    for each in audit.asked:
        if each.tokens:
            vllm.engine.reset_prefix_cache()
            [tokens] = audit.again([Asked(each.request_id, each.prompt, each.sampling, len(each.tokens))])
            num_equal += tokens == each.tokens
        else:
            num_equal += each.is_aborted
    vllm.worker.ssd_attach()
    return num_equal


def after_an_error(audit: Audit) -> dict[str, Any]:
    """An error as soon as some drafted token was taken: texts go on, and so does the draft after a pause."""
    asked = list({each.request_id: each for each in audit.asked if not each.is_aborted}.values())[:6]
    drafting = audit.vllm.worker._drafting
    now = [0.0]
    drafting._clock = lambda: now[0]  # A pause ends when we say so.
    sessions = drafting.sessions
    settle, taken = (
        sessions.settle,
        partial(sessions.meter.counts.get, ("spec_decode_num_accepted_tokens", "draft")),
    )
    before = taken()

    def settle_or_fail(*arguments: Any) -> None:
        if taken() > before:
            raise RuntimeError("made up")
        settle(*arguments)

    sessions.settle = settle_or_fail
    texts = audit.again(asked)
    found = {
        "accepted before": taken() - before,
        "is paused": audit.vllm.report()["drafting_paused"] == 1,
        "is line open": sessions.speculator.client.is_ready,
    }
    now[0] += 60
    drafting.resume()
    audit.vllm.wait_for_draft()
    accepted = taken()
    texts += audit.again(asked)
    return {
        **found,
        "texts": len(texts),
        "equal": sum(tokens == each.tokens for tokens, each in zip(texts, asked * 2, strict=True)),
        "is paused later": audit.vllm.report()["drafting_paused"] == 1,
        "accepted after": taken() - accepted,
    }


def counters(audit: Audit) -> dict[str, float]:
    """vLLM's own and ours."""
    wanted = {"vllm:num_preemptions": "preempted", "vllm:prefix_cache_hits": "prefix hits"}
    metrics = audit.vllm.engine.get_metrics()
    found = {wanted[each.name]: each.value for each in metrics if each.name in wanted}
    report = audit.vllm.report()
    num_tokens = sum(len(each.tokens) for each in audit.asked)
    return {
        **found,
        "opened": report["spec_sessions_opened"],
        "open at the end": report["spec_sessions"],
        "hits": report["spec_hits"],
        "tokens": num_tokens,
        "tokens a round": round(num_tokens / report["rounds"], 2),
        "drafted": report.get("spec_decode_num_draft_tokens.draft", 0),
        "accepted": report.get("spec_decode_num_accepted_tokens.draft", 0),
        "draft losses": report["draft_losses"],
    }


def audited(arguments: argparse.Namespace) -> dict[str, Any]:
    audit = Audit(arguments.target, arguments.draft, seed=arguments.seed)
    audit.run(arguments.requests)
    found = {"texts": len(audit.asked), **audit.counted, **counters(audit)}
    return {**found, "equal": alone(audit), "after an error": after_an_error(audit)}


def wrong(found: dict[str, Any]) -> list[str]:
    """What is not as it must be; that texts are the requests' own was seen to on the way."""
    after = found["after an error"]
    must_hold = {
        "every request says what it says alone": found["equal"] == found["texts"],
        "sixteen ran at once": found["most at once"] == MOST,
        "no session stays": found["open at the end"] == found["held at the end"] == 0,
        "the line stood": found["draft losses"] == 0,
        "an error changes no text": after["equal"] == after["texts"] > 0,
        "an error comes while texts are drafted": after["accepted before"] > 0,
        "an error pauses drafting": after["is paused"] and not after["is line open"],
        "drafting resumes": after["accepted after"] > 0 and not after["is paused later"],
    }
    missing = [what for what in MUST_HAPPEN if not found[what]]
    return missing + [what for what, holds in must_hold.items() if not holds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    run = {"target": arguments.target.name, "draft": arguments.draft.name, "dtype": "float32"}
    record = Record(arguments.record, {**run, "requests": arguments.requests, "seed": arguments.seed})
    found = record.find(CASE)
    if found is None:
        found = audited(arguments)
        record.add(CASE, found)
    if wrong(found):
        raise SystemExit(f"not as it must be: {', '.join(wrong(found))}")


if __name__ == "__main__":
    main()
