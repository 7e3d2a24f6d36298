"""Sampling flags of `ssd generate` and `ssd chat`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ssd.sampling import SamplingParams

_PANEL = "Sampling"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="Most tokens; default 128, in a chat no limit.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    temperature: Annotated[float, typer.Option(help="0 is greedy.", rich_help_panel=_PANEL)] = 0.0
    top_p: Annotated[
        float, typer.Option(help="Keep the likeliest tokens of this mass.", rich_help_panel=_PANEL)
    ] = 1.0
    top_k: Annotated[
        int, typer.Option(help="Keep this many likeliest tokens; 0 keeps all.", rich_help_panel=_PANEL)
    ] = 0
    min_p: Annotated[
        float,
        typer.Option(
            help="Keep tokens with at least this share of the likeliest one's probability.",
            rich_help_panel=_PANEL,
        ),
    ] = 0.0
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1 discourages repetition.", rich_help_panel=_PANEL)
    ] = 1.0
    seed: Annotated[
        int | None, typer.Option(help="Seed, to repeat a sampled answer.", rich_help_panel=_PANEL)
    ] = None
    stop: Annotated[
        list[str] | None, typer.Option(help="Stop string; repeatable.", rich_help_panel=_PANEL)
    ] = None
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the end token.", rich_help_panel=_PANEL)
    ] = False

    def params(self, *, max_tokens: int | None, n: int = 1, logprobs: int | None = None) -> "SamplingParams":
        """`max_tokens` is the default if the user gave none."""
        from ssd.sampling import SamplingParams

        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
            n=n,
            stop=self.stop or (),
            ignore_eos=self.ignore_eos,
            max_tokens=max_tokens if self.max_tokens is None else self.max_tokens,
            logprobs=logprobs,
        )
