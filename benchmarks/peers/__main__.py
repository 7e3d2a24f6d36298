"""`python -m benchmarks.peers`: other engines beside this one, with the same prompts, weights and cores."""

import os
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from benchmarks.peers.cases import check_peer_cases
from benchmarks.peers.plans import Places, plan_workers
from benchmarks.peers.prompts import load_token_prompts
from benchmarks.peers.records import PeerRecord, PeersFolder, PeersManifest, PeersSettings
from benchmarks.peers.registry import PEERS, SSD, peer_named
from benchmarks.peers.run import PeersRun, Watcher
from benchmarks.peers.terminal import show_peers, show_setup
from benchmarks.peers.waves import continued_waves
from ssd.cli.errors import user_errors
from ssd.cli.machine import available_memory
from ssd.cli.options import parse_cores, with_options
from ssd.cli.provenance import provenance
from ssd.cli.tables import progress_of
from ssd.models.hub import local_model
from ssd.runtime.cores import share_out

_WHO, _WHAT, _MACHINE = "Who takes part", "What is measured", "Machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersOptions:
    peers: Annotated[
        str, typer.Option(rich_help_panel=_WHO, help="Of vllm, openvino, llamacpp, transformers.")
    ] = "vllm,openvino,llamacpp,transformers"
    peer_python: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH", rich_help_panel=_WHO, help="A peer's interpreter; or SSD_PEER_NAME_PYTHON."
        ),
    ] = None
    llama_server: Annotated[
        str | None,
        typer.Option(rich_help_panel=_WHO, help="That program for llamacpp; else one on the PATH."),
    ] = None
    url: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=URL", rich_help_panel=_WHO, help="A server of OpenAI's API, such as SGLang."
        ),
    ] = None
    api_key: Annotated[
        str | None, typer.Option(envvar="SSD_API_KEY", rich_help_panel=_WHO, help="For those servers.")
    ] = None
    served_model: Annotated[
        str | None, typer.Option(rich_help_panel=_WHO, help="What they call the model; else their first.")
    ] = None
    converted: Annotated[
        Path | None,
        typer.Option(metavar="DIR", rich_help_panel=_WHO, help="Models in peers' forms; beside the models."),
    ] = None
    ssd_cases: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_WHAT,
            help="Of this engine. Default ar,ssd,ssd+int8; no draft: ar+allcores. none: it takes no part.",
        ),
    ] = None
    peer_cases: Annotated[
        str,
        typer.Option(
            rich_help_panel=_WHAT,
            help="plain, plain+targetcores, draftK (K tokens ahead), draft (its own K), ssdK (our draft).",
        ),
    ] = "plain,draft,draft4"
    datasets: Annotated[str, typer.Option(rich_help_panel=_WHAT, help="Names, or .jsonl files.")] = (
        "humaneval,alpaca,gsm8k,ultrafeedback"
    )
    dataset_dir: Annotated[
        Path | None,
        typer.Option(envvar="SSD_DATASET_DIR", rich_help_panel=_WHAT, help="Of NAME*.jsonl; else the hub."),
    ] = None
    num_prompts: Annotated[int, typer.Option(rich_help_panel=_WHAT, min=1, help="Of each data set.")] = 12
    turns: Annotated[
        int, typer.Option(rich_help_panel=_WHAT, min=1, help="How often each text is written.")
    ] = 1
    first_prompt: Annotated[int, typer.Option(rich_help_panel=_WHAT, help="Skip so many.")] = 0
    max_tokens: Annotated[
        int, typer.Option(rich_help_panel=_WHAT, min=8, help="Written after each prompt.")
    ] = 96
    dtype: Annotated[str, typer.Option(rich_help_panel=_WHAT, help="Everyone's.")] = "bfloat16"
    cores: Annotated[
        str,
        typer.Option(rich_help_panel=_MACHINE, help="Of this engine's target, such as 0; peers get both."),
    ] = ""
    draft_cores: Annotated[str, typer.Option(rich_help_panel=_MACHINE, help="Of its draft.")] = ""
    mixed: Annotated[
        bool,
        typer.Option("--mixed", rich_help_panel=_WHAT, help="Go on though code or machine has changed."),
    ] = False
    memory: Annotated[
        float | None,
        typer.Option(rich_help_panel=_MACHINE, help="GiB for all who are loaded together; what is free."),
    ] = None


app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
@with_options
def peers(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder with safetensors.")],
    draft: Annotated[str | None, typer.Option(help="A small one of the same tokenizer.")] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--run", metavar="DIR", help="Where it is kept. Started again, a run goes on."),
    ] = None,
    setup_help: Annotated[
        bool, typer.Option("--setup-help", help="Show the commands that make the peers, and end.")
    ] = False,
    *,
    options: PeersOptions,
) -> None:
    """Measure other engines beside this one: the same prompts, weights and cores, in turns.

    Examples:

        python -m benchmarks.peers MODEL --draft SMALL --setup-help

        python -m benchmarks.peers MODEL --draft SMALL --run runs/peers --peer-python vllm=VENV/bin/python

        python -m benchmarks.peers MODEL --run runs/sglang --peers "" --url sglang=http://host:30000/v1

    A peer that is not there is left out by name, with the commands that would make it.
    """
    with user_errors():
        if setup_help:
            show_setup(model, draft, _split(options.peers), _converted(model, options))
            return
        if folder is None:
            raise ValueError("say where the run is kept: --run DIR")
        _measure(model, draft, folder, options)


