"""guidellm, the load generator, as a program: one endpoint at one level. Knows its scenarios and its report.

It runs in an environment of its own, so only files and a command line are between us. Its own statistics are
left alone: requests are taken as it timed them, and what they mean is decided in load_figures.py.
"""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from ssd.bench.load import Answered, Endpoint, Level, LevelRecord, LoadSettings

SETUP = (
    "python3 -m venv venvs/guidellm",
    "venvs/guidellm/bin/pip install torch guidellm    # torch: the CPU build is enough",
)
# One process: with several, each draws its Poisson arrivals from the same seed, and they come evenly.
_ENVIRONMENT = ("GUIDELLM__MAX_WORKER_PROCESSES=1", "HF_HUB_OFFLINE=1", "TOKENIZERS_PARALLELISM=false")
_STARTING_SECONDS = 300.0


class GeneratorError(ValueError):
    """The generator could not do its work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidellm:
    program: str
    prompts: Sequence[str]
    api_key: str | None = None

    def run(
        self, endpoint: Endpoint, level: Level, number: int, settings: LoadSettings, log: Path
    ) -> LevelRecord:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            scenario, report = folder / "scenario.json", folder / "report.json"
            self._write_prompts(folder / "prompts.jsonl", settings.num_requests(level), number)
            scenario.write_text(json.dumps(self._scenario(endpoint, level, settings, folder)))
            command = ["env", *_ENVIRONMENT, self.program, "run", "-c", str(scenario), "--disable-console"]
            self._call(command, settings.max_seconds + _STARTING_SECONDS, log)
            if not report.exists():
                raise GeneratorError(f"guidellm wrote no report: see {log}")
            return read_report(json.loads(report.read_text()), endpoint.name, level, number)

    def _call(self, command: Sequence[str], seconds: float, log: Path) -> None:
        with log.open("ab") as out:
            try:
                done = subprocess.run(command, stdout=out, stderr=out, timeout=seconds)
            except subprocess.TimeoutExpired:
                raise GeneratorError(f"guidellm did not end within {seconds:.0f} s: see {log}") from None
        if done.returncode:
            raise GeneratorError(f"guidellm ended with code {done.returncode}: see {log}")

    def _write_prompts(self, file: Path, count: int, number: int) -> None:
        """As many as there are requests: every endpoint is asked the same, each round others first."""
        shift = number * count % len(self.prompts)
        turned = [*self.prompts[shift:], *self.prompts[:shift]]
        lines = (json.dumps({"prompt": text}) for text in islice(cycle(turned), count))
        file.write_text("\n".join(lines) + "\n")

    def _scenario(
        self, endpoint: Endpoint, level: Level, settings: LoadSettings, folder: Path
    ) -> dict[str, Any]:
        by_users = {"kind": "concurrent", "streams": int(level.value)}
        by_rate = {"kind": "poisson", "rate": level.value}
        body = {"temperature": 0, "ignore_eos": True, **endpoint.body}
        backend = {
            "kind": "openai_http",
            "target": endpoint.url,
            "model": endpoint.model,
            "request_format": "/v1/completions",
            "max_tokens": settings.max_tokens,
            "extras": {"body": body},
            **({"api_key": self.api_key} if self.api_key else {}),
        }
        spec = {
            "backend": backend,
            "profile": by_users if level.kind == "users" else by_rate,
            "data": [{"kind": "json_file", "path": str(folder / "prompts.jsonl")}],
            "constraints": [
                {"kind": "max_requests", "count": settings.num_requests(level)},
                {"kind": "max_duration", "seconds": settings.max_seconds},
            ],
            "outputs": [{"kind": "json", "path": str(folder / "report.json")}],
        }
        return {"metadata": {"name": f"{endpoint.name}, {level}"}, "spec": spec}


def read_report(report: dict[str, Any], endpoint: str, level: Level, number: int) -> LevelRecord:
    """Of a report with one benchmark, the requests."""
    try:
        requests = report["benchmarks"][0]["requests"]
        done, failed = requests["successful"], requests["errored"]
        began = min((each["info"]["timings"]["request_start"] for each in done), default=0.0)
        answers = [_answer(each, began) for each in done]
    except (KeyError, IndexError, TypeError) as error:
        raise GeneratorError(f"guidellm's report is not as version 0.8 writes it: no {error}") from error
    return LevelRecord(
        endpoint=endpoint,
        level=level,
        round=number,
        answers=[each for each in answers if each is not None],
        num_failed=len(failed) + answers.count(None),
        first_failure=str(failed[0]["info"]["error"])[:300] if failed else None,
        num_unfinished=len(requests["incomplete"]),
    )


def _answer(request: dict[str, Any], origin: float) -> Answered | None:
    times = request["info"]["timings"]
    if times["first_token_iteration"] is None or not request["output_tokens"]:
        return None
    return Answered(
        began=times["request_start"] - origin,
        first_token=times["first_token_iteration"] - origin,
        last_token=times["last_token_iteration"] - origin,
        ended=times["request_end"] - origin,
        num_tokens=int(request["output_tokens"]),
    )
