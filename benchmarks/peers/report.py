"""A run among peers as Markdown: a table for each data set, the verdicts, and what is needed to repeat it."""

from collections.abc import Iterator

from benchmarks.peers.figures import PeerFigures, PeersFigures
from benchmarks.peers.records import PeersFolder, PeersManifest
from ssd.bench.tables import NOTHING, Column, Table, markdown

COLUMNS = (
    Column[PeerFigures]("wave", lambda row: str(row.wave + 1), is_text=True),
    Column[PeerFigures]("engine", lambda row: row.peer, is_text=True),
    Column[PeerFigures]("case", lambda row: row.case, is_text=True),
    Column[PeerFigures]("tok/s (95 %)", lambda row: str(row.rate)),
    Column[PeerFigures]("first token, s", lambda row: f"{row.first_token:.2f}"),
    Column[PeerFigures]("SSD's best over it (95 %)", lambda row: str(row.ratio or NOTHING)),
    Column[PeerFigures]("same text", lambda row: str(row.agreement or NOTHING)),
)
_DRAFTS = {"same": "the same draft", "any": "a draft in any precision"}


def tables(figures: PeersFigures) -> list[Table[PeerFigures]]:
    return [Table(COLUMNS, figures.rows(dataset), dataset) for dataset in figures.tables]


def verdict_lines(figures: PeersFigures) -> list[str]:
    """With the draft that peers have too; then, if this engine has others, with whichever is best.

    At last, engines with our draft inside them beside themselves without it.
    """
    verdicts = [figures.verdict(name, drafts) for name in figures.tables for drafts in figures.drafts]
    verdicts += [figures.verdict_on_mean(drafts) for drafts in figures.drafts]
    return [
        f"{each.dataset}, {_DRAFTS[each.drafts]}: {each.ours} is {each.ratio} times as fast "
        f"as the best peer, {each.theirs}"
        for each in verdicts
        if each is not None and each.drafts is not None
    ] + [
        f"{each.dataset}: {each.ours} is {each.ratio} times as fast as {each.theirs}"
        for name in figures.tables
        for each in figures.verdicts_inside(name)
    ]


def write_report(folder: PeersFolder) -> str:
    """The text of report.md, which is also written."""
    text = "\n".join(_lines(folder.manifest(), PeersFigures(folder.records()))) + "\n"
    (folder.path / "report.md").write_text(text)
    return text


def _lines(manifest: PeersManifest, figures: PeersFigures) -> Iterator[str]:
    settings = manifest.settings
    yield "# Peers"
    yield ""
    yield (
        f"{settings.model} with {settings.draft or 'no draft'}, {settings.dtype}, greedy, "
        f"{settings.max_tokens} tokens whatever they are, one text at a time, {settings.num_prompts} prompts "
        f"of each data set, everyone in turns on each prompt{_turns(settings.turns)}. "
        + _cores(manifest)
        + ("" if settings.compiles else "vLLM was not compiled: its speeds are a first look. ")
        + "tok/s: median over prompts of the tokens after those that came first. Those of a wave were loaded "
        "together and took turns; rates of different waves do not compare, ratios are taken within one."
    )
    yield ""
    for table in tables(figures):
        yield from (f"## {table.title}", "", *markdown(table))
    yield from (f"- {line}" for line in verdict_lines(figures))
    yield from ("", "## Who took part", "")
    for name, versions in manifest.versions.items():
        idle, engine = manifest.idle.get(name), _engine_of(name, manifest)
        words = ", ".join(f"{package} {version}" for package, version in versions.items() if version != "?")
        yield f"- {name}: {words or 'versions unknown'}{engine}" + (
            "" if idle is None else f"; not stopped while others are measured, and idle: {idle:.2f} cores"
        )
    for name, reason in manifest.absent.items():
        word = "not in all texts:" if figures.has_texts_of(name) else "not"
        yield f"- {word} {name}: {reason}"
    for session in manifest.sessions:
        hardware = ", ".join(f"{name}: {value}" for name, value in session.hardware.items())
        yield f"- {session.started}, commit {session.commit}; {hardware}"


def _engine_of(worker: str, manifest: PeersManifest) -> str:
    """A worker is called by its peer, or by its peer and its case."""
    engine = manifest.engines.get(worker) or manifest.engines.get(worker.rpartition("-")[0])
    return f"; {engine}" if engine else ""


def _cores(manifest: PeersManifest) -> str:
    target, draft = manifest.settings.target_cores, manifest.settings.draft_cores
    if not target:
        return ""
    both = ", ".join(map(str, (*target, *draft)))
    return (
        f"This engine: target on core {', '.join(map(str, target))}, draft on core "
        f"{', '.join(map(str, draft))} (case ar: the former alone). Peers: cores {both}; in cases "
        "+targetcores the former alone, in cases ssd… as this engine. "
    )


def _turns(count: int) -> str:
    return "" if count == 1 else f", {count} times over, of which a prompt's median counts"