def _measure(model: str, draft: str | None, path: Path, options: PeersOptions) -> None:
    console, folder = Console(stderr=True, highlight=False), PeersFolder(path)
    places = _places(model, options)
    model, draft = local_model(model, hf_cache=None), draft and local_model(draft, hf_cache=None)
    prompts = load_token_prompts(
        model, _split(options.datasets), options.dataset_dir, options.num_prompts, options.first_prompt
    )
    settings = _settings(model, draft, options, prompts.digests, places)
    plans, absent = plan_workers(settings, places, _room(prompts.longest + options.max_tokens))
    engines = {plan.peer.name: plan.engine for plan in plans}
    manifest = folder.begin(PeersManifest(settings=settings, sessions=[], engines=engines))
    for name, reason in absent.items():
        console.print(f"[yellow]without {name}:[/] {escape(reason)}", soft_wrap=True)
    memory = int(options.memory * 2**30) if options.memory else available_memory()
    waves = continued_waves(manifest.waves, plans, memory)
    names = [*manifest.waves, *([plan.name for plan in wave] for wave in waves[len(manifest.waves) :])]
    manifest = replace(manifest, waves=names, absent={**manifest.absent, **absent})
    folder.write(manifest)
    run = PeersRun(folder, manifest, waves, prompts.ids, prompts.encode)
    if not run.is_complete:
        run.begin_session(provenance(), mixed=options.mixed)
        _go_on(run, console)
    show_peers(folder)


def _settings(
    model: str, draft: str | None, options: PeersOptions, digests: dict[str, str], places: Places
) -> PeersSettings:
    cores = share_out(target=parse_cores(options.cores), draft=parse_cores(options.draft_cores))
    peer_cases = _split(options.peer_cases) if draft else ["plain"]
    ssd_cases = _split(options.ssd_cases or ("ar,ssd,ssd+int8" if draft else "ar+allcores"))
    check_peer_cases(peer_cases)
    return PeersSettings(
        model=model,
        draft=draft,
        dtype=options.dtype,
        peers=[*_split(options.peers), *places.urls],
        ssd_cases=[] if ssd_cases == ["none"] else ssd_cases,
        peer_cases=peer_cases,
        target_cores=list(cores.target),
        draft_cores=list(cores.draft),
        datasets=list(digests),
        num_prompts=options.num_prompts,
        first_prompt=options.first_prompt,
        max_tokens=options.max_tokens,
        prompts=digests,
        turns=options.turns,
    )


def _converted(model: str, options: PeersOptions) -> Path | None:
    """A model of the hub has no place beside it that one would look at."""
    return options.converted or (None if Path(model).exists() else Path("converted"))


def _places(model: str, options: PeersOptions) -> Places:
    said = _named(options.peer_python, "--peer-python")
    for name in said:
        peer_named(name)
    variables = {name: os.environ.get(f"SSD_PEER_{name.upper()}_PYTHON") for name in PEERS}
    # Whoever is not named may be where --setup-help makes it, or be installed beside this engine.
    made = {name: path for name in PEERS if (path := Path("venvs") / name / "bin/python").exists()}
    pythons = {
        name: Path(said.get(name) or variables[name] or made.get(name) or sys.executable) for name in PEERS
    }
    program = options.llama_server or shutil.which("llama-server")
    return Places(
        pythons={**pythons, SSD: Path(sys.executable)},
        programs={"llamacpp": program} if program and "llamacpp" not in said else {},
        urls=_named(options.url, "--url"),
        converted=_converted(model, options),
        api_key=options.api_key,
        served_model=options.served_model,
    )


def _go_on(run: PeersRun, console: Console) -> None:
    with progress_of("texts", console) as progress:
        bar = progress.add_task("loading", total=run.num_texts, completed=run.num_done)

        def on_text(record: PeerRecord) -> None:
            progress.update(bar, description="measuring", advance=1)
            engine = f"{record.peer} {record.case}"
            progress.console.print(
                f"{record.dataset} {record.prompt:4}  {engine:28} {record.rate:8.2f} tok/s"
            )

        def on_note(text: str) -> None:
            progress.console.print(f"[dim]{escape(text)}[/]", soft_wrap=True)

        run.go_on(Watcher(on_text=on_text, on_note=on_note))


def _room(num_tokens: int) -> int:
    """For prompt, output and what is guessed beyond it, in steps: engines compile for a size."""
    return -(-(num_tokens + 32) // 256) * 256


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _named(pairs: list[str] | None, flag: str) -> dict[str, str]:
    found = dict(pair.split("=", 1) for pair in pairs or () if "=" in pair)
    if len(found) < len(pairs or ()):
        raise ValueError(f"{flag} is NAME=VALUE, each name once")
    return found


if __name__ == "__main__":
    app()
