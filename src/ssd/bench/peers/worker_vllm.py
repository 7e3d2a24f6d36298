"""vLLM in this process, CPU or CUDA build: greedy, alone or with a draft model. Depends on vLLM only.

One engine is one case: speculation is decided when vLLM starts.
"""

from typing import Any


def load(job: dict[str, Any]) -> Any:
    import torch
    from vllm import LLM, SamplingParams

    if not torch.cuda.is_available():
        # Before the first linear: oneDNN decides once whether it may use the tiles.
        torch.cpu._init_amx()
    (case,) = job["cases"]
    settings: dict[str, Any] = {}
    if case != "plain":
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
        seed=0,
        **settings,
    )
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
