"""vLLM in this process, CPU or CUDA build: greedy, alone, with a draft of its own, or with ours.

One engine is one case: speculation is decided when vLLM starts. Depends on vLLM only, but for our own case,
where our package runs inside it; our draft is a process of its own, which ends with this one.
"""

import atexit
import time
from typing import Any

_DRAFT_SECONDS = 600.0


def load(job: dict[str, Any]) -> Any:
    import torch
    from vllm import LLM, SamplingParams

    if not torch.cuda.is_available():
        # Before the first linear: oneDNN decides once whether it may use the tiles.
        torch.cpu._init_amx()
    (case,) = job["cases"]
    draft = _OurDraft(job["draft_command"]) if case.startswith("ssd") else None
    settings: dict[str, Any] = {}
    if draft is not None:
        settings = draft.arguments(lookahead=int(case.removeprefix("ssd")))
    elif case.startswith("draft"):
        settings["speculative_config"] = {
            "method": "draft_model",
            "model": job["draft"],
            "num_speculative_tokens": int(case.removeprefix("draft")),
        }
    llm = LLM(
        job["model"],
        dtype=job["dtype"],
        max_model_len=job["max_model_len"],
        max_num_seqs=1,
        max_num_batched_tokens=job["max_model_len"],
        enable_prefix_caching=False,
        enforce_eager=not job["compiles"],
        seed=0,
        **settings,
    )
    if draft is not None:
        draft.wait_for(llm)
    engine = llm.llm_engine
    names = iter(range(1 << 62))

    def generate(_case: str, prompt: list[int], max_tokens: int, note: Any) -> dict[str, Any]:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        engine.add_request(f"prompt-{next(names)}", {"prompt_token_ids": prompt}, params)
        seen = 0
        while engine.has_unfinished_requests():
            for output in engine.step():
                tokens = list(output.outputs[0].token_ids)
                note(tokens[seen:])
                seen = len(tokens)
        return {}

    return generate


class _OurDraft:
    """`ssd draft`, started before vLLM is: it reads its weights while vLLM does."""

    def __init__(self, command: list[str]) -> None:
        from ssd.processes.child import Child
        from ssd.processes.sockets import private_address, remove_socket

        self._address = private_address()
        # What vLLM's documents say to load first is for vLLM.
        environment = {"LD_PRELOAD": ""}
        words = [*command, "--listen", self._address, "--lifeline"]
        self._child = Child(words, name="our draft", environment=environment)
        atexit.register(remove_socket, self._address)
        atexit.register(self._child.end)
        self._child.start()

    def arguments(self, *, lookahead: int) -> dict[str, Any]:
        from ssd.integrations.vllm import arguments

        return arguments(self._address, lookahead=lookahead)

    def wait_for(self, llm: Any) -> None:
        """Until vLLM's worker has greeted it."""
        deadline = time.monotonic() + _DRAFT_SECONDS
        while not llm.collective_rpc("ssd_report")[0]["draft_up"]:
            if self._child.exit_code is not None:
                raise ValueError(f"our draft ended with code {self._child.exit_code}")
            if time.monotonic() > deadline:
                raise ValueError(f"our draft was not there within {_DRAFT_SECONDS:.0f} s")
            time.sleep(0.1)
