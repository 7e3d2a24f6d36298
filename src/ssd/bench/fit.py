"""Which cases can run on this machine, and the settings that each of them means.

Knows cases and settings; imports no engine, so that a refusal comes at once.
"""

from collections.abc import Sequence
from dataclasses import replace

from ssd.bench.cases import Case, refuse_without_draft
from ssd.config import DraftConfig, EngineConfig
from ssd.runtime.fit import refuse_what_the_machine_lacks


def refuse_cases(config: EngineConfig, draft: DraftConfig | None, cases: Sequence[Case]) -> None:
    """Those that cannot run here, before anything is fetched or loaded."""
    refuse_without_draft(cases, draft)
    if draft is not None and draft.is_elsewhere:
        raise ValueError("a bench starts its drafts itself: name a model with --draft, not an address")
    for case in cases:
        refuse_what_the_machine_lacks(with_case(config, case, draft))


def with_case(config: EngineConfig, case: Case, draft: DraftConfig | None) -> EngineConfig:
    """Cases name their draft's precision, so that they mean the same on every machine: never `auto`."""
    if draft is not None and draft.precision == "auto":
        draft = replace(draft, precision="model")
    if draft is not None:
        draft = None if case.mode == "ar" else replace(draft, **case.draft_settings)
    return replace(config, draft=draft, **case.settings)
