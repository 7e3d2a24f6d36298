"""Metrics, as those who collect them see them."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from ssd.config.server import ServerConfig
from ssd.draft.client.replica import PoolStats
from ssd.engine.outputs import EngineStats, SpeculationStats
from ssd.server.app import build_app
from ssd.server.gate import Gate
from ssd.server.metrics import EngineFigures, Metrics
from ssd.server.serving import Serving
from ssd.worker.messages import Heartbeat
from tests.server.process import ServerProcess, until

BODY: dict[str, Any] = {"prompt": "The quick", "temperature": 0, "max_tokens": 40, "ignore_eos": True}


def test_requests_are_counted_and_timed(server: ServerProcess) -> None:
    server.until_idle()
    names = [
        "ssd_generation_tokens_total",
        "ssd_prompt_tokens_total",
        "ssd_time_to_first_token_seconds_count",
        "ssd_time_per_output_token_seconds_count",
        "ssd_e2e_request_latency_seconds_count",
        'ssd_request_success_total{finished_reason="length"}',
    ]
    assert server.http.post("/v1/completions", json=BODY).is_success
    before = {name: server.metric(name) for name in names}
    answer = server.http.post("/v1/completions", json={**BODY, "n": 2}).json()
    grown = {name: server.metric(name) - before[name] for name in names}
    usage = answer["usage"]
    assert list(grown.values()) == [80, usage["prompt_tokens"], 1, 1, 1, 2]
    assert server.metric('ssd_http_requests_total{path="/v1/completions",status="200"}') >= 2


@pytest.mark.parametrize("is_resting", [False, True])
def test_resting_drafts_and_uncaptured_steps_are_told(is_resting: bool) -> None:
    pool = PoolStats(is_resting=is_resting)
    stats = EngineStats(SpeculationStats(), 9, 0.0, 0.0, 0.0, pool, num_uncaptured=4)
    beat = Heartbeat(0.0, 0, 0, 0.0, is_draft_ready=True, stats=stats)
    client: Any = SimpleNamespace(seconds_without_progress=0.0, heartbeat=beat)
    found = {each.name: each.samples[0].value for each in EngineFigures(client).collect() if each.samples}
    assert found["ssd_draft_resting"] == is_resting
    assert (found["ssd_engine_steps"], found["ssd_engine_uncaptured_steps"]) == (9, 4)


def test_paths_that_do_not_exist_share_a_label() -> None:
    metrics = Metrics()
    for path in ("/wp-login.php", "/.env", "/v1/models"):
        metrics.note_http(path, 404)
    page = metrics.page().decode()
    assert 'ssd_http_requests_total{path="other",status="404"} 2.0' in page
    assert 'ssd_http_requests_total{path="/v1/models",status="404"} 1.0' in page
    assert "wp-login" not in page


def test_times_are_the_engines_own(server: ServerProcess) -> None:
    """To the microsecond those the answer tells: not those at which somebody got round to reading it."""
    server.until_idle()
    names = {
        "first_token": "ssd_time_to_first_token_seconds_sum",
        "total": "ssd_e2e_request_latency_seconds_sum",
        "queued": "ssd_request_queue_time_seconds_sum",
    }
    before = {name: server.metric(line) for name, line in names.items()}
    told = server.http.post("/v1/completions", json=BODY).json()["usage"]["speculation"]["timings"]
    for name, line in names.items():
        assert server.metric(line) - before[name] == pytest.approx(told[name], abs=1e-6)


def test_speculation_is_counted_as_the_answer_tells_it(reciter: ServerProcess) -> None:
    def figures() -> dict[str, float]:
        names = ("drafts", "draft_tokens", "accepted_tokens")
        found = {name: reciter.metric(f"ssd_spec_decode_num_{name}_total") for name in names}
        found["rounds"] = reciter.metric("ssd_rounds_total")
        length = "ssd_drafted_tokens_per_round"
        found["undrafted"] = reciter.metric(f'{length}_bucket{{le="0.0"}}')
        found["lengths"], found["sum"] = (reciter.metric(f"{length}_{name}") for name in ("count", "sum"))
        places = range(4)
        for place in places:
            label = f'ssd_spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}}'
            try:
                found[str(place)] = reciter.metric(label)
            except KeyError:
                found[str(place)] = 0
        return found

    reciter.until_idle()
    before = figures()
    told = reciter.http.post("/v1/completions", json=BODY).json()["usage"]["speculation"]
    until(lambda: figures()["rounds"] - before["rounds"] == told["rounds"])
    grown = {name: value - before[name] for name, value in figures().items()}
    assert told["accepted"] > 0
    assert told["accepted"] + told["rounds"] == 40
    assert told["accepted_per_round"] == pytest.approx(told["accepted"] / told["rounds"])
    # The first token, at least, is decided without a draft.
    assert 0 < grown["drafts"] == told["rounds"] - grown["undrafted"] < told["rounds"]
    assert (grown["lengths"], grown["sum"]) == (told["rounds"], told["drafted"])
    assert grown["draft_tokens"] == told["drafted"]
    assert grown["accepted_tokens"] == told["accepted"]
    assert sum(grown[str(place)] for place in range(4)) == told["accepted"]
    assert grown["0"] >= grown["1"] >= grown["2"] >= grown["3"]
    for name in ("verify_seconds", "host_seconds", "engine_steps"):
        assert reciter.metric(f"ssd_{name}_total") > 0


def test_speculation_can_be_turned_off_for_a_request(reciter: ServerProcess) -> None:
    usual, plain = [
        reciter.http.post("/v1/completions", json={**BODY, "speculation": each}).json()
        for each in (True, False)
    ]
    assert usual["choices"] == plain["choices"]
    assert plain["usage"]["speculation"]["drafted"] == 0
    assert plain["usage"]["speculation"]["rounds"] == 40
    assert usual["usage"]["speculation"]["rounds"] < 40


async def test_a_dead_engine_is_neither_alive_nor_healthy_nor_ready() -> None:
    engine: Any = SimpleNamespace(
        state="dead", seconds_without_progress=float("inf"), config=SimpleNamespace(max_num_seqs=1)
    )
    config = ServerConfig(served_model_name="none")
    app = build_app(Serving(engine, config, Metrics(), Gate(engine, max_queue=1)))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for path in ("/livez", "/health", "/ready"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()) == (503, {"status": "dead"})
