"""This engine as one of the peers: a process like theirs, asked like them, in every case around one target.

Times are the engine's own, which know the same two moments: the first token, and the last.
"""

from typing import Any, cast


def load(job: dict[str, Any]) -> Any:
    from ssd.bench.cases import parse_case
    from ssd.bench.engines import CaseEngines
    from ssd.config import EngineConfig

    cases = {name: parse_case(name) for name in job["cases"]}
    config = EngineConfig(
        model=job["model"],
        dtype=job["dtype"],
        max_model_len=job["max_model_len"],
        cores=tuple(job["target_cores"]),
        draft_cores=tuple(job["draft_cores"]),
        kv_cache_bytes=1 << 29,
    )
    engines = CaseEngines(config, job["draft"], list(cases.values()))

    def generate(case: str, prompt: list[int], max_tokens: int, note: Any) -> dict[str, Any]:
        # A prompt may be token ids wherever it may be text.
        (record,) = engines.run(cases[case], [cast(str, prompt)], max_tokens=max_tokens, seed=0)
        note(record.tokens)
        return {
            "first_token": record.first_token,
            "seconds_per_token": record.seconds_per_token if len(record.tokens) > 1 else None,
            "accepted_per_round": record.accepted / max(1, record.rounds),
        }

    return generate
