"""Behaviour under load, faults and signals: real processes, real sockets."""

import http.client
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from ssd.config.server import ServerConfig
from tests.alive import is_alive
from tests.server.process import ServerProcess, serving, until

LONG: dict[str, Any] = {"prompt": "The quick", "temperature": 0, "max_tokens": 480, "ignore_eos": True}


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_blocks(server: ServerProcess, stream: bool) -> None:
    server.until_idle()
    before = server.metric("ssd_request_cancelled_total")
    with httpx.Client(base_url=server.url, timeout=60) as client:
        request = client.build_request("POST", "/v1/completions", json={**LONG, "stream": stream, "n": 2})
        if stream:
            response = client.send(request, stream=True)
            next(response.iter_lines())
            response.close()
        else:
            client.timeout = httpx.Timeout(0.3)
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/completions", json={**LONG, "n": 2})
    until(lambda: server.metric("ssd_request_cancelled_total") == before + 1)
    server.until_idle()
    until(lambda: any(line.get("disconnected") and line["stream"] is stream for line in server.log))
    (line,) = [line for line in server.log if line.get("disconnected") and line["stream"] is stream]
    assert line["status"] == (200 if stream else 499)
    # What was written for it was written, though it did not come to its end.
    assert line["prompt_tokens"] > 0
    assert (line["completion_tokens"] > 0) is stream


def test_a_slow_reader_gets_everything(server: ServerProcess) -> None:
    body = {**LONG, "stream": True, "logprobs": 5, "n": 2}
    whole = server.http.post("/v1/completions", json={**LONG, "n": 2}).json()["choices"]
    texts = ["", ""]
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        first = next(lines)
        server.until_idle()  # The engine does not wait for whoever reads.
        for line in [first, *lines]:
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole]


def test_request_ids_are_honoured_and_logged(server: ServerProcess) -> None:
    mine = server.http.post(
        "/v1/completions", json={"prompt": "Hi", "max_tokens": 3}, headers={"X-Request-Id": "mine-7"}
    )
    assert mine.headers["x-request-id"] == "mine-7"
    assert mine.json()["id"] == "cmpl-mine-7"
    odd = server.http.get("/version", headers={"X-Request-Id": "no spaces allowed"})
    assert len(odd.headers["x-request-id"]) == 32
    until(lambda: any(line.get("request_id") == "mine-7" for line in server.log))
    (line,) = [line for line in server.log if line.get("request_id") == "mine-7"]
    assert line["status"] == 200
    assert line["path"] == "/v1/completions"
    assert line["completion_tokens"] == 3


def test_the_same_request_id_twice_at_once(server: ServerProcess) -> None:
    """An id is the client's affair: two may share one, and both are answered."""

    def post(_number: int) -> int:
        headers = {"X-Request-Id": "twice"}
        body = {**LONG, "max_tokens": 100}
        return httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=60).status_code

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(post, range(2))) == [200, 200]


