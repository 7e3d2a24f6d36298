"""`--explain`: colours each token by its origin, and shows statistics of speculation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.columns import Columns
from rich.console import Console
from rich.text import Text

from ssd.cli.progress import READING, after_wait
from ssd.processes.terminal import escaped

if TYPE_CHECKING:
    from ssd.decoding.rows import VerifiedTree
    from ssd.decoding.tree_lines import TextOf
    from ssd.engine.llm import LLM
    from ssd.engine.outputs import CompletionOutput, EngineStats, RequestOutput, SpeculationStats
    from ssd.sampling import SamplingParams

STYLES = {"hit": "green", "backup": "yellow", "target": "bold"}
_SHOWN_TREES = 12
LEGEND = {
    "hit": "drafted in time",
    "backup": "a backup's guess, after a miss",
    "target": "the target's own",
}
_MISSES = {
    "late": "the draft had not got that far yet",
    "unknown": "the draft had foreseen other tokens",
    "no draft": "no draft answered",
}
"""What the causes of misses mean."""


def explain_outputs(outputs: Sequence[RequestOutput], tokenizer: Any, stats: EngineStats) -> None:
    console = Console(soft_wrap=True, highlight=False)
    console.print(legend())
    for output in outputs:
        for completion in output.outputs:
            console.print(coloured(completion, tokenizer))
            console.print(summary(completion.speculation, len(completion.token_ids)), style="dim")
            show_trees(console, completion.trees, tokenizer)
    _show_end(console, stats)


def explain_stream(llm: LLM, prompt: Any, params: SamplingParams) -> None:
    """Stream one coloured text. The engine must not have generated anything before: its totals are shown."""
    from ssd.cli.chat_local import Pieces

    console = Console(soft_wrap=True, highlight=False)
    ids = llm.tokenizer(prompt).input_ids if isinstance(prompt, str) else prompt
    pieces, trees, num_tokens = Pieces(llm.tokenizer, ids), list["VerifiedTree"](), 0
    console.print(legend())
    for increment in after_wait(llm.stream(prompt, params), READING):
        for piece in pieces.of(increment):
            console.print(Text(escaped(piece.text), STYLES[piece.origin or "target"]), end="")
        trees += increment.trees
        num_tokens += len(increment.token_ids)
    console.print()
    console.print(summary(llm.stats.speculation, num_tokens), style="dim")
    show_trees(console, trees, llm.tokenizer)
    _show_end(console, llm.stats)


def _show_end(console: Console, stats: EngineStats) -> None:
    if causes := _misses(stats.speculation):
        meanings = "; ".join(f"{cause}: {_MISSES[cause]}" for cause in causes)
        console.print(f"misses, {meanings}", style="dim")
    console.print(_engine_line(stats), style="dim")


def legend() -> Text:
    """What the colours mean. Shown once, before the first coloured token."""
    text = Text().append("colours: ", "dim")
    for origin, meaning in LEGEND.items():
        text.append(meaning, STYLES[origin]).append(" · " if origin != "target" else "", "dim")
    return text


def show_trees(console: Console, trees: Sequence[VerifiedTree], tokenizer: Any) -> None:
    """Draw the latest verified trees side by side, with the accepted branch."""
    if not trees:
        return
    shown = len(trees[-_SHOWN_TREES:])
    console.print(f"trees verified, the last {shown} of {len(trees)} (● taken, ○ not):", style="dim")
    drawn = [drawn_tree(each, lambda token: tokenizer.decode([token])) for each in trees[-_SHOWN_TREES:]]
    console.print(Columns(drawn, padding=(0, 3)))


def drawn_tree(tree: VerifiedTree, text_of: TextOf) -> Text:
    from ssd.decoding.tree_lines import lines_of  # brings the engine, which help does without

    taken = f"{len(tree.branch)} of {len(tree.tokens)} nodes taken"
    text = Text().append(f"after token {tree.start}: {taken}\n", "dim")
    for line in lines_of(tree, text_of):
        text.append(f"{line}\n", STYLES["hit"] if line.is_accepted else "dim")
    return text


def coloured(completion: CompletionOutput, tokenizer: Any) -> Text:
    """The text coloured by token: a token's piece is what it adds to the decoded text before it."""
    text, shown = Text(), ""
    for count, origin in enumerate(completion.origins, 1):
        decoded = tokenizer.decode(completion.token_ids[:count])
        # A character may take several tokens: show it with the last one.
        if decoded.endswith("\ufffd") and count < len(completion.origins):
            continue
        text.append(escaped(decoded[len(shown) :]), STYLES[origin])
        shown = decoded
    return text


def summary(stats: SpeculationStats, num_tokens: int) -> str:
    trees = f", {stats.trees} with a tree" if stats.trees else ""
    parts = [
        f"{num_tokens} tokens in {stats.rounds} rounds{trees}",
        f"{stats.accepted_per_round:.2f} accepted a round",
    ]
    if stats.hit_rate is not None:
        named = ", ".join(f"{count} {cause}" for cause, count in _misses(stats).items())
        parts.append(f"hits {stats.hit_rate:.0%}" + (f" (misses: {named})" if named else ""))
    return "; ".join(parts)


def _misses(stats: SpeculationStats) -> dict[str, int]:
    """Misses by cause, without causes that did not occur."""
    counts = {"late": stats.late, "unknown": stats.unknown, "no draft": stats.unheard}
    return {cause: count for cause, count in counts.items() if count}


def _engine_line(stats: EngineStats) -> str:
    spent, draft = max(stats.step_seconds, 1e-9), stats.draft
    shares = {"verify": stats.verify_seconds, "wait": stats.wait_seconds, "host": stats.host_seconds}
    line = "time: " + ", ".join(f"{name} {seconds / spent:.1%}" for name, seconds in shares.items())
    if draft is not None and draft.num_steps:
        line += (
            f"; draft: {draft.num_steps} steps of {1000 * draft.draft_seconds / draft.num_steps:.0f} ms, "
            f"{draft.num_steps / max(1, stats.num_steps):.1f} a verification"
        )
    return line
