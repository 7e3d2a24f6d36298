"""A run that nobody ran: records with figures that can be worked out by hand."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ssd.bench.cases import Case, parse_case
from ssd.bench.folder import RunFolder
from ssd.bench.manifest import CaseFacts, Manifest, ModelFacts, Provenance, RunSettings
from ssd.bench.records import CaseRecord, Forwards

SPEED = {"ar": 4.0, "sd4": 6.0, "ssd": 9.0, "ssd+int8": 10.0, "sd3": 5.0}
CASES = ("ar", "sd4", "ssd", "ssd+int8")
WOBBLE = (1.0, 1.1, 0.9, 1.05, 0.95, 1.2)
"""Of a prompt, in every case alike: ratios are free of it."""
NUM_TOKENS = 20
TARGET = ModelFacts(name="target-1.5b", path="/models/target", num_bytes=3_000_000, num_parameters=1_000_000)
DRAFT = ModelFacts(name="draft-0.5b", path="/models/draft", num_bytes=1_000_000, num_parameters=250_000)
HARDWARE = {"processor": "Made-up Processor", "cores": "2, on 2 physical", "memory": "8.0 GiB"}

Change = Callable[[CaseRecord], CaseRecord]


def write_run(
    folder: Path,
    *,
    cases: Sequence[str] = CASES,
    datasets: Sequence[str] = ("humaneval", "alpaca"),
    num_prompts: int = 6,
    deterministic: bool = False,
    forward_seconds: float = 0.25,
    change: Change = lambda record: record,
) -> RunFolder:
    labels = [parse_case(each).label for each in cases]
    settings = RunSettings(
        model="target", draft="draft", cases=labels, datasets=datasets, num_prompts=num_prompts,
        first_prompt=0, max_tokens=NUM_TOKENS, seed=1, deterministic=deterministic,
        prompts=dict.fromkeys(datasets, "digest"), engine={},
    )  # fmt: skip
    session = Provenance(
        started="2026-01-01T00:00:00+00:00", commit="0123456789ab", versions={"ssd": "0.1"}, hardware=HARDWARE
    )
    made = RunFolder(folder)
    made.begin(Manifest(settings=settings, sessions=[]))
    facts = [_facts(parse_case(label)) for label in labels]
    made.begin_session(
        Manifest(settings=settings, sessions=[session], target=TARGET, draft=DRAFT, cases=facts)
    )
    for prompt in range(num_prompts):
        for place, dataset in enumerate(datasets):
            made.add([change(record(parse_case(each), dataset, prompt, place)) for each in labels])
            made.add([_forwards(dataset, prompt, forward_seconds)])
    return made


def record(case: Case, dataset: str, prompt: int, place: int = 0) -> CaseRecord:
    """Half of the speed beyond plain decoding is lost at batch 4, and the second data set is slower."""
    speed = SPEED[case.name] * WOBBLE[prompt % len(WOBBLE)] / (1 + 0.25 * place) / case.batch_size**0.3
    accepted = {"ar": 0, "sd": 12, "ssd": 10}[case.mode]
    rounds = NUM_TOKENS - accepted
    return CaseRecord(
        dataset=dataset, prompt=prompt, case=case.label, tokens=list(range(prompt, prompt + NUM_TOKENS)),
        num_prompt=50, first_token=0.5, seconds_per_token=1 / speed, rounds=rounds, accepted=accepted,
        drafted=2 * accepted, hits=8 if case.mode == "ssd" else 0, late=1 if case.mode == "ssd" else 0,
        unknown=1 if case.mode == "ssd" else 0, unheard=0,
        seconds=NUM_TOKENS / speed / case.batch_size, step_seconds=NUM_TOKENS / speed,
        verify_seconds=0.9 * NUM_TOKENS / speed, round_seconds=0.8 * NUM_TOKENS / speed,
        round_steps=rounds - 1,
        wait_seconds=0.05 * NUM_TOKENS / speed,
        draft_seconds=0.04 * NUM_TOKENS / speed, draft_steps=15 if case.mode == "ssd" else 0,
        target_rows=50 + NUM_TOKENS + accepted, draft_rows=100 if case.mode != "ar" else 0,
        other_load=0.0,
    )  # fmt: skip


def _facts(case: Case) -> CaseFacts:
    drafts = case.mode != "ar"
    return CaseFacts(
        label=case.label, lookahead={"ar": 0, "sd": 4, "ssd": 8}[case.mode],
        draft_form=(case.draft_precision or "model") if drafts else None,
        draft_width=12 if drafts else 0, draft_parameters=DRAFT.num_parameters if drafts else 0,
        num_devices=2 if case.mode == "ssd" else 1,
    )  # fmt: skip


def _forwards(dataset: str, prompt: int, seconds: float) -> Forwards:
    forms = {"model": 0.1, "int8": 0.05}
    return Forwards(
        dataset=dataset, prompt=prompt, target_seconds={1: seconds, 5: seconds, 9: 1.2 * seconds},
        draft_seconds={form: {12: draft} for form, draft in forms.items()},
        agreement={form: [True, True, True, False] * 5 for form in forms},
        ranks={form: [0, 0, 0, 2] * 4 + [0, 0, 0, -1] for form in forms},
    )  # fmt: skip


def at_speed(factor: float) -> Change:
    """The same run, so many times as fast."""
    return lambda each: replace(each, seconds_per_token=each.seconds_per_token / factor)
