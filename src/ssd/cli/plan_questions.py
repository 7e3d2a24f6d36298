"""Questions to `ssd plan`: what each would not listen to, and whose measurements a plan is held against."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ssd.planning.validation import Row

_UNHEARD = {
    "--fleet": {
        "--devices": "a fleet's replicas have the sizes that pay",
        "--batch": "a fleet's batches are those that pay",
    },
    "--batches": {"--batch": "it looks at batches of every size"},
    "--validate": {
        "--devices": "measurements have their own devices",
        "--batch": "measurements have their own batches",
    },
}
"""What a question would not listen to, and why."""


def check_questions(questions: dict[str, Any], said: dict[str, Any]) -> None:
    """ValueError where something was said that would not be heard."""
    asked = [name for name, value in questions.items() if value is not None]
    if len(asked) > 1:
        raise ValueError(f"{asked[0]} and {asked[1]} are two questions: ask one at a time")
    if said["--run"] is not None and asked != ["--validate"]:
        raise ValueError("--run is a run to be predicted: say --validate too")
    for name, why in _UNHEARD.get(asked[0], {}).items() if asked else ():
        if said[name] is not None:
            raise ValueError(f"{asked[0]} does not listen to {name}, {why}: leave out one of them")


def kept_rows() -> tuple[list[Row], list[str]]:
    from ssd.planning.validation import measured_rows, published_rows

    said = "None of this was measured here: --run RUN predicts a run of `ssd bench run` on this machine."
    return [*published_rows(), *measured_rows()], [said]


def run_rows(run: Path, coverage: float) -> tuple[list[Row], list[str]]:
    from ssd.bench.folder import RunFolder
    from ssd.tuning.run_rows import run_rows as rows_of

    said = (
        "Contention is how much longer verifications and draft steps took in the run than bare ones: "
        "measured, not predicted. Runs that do not keep which guess was right have --coverage for it."
    )
    return rows_of(RunFolder(run), coverage=coverage), [said]
