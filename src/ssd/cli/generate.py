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

from ssd.cli.compare import compare as compare_texts
from ssd.cli.console import load_llm, require_place, user_errors
from ssd.cli.engine_options import EngineOptions, SamplingOptions
from ssd.cli.explain import explain_outputs, explain_stream
from ssd.cli.options import with_options
from ssd.cli.progress import READING, after_wait, waiting
from ssd.processes.terminal import for_terminal

if TYPE_CHECKING:
    from ssd.engine.llm import LLM
    from ssd.engine.outputs import RequestOutput
    from ssd.sampling import SamplingParams

_MAX_TOKENS = 128


@with_options
def generate(
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="Prompt text; repeatable. Default: stdin.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the model's chat template.")] = False,
    n: Annotated[int, typer.Option("--n", help="Completions for each prompt.")] = 1,
    logprobs: Annotated[int | None, typer.Option(help="Top log-probabilities, with --json.")] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write a Chrome trace of target, draft and host (open it in ui.perfetto.dev)."),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Colour tokens by origin, draw verified trees.",
        ),
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Generate with and without the draft, in turns: speeds, a verdict, and equal tokens or not.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a prompt, on one line.")] = False,
    *,
    engine: EngineOptions,
    sampling: SamplingOptions,
) -> None:
    """Generate text. Greedy unless --temperature says otherwise.

    Examples:

        ssd generate Qwen/Qwen3-0.6B -p "Once upon a time" --max-tokens 40

        ssd generate MODEL --chat -p "Why is the sky blue?" --temperature 0.7 --seed 1

        ssd generate MODEL --draft SMALL_MODEL -p "def fibonacci(n):" --explain

        ssd generate MODEL --draft SMALL_MODEL -p "def fibonacci(n):" --compare

        ssd generate --config engine.yaml < prompt.txt
    """
    with user_errors():
        engine.require_models()
        model, settings = engine.named_model, engine.settings()
        if trace is not None:
            require_place("--trace", trace)
        prompts = _prompts(prompt)
        if logprobs is not None and not as_json:
            raise ValueError("--logprobs is only shown with --json: add that, or leave it out")
        if compare:
            _require_comparable(engine, is_shown_otherwise=as_json or explain or trace is not None)
            settings["enable_prefix_caching"] = False
        params = sampling.params(max_tokens=_MAX_TOKENS, n=n, logprobs=logprobs)
        with load_llm(model, settings) as llm:
            timeline = llm.record() if trace is not None else None
            inputs = [_input(llm, text, chat=chat) for text in prompts]
            outputs: list[RequestOutput] = []
            if compare:
                are_equal = compare_texts(
                    llm, inputs, params, deterministic=engine.engine_config().deterministic
                )
                raise typer.Exit(0 if are_equal else 1)
            if len(prompts) == n == 1 and not as_json:
                if explain:
                    explain_stream(llm, inputs[0], params)
                else:
                    _stream(llm, prompts[0], inputs[0], params, echo=not chat)
            else:
                outputs = _batched(llm, inputs, params)
            if timeline is not None and trace is not None:
                timeline.write(trace, lambda token: llm.tokenizer.decode([token]))
            if explain and outputs:
                explain_outputs(outputs, llm.tokenizer, llm.stats)
                return
    for text, output in zip(prompts, outputs, strict=False):
        typer.echo(
            json.dumps(as_dict(text, output), ensure_ascii=False) if as_json else _as_text(text, output)
        )


def _require_comparable(engine: EngineOptions, *, is_shown_otherwise: bool) -> None:
    if engine.engine_config().mode == "ar":
        raise ValueError("--compare needs a draft: name one with --draft")
    draft = engine.engine_config().draft
    if draft is not None and draft.is_elsewhere:
        raise ValueError(
            "--compare starts the draft itself, so that its work is not taken for that of other programs: "
            "name a model with --draft, not an address"
        )
    if is_shown_otherwise:
        raise ValueError("--compare prints its own figures: leave out --json, --explain and --trace")


def _prompts(given: list[str] | None) -> list[str]:
    if given is None and sys.stdin.isatty():
        Console(stderr=True).print("type a prompt, then Ctrl-D", style="dim")
    # The last line end of the input comes from the shell, not from the prompt.
    prompts = given or [sys.stdin.read().removesuffix("\n")]
    if not all(prompts):
        raise ValueError("a prompt is empty: give some text with --prompt or on standard input")
    return prompts


def _input(llm: LLM, text: str, *, chat: bool) -> Any:
    return llm.chat_prompt([{"role": "user", "content": text}]) if chat else text


def _batched(llm: LLM, inputs: list[Any], params: SamplingParams) -> list[RequestOutput]:
    if sys.stderr.isatty():
        return llm.generate(inputs, params, use_tqdm=True)
    with waiting(f"generating {len(inputs) * params.n} texts"):
        return llm.generate(inputs, params, use_tqdm=False)


def _stream(llm: LLM, text: str, prompt: Any, params: SamplingParams, *, echo: bool) -> None:
    """Print the text as it is generated, then its speed."""
    started, first, num_tokens, num_rounds = time.perf_counter(), 0.0, 0, 0
    for part in after_wait(llm.stream(prompt, params), READING):
        # The prompt is printed once the wait for the first token is over, which may show a spinner.
        before = text if echo and not first else ""
        first = first or time.perf_counter() - started
        typer.echo(before + for_terminal(part.text), nl=False)
        sys.stdout.flush()
        num_tokens += len(part.token_ids)
        num_rounds += 1
    seconds = time.perf_counter() - started
    typer.echo()
    rate = f"{num_tokens} tokens in {seconds:.2f} s, {num_tokens / seconds:.1f} tok/s"
    per_round = f", {num_tokens / num_rounds:.2f} tokens a round" if num_tokens > num_rounds else ""
    message = f"{rate}, first token after {first:.2f} s{per_round}"
    Console(stderr=True).print(message, style="dim", highlight=False)


def as_dict(text: str, output: RequestOutput) -> dict[str, Any]:
    fields = dataclasses.asdict(output)
    fields["prompt"] = text
    fields["timings"]["per_output_token"] = output.timings.per_output_token
    return fields


def _as_text(text: str, output: RequestOutput) -> str:
    """Each completion under a heading with its prompt and index."""
    return "\n".join(
        f"=== {text!r:.60} [{completion.index}]\n{for_terminal(completion.text)}"
        for completion in output.outputs
    )
