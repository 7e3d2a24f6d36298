"""`ssd generate`: one or more prompts, from the command line or standard input.

The engine is imported when the command runs, so that help and completion stay instant.
A single prompt streams; several are batched and printed as a whole.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ssd.cli.errors import user_errors
from ssd.cli.explain import explain_outputs

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
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens of this mass.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep this many likeliest tokens; 0 keeps all.")] = 0,
    min_p: Annotated[float, typer.Option(help="Keep tokens of this share of the likeliest.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1 discourages repetition.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Repeats a sampled answer.")] = None,
    n: Annotated[int, typer.Option("--n", help="Completions for each prompt.")] = 1,
    stop: Annotated[list[str] | None, typer.Option(help="Stop string; repeatable.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end token.")] = False,
    logprobs: Annotated[int | None, typer.Option(help="Top log-probabilities, with --json.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, bfloat16, float16 or float32.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    cores: Annotated[str, typer.Option(help="CPU cores to run on, such as 0,1 or 0-3.")] = "",
    max_model_len: Annotated[int | None, typer.Option(help="Longest prompt plus output.")] = None,
    draft: Annotated[str | None, typer.Option(help="Draft model, with the model's tokenizer.")] = None,
    mode: Annotated[str | None, typer.Option(help="ar, sd or ssd; ssd if there is a draft.")] = None,
    lookahead: Annotated[
        int | None, typer.Option(help="Most tokens drafted for one verification: 4 in sd, 8 in ssd.")
    ] = None,
    draft_keys: Annotated[
        str | None, typer.Option(help="Folder with the keys of a draft on TCP (ssd draft --make-keys).")
    ] = None,
    draft_cores: Annotated[str, typer.Option(help="CPU cores of the draft.")] = "",
    draft_precision: Annotated[str, typer.Option(help="model, or int8 for a faster draft.")] = "model",
    draft_head: Annotated[
        int | None, typer.Option(help="The draft guesses this many frequent tokens.")
    ] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Bitwise the same whatever runs beside it.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write a Chrome trace: who computed when (ui.perfetto.dev shows it).")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Colour each token by where it came from, and say what was won.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a prompt, on one line.")] = False,
) -> None:
    """Generate text. Greedy unless --temperature says otherwise."""
    with user_errors():
        prompts = _prompts(prompt)
        if logprobs is not None and not as_json:
            raise ValueError("--logprobs is only shown with --json")
        settings = {
            "dtype": dtype,
            "device": device,
            "cores": parse_cores(cores),
            "max_model_len": max_model_len,
            "deterministic": deterministic,
            "draft": draft,
            "mode": mode or ("ssd" if draft else "ar"),
            "draft_cores": parse_cores(draft_cores),
            "draft_precision": draft_precision,
            "draft_head": draft_head,
            "draft_keys": draft_keys,
            "lookahead": lookahead,
        }
        from ssd.engine.llm import LLM
        from ssd.sampling import SamplingParams

        params = SamplingParams(
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            n=n,
            stop=stop or (),
            ignore_eos=ignore_eos,
            max_tokens=max_tokens,
            logprobs=logprobs,
        )
        with LLM(model, show_progress=sys.stderr.isatty(), **settings) as llm:
            timeline = llm.record() if trace is not None else None
            inputs = [_input(llm, text, chat=chat) for text in prompts]
            if len(prompts) == n == 1 and not as_json and not explain:
                _stream(llm, prompts[0], inputs[0], params, echo=not chat)
                outputs = []
            else:
                outputs = llm.generate(inputs, params, use_tqdm=sys.stderr.isatty())
            if timeline is not None and trace is not None:
                timeline.write(trace)
            if explain:
                explain_outputs(outputs, llm.tokenizer, llm.stats)
                return
    for text, output in zip(prompts, outputs, strict=False):
        typer.echo(
            json.dumps(as_dict(text, output), ensure_ascii=False) if as_json else _as_text(text, output)
        )


def _prompts(given: list[str] | None) -> list[str]:
    if given is None and sys.stdin.isatty():
        Console(stderr=True).print("type a prompt, then Ctrl-D", style="dim")
    # A line end at the end of the input belongs to the shell, not to the prompt.
    prompts = given or [sys.stdin.read().removesuffix("\n")]
    if not all(prompts):
        raise ValueError("a prompt is empty: give some text with --prompt or on standard input")
    return prompts


def _input(llm: LLM, text: str, *, chat: bool) -> Any:
    return llm.chat_prompt([{"role": "user", "content": text}]) if chat else text


def _stream(llm: LLM, text: str, prompt: Any, params: SamplingParams, *, echo: bool) -> None:
    """Prints as tokens come, then says how fast they came."""
    if echo:
        typer.echo(text, nl=False)
    started, first, num_tokens, num_rounds = time.perf_counter(), 0.0, 0, 0
    for part in llm.stream(prompt, params):
        typer.echo(part.text, nl=False)
        sys.stdout.flush()
        first = first or time.perf_counter() - started
        num_tokens += len(part.token_ids)
        num_rounds += 1
    seconds = time.perf_counter() - started
    typer.echo()
    rate = f"{num_tokens} tokens in {seconds:.2f} s, {num_tokens / seconds:.1f} tok/s"
    per_round = f", {num_tokens / num_rounds:.2f} tokens a round" if num_tokens > num_rounds else ""
    message = f"{rate}, first token after {first:.2f} s{per_round}"
    Console(stderr=True).print(message, style="dim", highlight=False)


def parse_cores(text: str) -> tuple[int, ...]:
    """`0,2-4` → (0, 2, 3, 4)."""
    cores: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        last = last or first
        if not first.isdigit() or not last.isdigit() or int(last) < int(first):
            raise ValueError(f"--cores {text!r}: write numbers and ranges, such as 0,2-4")
        cores.extend(range(int(first), int(last) + 1))
    return tuple(cores)


def as_dict(text: str, output: RequestOutput) -> dict[str, Any]:
    fields = dataclasses.asdict(output)
    fields["prompt"] = text
    fields["timings"]["per_output_token"] = output.timings.per_output_token
    return fields


def _as_text(text: str, output: RequestOutput) -> str:
    """Each completion under a heading that says which it is."""
    return "\n".join(
        f"=== {text!r:.60} [{completion.index}]\n{completion.text}" for completion in output.outputs
    )
