"""transformers in torch on a CPU or GPU: greedy, alone or with assisted generation. Depends on both only."""

from typing import Any


class Tokens:
    """A streamer of `generate`: hands on what comes after the prompt, in the bursts it comes in."""

    def __init__(self, note: Any) -> None:
        self._note, self._is_prompt = note, True

    def put(self, ids: Any) -> None:
        if not self._is_prompt:
            self._note(ids.flatten().tolist())
        self._is_prompt = False

    def end(self) -> None:
        pass


def load(job: dict[str, Any]) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(max(1, len(job["cores"])))
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def model_of(folder: str) -> Any:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, job["dtype"])).to(device)
        # Texts have the length that was asked for, and greedy is greedy whatever the folder says.
        model.generation_config.update(
            eos_token_id=None,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            repetition_penalty=None,
        )
        return model.eval()

    target = model_of(job["model"])
    draft = model_of(job["draft"]) if job["draft"] else None
    own = {} if draft is None else draft.generation_config.to_dict()

    def generate(case: str, prompt: list[int], max_tokens: int, note: Any) -> dict[str, Any]:
        ids = torch.tensor([prompt], device=device)
        options: dict[str, Any] = {}
        if case != "plain":
            options["assistant_model"] = draft
            _set_lookahead(draft, own, case)
        with torch.inference_mode():
            target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                streamer=Tokens(note),
                **options,
            )
        return {}

    return generate


def _set_lookahead(draft: Any, own: dict[str, Any], case: str) -> None:
    """`draft4`: always four tokens; `draft`: as many as transformers itself thinks right."""
    lookahead = case.removeprefix("draft")
    fixed = {
        "num_assistant_tokens": int(lookahead or 0),
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    draft.generation_config.update(**(fixed if lookahead else {name: own[name] for name in fixed}))
