"""`ssd generate`: one or more prompts, from the command line or standard input.

The engine is imported when the command runs, so that help and completion stay instant.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ssd.cli.errors import user_errors

if TYPE_CHECKING:
    from ssd.engine.llm import LLM
    from ssd.engine.outputs import RequestOutput
    from ssd.sampling import SamplingParams

MODEL_HELP = "Model folder (config.json and safetensors) or GGUF file."


def generate(
    model: Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)],
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="Prompt text; repeatable. Default: stdin.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the model's chat template.")] = False,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus: keep the likeliest tokens of this mass.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep this many likeliest tokens; 0 keeps all.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Same seed, same tokens.")] = None,
    n: Annotated[int, typer.Option("--n", help="Completions for each prompt.")] = 1,
    stop: Annotated[list[str] | None, typer.Option(help="Stop string; repeatable.")] = None,
    logprobs: Annotated[int | None, typer.Option(help="Also give this many top log-probabilities.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, bfloat16, float16 or float32.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    cores: Annotated[str, typer.Option(help="CPU cores to run on, such as 0,1 or 0-3.")] = "",
    max_model_len: Annotated[int | None, typer.Option(help="Longest prompt plus output.")] = None,
    draft: Annotated[str | None, typer.Option(help="Draft model, with the model's tokenizer.")] = None,
    mode: Annotated[str | None, typer.Option(help="ar or sd; sd if there is a draft.")] = None,
    lookahead: Annotated[int, typer.Option(help="Tokens drafted for one verification.")] = 4,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Bitwise the same whatever runs beside it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a prompt, on one line.")] = False,
) -> None:
    """Generate text. Greedy unless --temperature says otherwise."""
    from ssd.engine.llm import LLM
    from ssd.sampling import SamplingParams

    prompts = prompt or [_read_stdin()]
    with user_errors():
        params = SamplingParams(
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            seed=seed,
            n=n,
            stop=stop or (),
            max_tokens=max_tokens,
            logprobs=logprobs,
        )
        llm = LLM(
            model,
            dtype=dtype,
            device=device,
            cores=parse_cores(cores),
            max_model_len=max_model_len,
            deterministic=deterministic,
            draft=draft,
            mode=mode or ("sd" if draft else "ar"),
            lookahead=lookahead,
            show_progress=sys.stderr.isatty(),
        )
        outputs = _run(llm, prompts, params, chat=chat)
    for output in outputs:
        typer.echo(json.dumps(as_dict(output), ensure_ascii=False) if as_json else _as_text(output))
    if not as_json:
        _report_speed(outputs)


def _run(llm: LLM, prompts: list[str], params: SamplingParams, *, chat: bool) -> list[RequestOutput]:
    show = sys.stderr.isatty() and len(prompts) > 1
    if chat:
        conversations = [[{"role": "user", "content": text}] for text in prompts]
        return llm.chat(conversations, params, use_tqdm=show)
    return llm.generate(prompts, params, use_tqdm=show)


def _read_stdin() -> str:
    if sys.stdin.isatty():
        Console(stderr=True).print("type a prompt, then Ctrl-D", style="dim")
    return sys.stdin.read()


def parse_cores(text: str) -> tuple[int, ...]:
    """`0,2-4` → (0, 2, 3, 4)."""
    cores: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise ValueError(f"--cores {text!r}: write numbers and ranges, such as 0,2-4")
        cores.extend(range(int(first), int(last or first) + 1))
    return tuple(cores)


def as_dict(output: RequestOutput) -> dict[str, Any]:
    fields = dataclasses.asdict(output)
    fields["timings"]["per_output_token"] = output.timings.per_output_token
    return fields


def _as_text(output: RequestOutput) -> str:
    return "\n---\n".join(f"{output.prompt or ''}{completion.text}" for completion in output.outputs)


def _report_speed(outputs: list[RequestOutput]) -> None:
    tokens = sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
    seconds = max(output.timings.total for output in outputs)
    first = max(output.timings.first_token for output in outputs)
    Console(stderr=True).print(
        f"{tokens} tokens in {seconds:.2f} s, {tokens / seconds:.1f} tok/s, first token after {first:.2f} s",
        style="dim",
        highlight=False,
    )
    stats = [completion.speculation for output in outputs for completion in output.outputs]
    rounds, drafted = sum(each.rounds for each in stats), sum(each.drafted for each in stats)
    if drafted:
        accepted = sum(each.accepted for each in stats)
        Console(stderr=True).print(
            f"{accepted} of {drafted} drafted tokens accepted, {1 + accepted / rounds:.2f} tokens a round",
            style="dim",
            highlight=False,
        )
