"""`--help`, which fits on one screen, and `--help-all`, which shows every option.

Knows the most common flags of each command. Commands that are not in the table have few options.
"""

import inspect
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from typer.core import TyperCommand

_ASKED = "ssd.help_all"
_ENGINE = ("--draft", "--config", "--device", "--cores", "--draft-cores")
_SAMPLING = ("--max-tokens", "--temperature", "--seed")

COMMON = {
    "generate": ("--prompt", "--chat", *_SAMPLING, "--explain", "--json", "--mode", *_ENGINE),
    "chat": ("--max-tokens", "--temperature", "--system", "--metrics", "--color-origins", "--url", *_ENGINE),
    "serve": (
        *("--host", "--port", "--api-key", "--engine", "--print-commands"),
        *(*_ENGINE, "--max-model-len", "--max-num-seqs", "--kv-cache-bytes"),
    ),
    "draft": (
        *("--model", "--listen", "--keys", "--make-keys", "--config"),
        *("--device", "--cores", "--precision", "--kv-cache-bytes", "--max-num-seqs"),
    ),
    "doctor": ("--selftest", "--device", "--model", "--draft", "--json"),
    "plan": (
        *("--hardware", "--devices", "--target", "--draft", "--acceptance"),
        *("--batch", "--context", "--list", "--json"),
    ),
    "bench run": (
        *("--run", "--draft", "--cases", "--datasets", "--dataset-dir", "--temperatures"),
        *("--batch-sizes", "--num-prompts", "--max-tokens", "--device", "--cores", "--draft-cores"),
    ),
}
"""By command: the flags that `--help` shows, in order. `--help-all` shows the rest."""


def _show_all(context: typer.Context, value: bool) -> None:
    if value and not context.resilient_parsing:
        context.meta[_ASKED] = True
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show every option and exit."),
]


class Command(TyperCommand):
    """A command whose `--help` fits a screen."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        flags = COMMON.get(command_of(ctx))
        if flags is None or ctx.meta.get(_ASKED):
            super().format_help(ctx, formatter)
            return
        console = Console(highlight=False)
        console.print(escape(self.get_usage(ctx)), style="bold", soft_wrap=True)
        for paragraph in _paragraphs(self.help or ""):
            console.print()
            # Example commands are not wrapped, so that they can be copied.
            console.print(escape(paragraph), soft_wrap=paragraph.startswith(" "))
        console.print()
        console.print(Padding(self._table(flags), (0, 0, 0, 2)))
        parameters: list[Any] = list(self.params)
        options = [each for each in parameters if each.param_type_name == "option" and not each.hidden]
        # --help-all itself is not counted.
        num_more = len(options) - len(flags) - 1
        console.print(f"\n{num_more} more options: [bold]{ctx.command_path} --help-all[/]", end="")

    def _table(self, flags: tuple[str, ...]) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="cyan", no_wrap=True)
        table.add_column()
        arguments = [each for each in self.params if each.param_type_name == "argument"]
        by_flag = {flag: each for each in self.params for flag in each.opts}
        for parameter in (*arguments, *(by_flag[flag] for flag in flags)):
            table.add_row(_spelled(parameter), escape(_help_of(parameter)))
        return table


def command_of(context: Any) -> str:
    """The command's name without the program's, such as `bench run`."""
    names = []
    while context.parent is not None:
        names.append(context.info_name)
        context = context.parent
    return " ".join(reversed(names))


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs of a docstring; consecutive examples form one paragraph."""
    examples: list[str] = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith(" "):
            examples.append("  " + paragraph.strip())
            continue
        if examples:
            yield "\n".join(examples)
            examples = []
        if paragraph not in ("Example:", "Examples:"):
            yield " ".join(paragraph.split())
    if examples:
        yield "\n".join(examples)


def _spelled(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    flag: str = next(each for each in parameter.opts if each.startswith("--"))
    if parameter.is_flag:
        return flag
    return f"{flag} {parameter.metavar or flag.rpartition('-')[2].upper()}"


def _help_of(parameter: Any) -> str:
    default = parameter.default
    is_told = parameter.show_default and default not in (None, False, "") and not callable(default)
    return f"{parameter.help} [{default}]" if is_told else str(parameter.help)
