"""Which workers a run can have: who is there, by which interpreter, with which weights; and who is not.

Knows how settings become jobs. Reads no environment: where things are comes from the caller.
"""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import has_our_draft, is_on_target_cores, is_plain, own_case
from benchmarks.peers.process import WorkerPlan
from benchmarks.peers.records import PeersSettings
from benchmarks.peers.registry import SSD, Peer, converted, endpoint, is_gguf, peer_named, setup_commands
from benchmarks.peers.waves import expected_bytes
from ssd.config import DraftConfig
from ssd.engine.drafting import draft_arguments

_CHECK = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
_CHECK_OURS = "import ssd.draft.client.client, ssd.integrations.vllm"
"""With what they stand on: our packages may be there without their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where peers are."""

    pythons: Mapping[str, Path]
    programs: Mapping[str, str] = field(default_factory=dict)
    urls: Mapping[str, str] = field(default_factory=dict)
    converted: Path | None = None
    """Folder of the forms that some peers read; None: beside the models."""
    api_key: str | None = None
    served_model: str | None = None


def plan_workers(
    settings: PeersSettings, places: Places, max_model_len: int
) -> tuple[list[WorkerPlan], dict[str, str]]:
    """Workers that can start, this engine's first; and by name, why a peer or a case is not among them."""
    plans: list[WorkerPlan] = []
    absent: dict[str, str] = {}
    for name in dict.fromkeys((*([SSD] if settings.ssd_cases else []), *settings.peers)):
        peer = endpoint(name) if name in places.urls else peer_named(name)
        reason = _why_absent(peer, settings, places)
        if reason is not None:
            absent[name] = reason
            continue
        found = _plans_of(peer, settings, places, max_model_len)
        without = {plan.name: why for plan in found if (why := _why_not_ours(plan))}
        plans += [plan for plan in found if plan.name not in without]
        absent |= without
    return plans, absent


def _why_absent(peer: Peer, settings: PeersSettings, places: Places) -> str | None:
    if peer.name in places.urls:
        return None
    as_stored = is_gguf(settings.model)
    if as_stored and not peer.opens_gguf:
        return "it needs the model's folder, and this run is of a GGUF file"
    if peer.dtypes and settings.dtype not in peer.dtypes and not as_stored:
        return f"it is run in {' or '.join(peer.dtypes)} only, and --dtype is {settings.dtype}"
    if not _cases_of(peer, settings):
        return "it has no length of drafts of its own: name one with --peer-cases, such as draft4"
    commands = "; ".join(setup_commands(peer, settings.model, settings.draft, places.converted))
    python = places.pythons.get(peer.name)
    if peer.name not in places.programs:
        if python is None:
            return f"no interpreter is named (--peer-python {peer.name}=…); to make one: {commands}"
        if not _can_import(python, peer.module):
            return f"{python} cannot import {peer.module}; to make one that can: {commands}"
    for model in filter(None, (settings.model, settings.draft)):
        if not converted(peer, model, places.converted).exists():
            return f"{converted(peer, model, places.converted)} is missing; to make it: {commands}"
    return None


def _why_not_ours(plan: WorkerPlan) -> str:
    """Why a peer cannot take our draft; empty: it can, or is not asked to."""
    if not plan.has_our_draft or _runs(plan.python, _CHECK_OURS):
        return ""
    return (
        f"{plan.python} cannot import this package, which its case {plan.cases[0]} runs inside the peer: "
        f"{plan.python} -m pip install -e . in a checkout of it, which changes no version that is there"
    )


def _can_import(python: Path, module: str) -> bool:
    return _runs(python, _CHECK, module)


def _runs(python: Path, *words: str) -> bool:
    try:
        found = subprocess.run([str(python), "-c", *words], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.returncode == 0


def _plans_of(peer: Peer, settings: PeersSettings, places: Places, max_model_len: int) -> list[WorkerPlan]:
    cases = ["server"] if peer.name in places.urls else _cases_of(peer, settings)
    groups = [cases] if peer.shares_weights else [[case] for case in cases]
    return [_plan(peer, group, settings, places, max_model_len) for group in groups]


def _cases_of(peer: Peer, settings: PeersSettings) -> list[str]:
    if peer.name == SSD:
        return list(settings.ssd_cases)
    cases = [case for case in settings.peer_cases if peer.has_own_length or case != "draft"]
    if not peer.takes_our_draft:
        cases = [case for case in cases if not has_our_draft(case)]
    # One process for all cases is on one set of cores.
    is_on_one_set = peer.shares_weights and not peer.starts_each_case
    return [case for case in cases if not (is_on_one_set and is_on_target_cores(case))]


def _plan(
    peer: Peer, cases: Sequence[str], settings: PeersSettings, places: Places, max_model_len: int
) -> WorkerPlan:
    drafts = settings.draft is not None and not all(case == "ar" or is_plain(case) for case in cases)
    target = converted(peer, settings.model, places.converted)
    draft = converted(peer, str(settings.draft), places.converted) if drafts else None
    is_ours, is_remote = peer.name == SSD, peer.name in places.urls
    on_target_cores = not peer.shares_weights and is_on_target_cores(cases[0])
    all_cores = [*settings.target_cores, *([] if on_target_cores else settings.draft_cores)]
    job: dict[str, Any] = {
        "model": str(target),
        "draft": None if draft is None else str(draft),
        "cases": list(cases),
        "own_cases": {case: own_case(case) for case in cases} if is_ours else {},
        # This engine moves its two halves to their cores by itself.
        "cores": [] if is_ours or is_remote else all_cores,
        "target_cores": list(settings.target_cores),
        "draft_cores": list(settings.draft_cores),
        "draft_command": [],
        "compiles": settings.compiles,
        "dtype": settings.dtype,
        "is_as_stored": is_gguf(settings.model),
        "max_model_len": max_model_len,
        "packages": list(peer.packages),
        "program": places.programs.get(peer.name),
        "url": places.urls.get(peer.name),
        "api_key": places.api_key,
        "served_model": places.served_model,
    }
    if not is_ours and has_our_draft(cases[0]):
        job["draft_command"] = _draft_command(settings, places)
    python = places.pythons.get(peer.name, places.pythons[SSD])
    num_bytes = 0 if is_remote else expected_bytes(peer, cases, target, draft, settings.dtype)
    return WorkerPlan(peer=peer, cases=cases, python=python, job=job, num_bytes=num_bytes)


def _draft_command(settings: PeersSettings, places: Places) -> list[str]:
    """`ssd draft` by our own interpreter, told what this engine would tell it, but for where it listens."""
    draft = DraftConfig(
        model=str(settings.draft),
        dtype=settings.dtype,  # type: ignore[arg-type]  # checked by the settings
        cores=tuple(settings.draft_cores),
        kv_cache_bytes=1 << 29,
    )
    return [str(places.pythons[SSD]), "-m", "ssd", "draft", *draft_arguments(draft)]
