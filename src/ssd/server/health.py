"""The probes /livez (does the engine make progress?), /health (can it answer?) and /ready (send requests
here?).

A server that is loading its model is alive. Healthy means alive and loaded, which is what clients and load
generators wait for. A server without its draft is ready but degraded: same tokens, slower.
"""

from dataclasses import dataclass
from typing import Any

from ssd.server.serving import Serving


@dataclass(frozen=True, slots=True)
class ProbeResult:
    status: int
    body: dict[str, Any]


def liveness(serving: Serving) -> ProbeResult:
    llm = serving.llm
    waiting = llm.seconds_without_progress
    if llm.state == "dead":
        return ProbeResult(503, {"status": "dead"})
    if waiting > serving.config.stuck_seconds:
        return ProbeResult(503, {"status": "stuck", "seconds_without_progress": round(waiting, 1)})
    return ProbeResult(200, {"status": "ok", "seconds_without_progress": round(waiting, 1)})


def health(serving: Serving) -> ProbeResult:
    if serving.llm.state == "loading":
        return ProbeResult(503, {"status": "loading"})
    return liveness(serving)


def readiness(serving: Serving) -> ProbeResult:
    if serving.gate.is_draining:
        return ProbeResult(503, {"status": "draining"})
    found = health(serving)
    if found.status != 200:
        return found
    beat = serving.llm.heartbeat
    if beat is not None and beat.is_draft_ready is False:
        return ProbeResult(200, {"status": "degraded", "reason": "the draft is away"})
    return ProbeResult(200, {"status": "ready"})