@pytest.fixture(scope="module")
def one_at_a_time(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its last test ends it."""
    settings = {
        "max_queue": 2,
        "drain_seconds": 600.0,
        "keep_alive_seconds": 0.1,
        "served_model_name": "tiny",
    }
    log = tmp_path_factory.mktemp("one-at-a-time") / "log"
    with serving(tiny_llama, log, settings, max_num_seqs=1) as server:
        yield server


def test_a_full_queue_is_answered_with_429(one_at_a_time: ServerProcess) -> None:
    server = one_at_a_time
    with ThreadPoolExecutor(6) as pool:
        answers = list(
            pool.map(lambda _: httpx.post(f"{server.url}/v1/completions", json=LONG, timeout=60), range(6))
        )
    codes = sorted(answer.status_code for answer in answers)
    assert codes == [200, 200, 200, 429, 429, 429]
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert server.http.post("/v1/completions", json={**LONG, "max_tokens": 2}).status_code == 200


def test_the_queue_is_looked_at_before_the_request(one_at_a_time: ServerProcess) -> None:
    """A full server does no work for what it does not take."""
    with ExitStack() as running:
        for _ in range(3):
            sent = one_at_a_time.http.stream("POST", "/v1/completions", json={**LONG, "stream": True})
            assert running.enter_context(sent).status_code == 200
        wrong = {"prompt": "x", "temperature": -1}
        answer = httpx.post(f"{one_at_a_time.url}/v1/completions", json=wrong, timeout=60)
        assert answer.status_code == 429
    one_at_a_time.until_idle()


def test_a_silent_stream_shows_that_it_lives(one_at_a_time: ServerProcess) -> None:
    """Comments keep proxies from closing a stream that waits for its turn."""
    server, messages = one_at_a_time, [{"role": "user", "content": "The quick"}]
    running = threading.Thread(
        target=lambda: httpx.post(f"{server.url}/v1/completions", json=LONG, timeout=60)
    )
    running.start()
    until(lambda: server.num_at_work > 0)
    chat: dict[str, Any] = {"messages": messages, "max_tokens": 4, "seed": 1}
    with server.http.stream("POST", "/v1/chat/completions", json={**chat, "stream": True}) as answer:
        assert answer.headers["X-Accel-Buffering"] == "no"
        lines = answer.iter_lines()
        assert next(lines).startswith(":")
        assert "[DONE]" in "".join(lines)
    typed: Any = messages
    with server.openai.chat.completions.stream(model="tiny", messages=typed, max_tokens=3) as stream:
        stream.until_done()
    running.join()
    server.until_idle()


def test_running_requests_finish_when_the_server_is_told_to_end(one_at_a_time: ServerProcess) -> None:
    server = one_at_a_time
    engine = server.children
    kept: list[httpx.Response] = []
    bodies = [{**LONG, "n": 1}, {**LONG, "n": 1, "stream": True}]
    threads = [
        threading.Thread(
            target=lambda body=body: kept.append(
                httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
            )
        )
        for body in bodies
    ]
    for thread in threads:
        thread.start()
    until(lambda: server.num_at_work == 2)
    server.process.send_signal(signal.SIGTERM)
    until(lambda: server.http.get("/ready").json() == {"status": "draining"})
    assert server.http.get("/ready").status_code == 503
    late = server.http.post("/v1/completions", json=LONG)
    assert late.status_code == 503
    assert late.json()["error"]["code"] == "draining"
    # When they are done, not when nobody would wait any longer.
    assert server.process.wait(60) == 0
    for thread in threads:
        thread.join()
    assert [answer.status_code for answer in kept] == [200, 200]
    whole = next(each for each in kept if each.headers["content-type"] == "application/json")
    assert whole.json()["usage"]["completion_tokens"] == 480
    # Lines that begin with a colon only show that the stream lives.
    assert next(each for each in kept if each is not whole).text.endswith("data: [DONE]\n\n")
    until(lambda: not any(map(is_alive, engine)))


def test_only_this_machines_names_are_answered_without_a_key(server: ServerProcess) -> None:
    """What a site would send whose name points here."""
    for name, status in (
        ("evil.example", 403),
        ("localhost.evil.example:80", 403),
        ("192.168.1.4", 403),
        ("localhost:1234", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
    ):
        answer = httpx.get(f"{server.url}/v1/models", headers={"Host": name})
        assert answer.status_code == status, name
    assert "--api-key" in httpx.get(server.url, headers={"Host": "evil.example"}).json()["error"]["message"]


def test_pages_load_nothing_from_elsewhere(server: ServerProcess) -> None:
    page = server.http.get("/")
    assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    for path in ("/docs", "/openapi.json"):
        assert server.http.get(path).status_code == 404


def test_nobody_learns_which_prompts_others_have_sent(guarded: ServerProcess) -> None:
    body = {"prompt": [5 + place % 90 for place in range(80)], "max_tokens": 1}

    def cached(key: str, **more: Any) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        answer = httpx.post(f"{guarded.url}/v1/completions", json={**body, **more}, headers=headers)
        assert answer.status_code == 200, answer.text
        found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    assert cached("first-key") == 0
    assert cached("first-key") > 0
    assert cached("second-key") == 0
    assert cached("second-key") > 0
    assert cached("first-key", cache_salt="mine") == 0
    assert cached("first-key", cache_salt="mine") > 0


def test_without_keys_all_who_give_no_salt_share_prompts(server: ServerProcess) -> None:
    body = {"prompt": [7 + place % 50 for place in range(80)], "max_tokens": 1}
    usages = [server.http.post("/v1/completions", json=body).json()["usage"] for _ in range(2)]
    first, second = (each["prompt_tokens_details"]["cached_tokens"] for each in usages)
    assert first == 0
    assert second > 0


def test_keys_guard_every_route_but_three(guarded: ServerProcess) -> None:
    for path in ("/health", "/livez", "/ready"):
        # Whoever has a key may come by any name: through a proxy, say.
        assert httpx.get(guarded.url + path, headers={"Host": "models.example"}).status_code == 200
    for path in ("/metrics", "/v1/models", "/version", "/", "/docs", "/nothing"):
        for headers in ({}, {"Authorization": "Bearer first-ke"}, {"Authorization": "Basic first-key"}):
            answer = httpx.get(guarded.url + path, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
    assert httpx.post(f"{guarded.url}/v1/completions", json=LONG).status_code == 401
    for key in ("first-key", "second-key"):
        headers = {"Authorization": f"Bearer {key}"}
        assert httpx.get(f"{guarded.url}/v1/models", headers=headers).status_code == 200
    asked = httpx.get(guarded.url).headers["www-authenticate"]
    assert asked.startswith("Basic")  # a browser then asks its user
    assert httpx.get(guarded.url, auth=("anyone", "second-key")).status_code == 200
    assert httpx.get(guarded.url, auth=("first-key", "wrong")).status_code == 401
    elsewhere = {"Sec-Fetch-Site": "cross-site"}
    assert httpx.get(guarded.url, auth=("", "second-key"), headers=elsewhere).status_code == 401
    body = {"model": "tiny", "prompt": "Hi", "max_tokens": 2}
    assert guarded.openai.completions.create(**body).choices  # type: ignore[call-overload]


def test_a_stopped_engine_is_unhealthy_until_it_goes_on(tiny_llama: Path, tmp_path: Path) -> None:
    settings = {"stuck_seconds": 3.0, "drain_seconds": 60.0, "max_n": 64}
    with serving(tiny_llama, tmp_path / "log", settings, max_num_seqs=2) as server:
        engine = server.children
        os.kill(engine[0], signal.SIGSTOP)
        until(lambda: not is_healthy(server))
        alive = server.http.get("/livez")
        assert (alive.status_code, alive.json()["status"]) == (503, "stuck")
        assert 3 <= alive.json()["seconds_without_progress"] < ServerConfig().stuck_seconds
        assert server.http.get("/ready").status_code == 503
        os.kill(engine[0], signal.SIGCONT)
        until(lambda: is_healthy(server))
        # A second signal ends a server at once, even if its engine has stopped, and leaves nothing behind.
        request = {**LONG, "n": 64, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=request, timeout=60):
            until(lambda: server.num_at_work > 0)
            server.process.send_signal(signal.SIGINT)
            until(lambda: server.http.get("/ready").json() == {"status": "draining"})
            os.kill(engine[0], signal.SIGSTOP)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(30) == 0
        until(lambda: not any(map(is_alive, engine)))


@pytest.fixture(scope="module")
def with_draft(
    tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, Path]]:
    """A server, and the folder of its draft. Whoever ends the draft waits until another is there."""
    folder = tmp_path_factory.mktemp("with-draft")
    model = folder / "draft"
    shutil.copytree(tiny_llama, model)
    engine: Any = {"mode": "ssd", "draft": str(model), "max_num_seqs": 4}
    with serving(tiny_llama, folder / "log", {"max_n": 64}, **engine) as server:
        yield server, model


def draft_of(server: ServerProcess) -> int:
    """Its process: one that was started anew is not where the first was."""
    commands = {
        pid: subprocess.run(
            ["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        for pid in server.children
    }
    (found,) = [pid for pid, ran in commands.items() if " draft " in ran.stdout]
    return found


def until_drafted(server: ServerProcess) -> None:
    until(lambda: server.http.get("/ready").json()["status"] == "ready", seconds=60)


def test_a_draft_complains_in_json_too(with_draft: tuple[ServerProcess, Path], tmp_path: Path) -> None:
    server, model = with_draft
    until_drafted(server)
    before = len(server.log)
    model.rename(tmp_path / "elsewhere")
    try:
        os.kill(draft_of(server), signal.SIGKILL)
        until(lambda: any(line["process"] == "draft" for line in server.log[before:]), seconds=60)
    finally:
        (tmp_path / "elsewhere").rename(model)
    (complaint, *_) = [line for line in server.log[before:] if line["process"] == "draft"]
    assert complaint["level"] == "error"
    assert str(model) in complaint["message"]
    until_drafted(server)


def test_a_lost_draft_degrades_and_comes_back(with_draft: tuple[ServerProcess, Path]) -> None:
    server, _ = with_draft
    until_drafted(server)
    losses, connects = map(server.metric, ("ssd_draft_losses_total", "ssd_draft_connects_total"))
    before = server.http.post("/v1/completions", json=LONG).json()["choices"]
    os.kill(draft_of(server), signal.SIGKILL)
    until(lambda: server.http.get("/ready").json()["status"] == "degraded")
    assert server.http.get("/ready").status_code == 200
    assert server.http.post("/v1/completions", json=LONG).json()["choices"] == before
    until_drafted(server)
    assert server.metric("ssd_draft_losses_total") == losses + 1
    assert server.metric("ssd_draft_connects_total") == connects + 1


def test_a_client_that_leaves_frees_the_draft_too(with_draft: tuple[ServerProcess, Path]) -> None:
    server, _ = with_draft
    until_drafted(server)
    body = {**LONG, "n": 64, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60):
        until(lambda: server.metric("ssd_draft_num_sequences") > 0)
        assert server.metric("ssd_draft_kv_usage_perc") > 0
    until(lambda: server.metric("ssd_draft_num_sequences") == 0)
    until(lambda: server.metric("ssd_draft_kv_usage_perc") == 0)


def test_a_killed_engine_takes_the_server_with_it(with_draft: tuple[ServerProcess, Path]) -> None:
    """The last test of this server."""
    server, _ = with_draft
    until_drafted(server)
    pids = server.children
    # The engine, its draft, and what tries grammars and renders templates: each with two forks.
    assert len(pids) == 2 + 2 * 3
    answers: list[httpx.Response] = []
    thread = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{server.url}/v1/completions", json=LONG, timeout=60))
    )
    thread.start()
    until(lambda: server.num_at_work > 0)
    os.kill(pids[0], signal.SIGKILL)
    until(lambda: not is_healthy(server))
    assert server.process.wait(60) == 1
    thread.join()
    assert answers[0].status_code == 503
    assert answers[0].json()["error"]["code"] == "engine_dead"
    until(lambda: not any(map(is_alive, pids)))


def test_an_idle_line_outlives_its_client(server: ServerProcess) -> None:
    """Clients keep one for five seconds; ended by both at once, it would take a request along."""
    address = urlsplit(server.url)
    with closing(http.client.HTTPConnection(address.netloc, timeout=20)) as line:
        line.connect()
        first = line.sock
        for pause in (6.0, 0.0):
            line.request("GET", "/version")
            assert line.getresponse().read().startswith(b'{"version"')
            assert line.sock is first
            time.sleep(pause)


def test_a_server_says_that_it_loads_and_cuts_off_what_takes_too_long_at_its_end(
    tiny_llama: Path, tmp_path: Path
) -> None:
    settings = {"drain_seconds": 1.0, "max_n": 64}
    with serving(tiny_llama, tmp_path / "log", settings, wait=False, max_num_seqs=2) as server:
        seen, healths, answers = set[str](), set[tuple[int, str]](), set[tuple[int, str]]()

        def is_up() -> bool:
            try:
                seen.add(server.http.get("/ready").json()["status"])
                if "loading" in seen and "ready" not in seen:
                    assert server.http.get("/livez").status_code == 200
                    health = server.http.get("/health")
                    healths.add((health.status_code, health.json()["status"]))
                    first = server.http.post("/v1/completions", json={**LONG, "max_tokens": 1})
                    answers.add((first.status_code, first.json().get("error", {}).get("code", "")))
            except httpx.TransportError:
                return False
            return "ready" in seen

        until(is_up, seconds=60)
        assert seen == {"loading", "ready"}
        # It may have become ready between two questions.
        assert (503, "loading") in healths <= {(503, "loading"), (200, "ok")}
        assert (503, "loading") in answers <= {(503, "loading"), (200, "")}
        assert server.http.get("/health").status_code == 200
        sent = {"json": {**LONG, "n": 64}, "timeout": 60}
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(httpx.post, f"{server.url}/v1/completions", **sent)  # type: ignore[arg-type]
            until(lambda: server.num_at_work > 0)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(60) == 0
            assert answer.result().status_code == 503


def test_a_port_that_is_taken_is_a_sentence_and_an_exit_code(
    server: ServerProcess, tiny_llama: Path, tmp_path: Path
) -> None:
    port = int(server.url.rpartition(":")[2])
    with serving(tiny_llama, tmp_path / "log", {"port": port}, wait=False) as second:
        assert second.process.wait(60) != 0
        assert "choose another host or port" in (tmp_path / "log").read_text()


def is_healthy(server: ServerProcess) -> bool:
    try:
        return server.http.get("/health").status_code == 200
    except httpx.TransportError:
        return False
