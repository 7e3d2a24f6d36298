"""Which cases can run on this machine, and the settings that each of them means.

Knows cases and settings; imports no engine, so that a refusal comes at once.
"""

from collections.abc import Sequence
from dataclasses import replace

from ssd.bench.cases import Case, refuse_without_draft
from ssd.config import EngineConfig
from ssd.runtime.fit import refuse_what_the_machine_lacks


def refuse_cases(config: EngineConfig, draft: str | None, cases: Sequence[Case]) -> None:
    """Those that cannot run here, before anything is fetched or loaded."""
    refuse_without_draft(cases, draft)
    if draft is not None and "://" in draft:
        raise ValueError("a bench starts its drafts itself: name a model with --draft, not an address")
    for case in cases:
        refuse_what_the_machine_lacks(with_case(config, case, draft))


def with_case(config: EngineConfig, case: Case, draft: str | None) -> EngineConfig:
    """Cases name their draft's precision, so that they mean the same on every machine: never `auto`."""
    precision = "model" if config.draft_precision == "auto" else config.draft_precision
    draft = None if case.mode == "ar" else draft
    return replace(config, **{"draft_precision": precision, **case.settings, "draft": draft})
