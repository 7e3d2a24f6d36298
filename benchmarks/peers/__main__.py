"""Measure other engines beside this one: the same prompts, weights, lengths and cores, in turns.

    python -m benchmarks.peers MODEL --draft SMALL_MODEL --setup-help
    python -m benchmarks.peers MODEL --draft SMALL_MODEL --run runs/peers --peer-python vllm=VENV/bin/python
    python -m benchmarks.peers MODEL --run runs/sglang --peers "" --url sglang=http://host:30000/v1

A peer that is not there is left out by name, with the commands that would make it. See docs/peers.md.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from benchmarks.peers.cases import check_peer_cases
from benchmarks.peers.figures import PeersFigures
from benchmarks.peers.plans import Places, plan_workers
from benchmarks.peers.prompts import load_token_prompts
from benchmarks.peers.records import PeerRecord, PeersFolder, PeersManifest, PeersSettings
from benchmarks.peers.registry import PEERS, SSD, peer_named, setup_commands
from benchmarks.peers.report import tables, verdict_lines, write_report
from benchmarks.peers.run import PeersRun, Watcher
from benchmarks.peers.waves import continued_waves
from ssd.cli.console import shown
from ssd.cli.machine import provenance
from ssd.cli.options import parse_cores
from ssd.cli.progress import progress_of
from ssd.models.hub import local_model
from ssd.processes.host_memory import host_memory
from ssd.runtime.cores import share_out


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = made.add_argument
    add("model", metavar="MODEL", help="a folder with safetensors, or a GGUF file for ssd and llamacpp")
    add("--draft", help="a small one of the same tokenizer")
    add("--run", type=Path, metavar="DIR", help="where it is kept; started again, a run goes on")
    add("--setup-help", action="store_true", help="show the commands that make the peers, and end")

    add = made.add_argument_group("who takes part").add_argument
    names = [name for name in PEERS if name != SSD]
    add("--peers", type=_split, default=names, metavar="NAMES", help=f"of {', '.join(names)}")
    for_peer = "a peer's interpreter; or SSD_PEER_NAME_PYTHON"
    add("--peer-python", action="append", default=[], metavar="NAME=PATH", help=for_peer)
    add("--llama-server", metavar="PATH", help="that program for llamacpp; else one on the PATH")
    for_url = "a server of OpenAI's API, such as SGLang"
    add("--url", action="append", default=[], metavar="NAME=URL", help=for_url)
    add("--api-key", default=os.environ.get("SSD_API_KEY"), help="for those servers; or SSD_API_KEY")
    add("--served-model", metavar="NAME", help="what they call the model; else their first")
    add("--converted", type=Path, metavar="DIR", help="models in peers' forms; else beside the models")

    add = made.add_argument_group("what is measured").add_argument
    for_ours = (
        "of this engine; ar,ssd,ssd+int8, without a draft ar+allcores; none: it takes no part;\n"
        "with +targetint8 the target is in int8"
    )
    add("--ssd-cases", type=_split, metavar="CASES", help=for_ours)
    for_theirs = "plain, plain+targetcores, draftK (K tokens ahead), draft (its own K), ssdK (our draft)"
    add("--peer-cases", type=_split, default=["plain", "draft", "draft4"], metavar="CASES", help=for_theirs)
    four = ["humaneval", "alpaca", "gsm8k", "ultrafeedback"]
    add("--datasets", type=_split, default=four, metavar="NAMES", help="names, or .jsonl files")
    folder = os.environ.get("SSD_DATASET_DIR")
    add("--dataset-dir", type=Path, default=folder, metavar="DIR", help="of NAME*.jsonl; else the hub")
    add("--num-prompts", type=_at_least(1), default=12, metavar="N", help="of each data set")
    add("--turns", type=_at_least(1), default=1, metavar="N", help="how often each text is written")
    add("--first-prompt", type=_at_least(0), default=0, metavar="N", help="skip so many")
    add("--max-tokens", type=_at_least(8), default=96, metavar="N", help="written after each prompt")
    add("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16", help="everyone's")
    for_eager = "vLLM starts sooner and is slower: for a first look, not for a comparison"
    add("--without-compilation", action="store_true", help=for_eager)
    add("--mixed", action="store_true", help="go on though code or machine has changed")

    add = made.add_argument_group("machine").add_argument
    add("--cores", default="", help="of this engine's target, such as 0; peers get both")
    add("--draft-cores", default="", help="of its draft")
    add("--memory", type=float, metavar="GIB", help="for all who are loaded together; else what is free")
    return made


def main(words: Sequence[str] | None = None) -> None:
    flags = parser()
    options = flags.parse_args(words)
    try:
        if options.setup_help:
            _show_setup(options)
        elif options.run is None:
            raise ValueError("say where the run is kept: --run DIR")
        else:
            _measure(options, Console(stderr=True, highlight=False))
    except ValueError as error:
        flags.exit(2, f"error: {error}\n")


def _measure(options: argparse.Namespace, console: Console) -> None:
    folder, places = PeersFolder(options.run), places_of(options)
    model = local_model(options.model, hf_cache=None)
    draft = local_model(options.draft, hf_cache=None) if options.draft else None
    prompts = load_token_prompts(
        model, options.datasets, options.dataset_dir, options.num_prompts, options.first_prompt
    )
    settings = _settings(model, draft, options, prompts.digests, places)
    plans, absent = plan_workers(settings, places, _room(prompts.longest + options.max_tokens))
    engines = {plan.peer.name: plan.engine for plan in plans}
    manifest = folder.begin(PeersManifest(settings=settings, sessions=[], engines=engines))
    for name, reason in absent.items():
        console.print(f"[yellow]without {name}:[/] {escape(reason)}", soft_wrap=True)
    memory = int(options.memory * 2**30) if options.memory else host_memory().available
    waves = continued_waves(manifest.waves, plans, memory)
    names = [*manifest.waves, *([plan.name for plan in wave] for wave in waves[len(manifest.waves) :])]
    manifest = replace(manifest, waves=names, absent={**manifest.absent, **absent})
    folder.write(manifest)
    run = PeersRun(folder, manifest, waves, prompts.ids, prompts.encode)
    if not run.is_complete:
        run.begin_session(provenance(), mixed=options.mixed)
        _go_on(run, console)
    _show(folder)


def _settings(
    model: str, draft: str | None, options: argparse.Namespace, digests: dict[str, str], places: Places
) -> PeersSettings:
    cores = share_out(target=parse_cores(options.cores), draft=parse_cores(options.draft_cores))
    peer_cases = options.peer_cases if draft else ["plain"]
    ssd_cases = options.ssd_cases or (["ar", "ssd", "ssd+int8"] if draft else ["ar+allcores"])
    check_peer_cases(peer_cases)
    return PeersSettings(
        model=model,
        draft=draft,
        dtype=options.dtype,
        peers=[*options.peers, *places.urls],
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
        compiles=not options.without_compilation,
    )


def _converted(options: argparse.Namespace) -> Path | None:
    """A model of the hub has no place beside it that one would look at."""
    return options.converted or (None if Path(options.model).exists() else Path("converted"))


def places_of(options: argparse.Namespace) -> Places:
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
        converted=_converted(options),
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


def _show(folder: PeersFolder) -> None:
    console, figures = Console(highlight=False), PeersFigures(folder.records())
    for table in tables(figures):
        console.print(shown(table))
    for line in verdict_lines(figures):
        console.print(line, soft_wrap=True)
    write_report(folder)
    console.print(f"[dim]The same as Markdown: {escape(str(folder.path / 'report.md'))}[/]")


def _show_setup(options: argparse.Namespace) -> None:
    for name in options.peers:
        peer = peer_named(name)
        print(f"# {peer.title}")
        for line in setup_commands(peer, options.model, options.draft, _converted(options)):
            print(line)
        print(f"# then: --peer-python {name}=venvs/{name}/bin/python, or SSD_PEER_{name.upper()}_PYTHON\n")


def _room(num_tokens: int) -> int:
    """For prompt, output and what is guessed beyond it, in steps: engines compile for a size."""
    return -(-(num_tokens + 32) // 256) * 256


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"at least {least}, not {text}")
        return int(text)

    return number


def _named(pairs: list[str], flag: str) -> dict[str, str]:
    found = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if len(found) < len(pairs):
        raise ValueError(f"{flag} is NAME=VALUE, each name once")
    return found


if __name__ == "__main__":
    main()
