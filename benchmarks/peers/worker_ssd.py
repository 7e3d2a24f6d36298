"""This engine as one of the peers: a process like theirs, asked like them, in every case around its target.

Its target is loaded once for each precision that cases name.

Times are the engine's own, not the worker's clock: from the request's arrival to its first token, which comes
alone, and from there to the last.
"""

from dataclasses import replace
from typing import Any


def load(job: dict[str, Any]) -> Any:
    from ssd.bench.cases import parse_case
    from ssd.bench.engines import CaseEngines
    from ssd.config import DraftConfig, EngineConfig

    cases = {name: (parse_case(own), precision) for name, (own, precision) in job["own_cases"].items()}
    config = EngineConfig(
        model=job["model"],
        dtype=job["dtype"],
        max_model_len=job["max_model_len"],
        cores=tuple(job["target_cores"]),
        kv_cache_bytes=1 << 29,
    )
    draft = DraftConfig(model=job["draft"], cores=tuple(job["draft_cores"])) if job["draft"] else None
    engines = {
        each: CaseEngines(
            replace(config, precision=each), draft, [case for case, other in cases.values() if other == each]
        )
        for each in dict.fromkeys(precision for _, precision in cases.values())
    }

    def generate(case: str, prompt: list[int], max_tokens: int, note: Any) -> dict[str, Any]:
        parsed, precision = cases[case]
        (record,) = engines[precision].run(parsed, [prompt], max_tokens=max_tokens, seed=0)
        note(record.tokens)
        num_later = len(record.tokens) - 1
        return {
            "first_token": record.first_token,
            "seconds_later": record.seconds_per_token * num_later,
            "num_later": num_later,
        }

    return generate
