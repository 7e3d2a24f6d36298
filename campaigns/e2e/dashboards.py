"""Figures of a real pool for the pictures of the dashboards: two servers, two drafts, one of which is killed.

    python -m campaigns.e2e.dashboards --model SMOLLM2 --record docs/records/dashboards.jsonl

Runs Prometheus (`--prometheus`, as Debian's package has it) with the rules of deploy/kubernetes/rules.yaml,
sends requests, kills a draft in the middle and starts it again, and asks Prometheus for every panel of both
dashboards as Grafana would. `python -m benchmarks.pictures` draws the record.
"""

import argparse
import contextlib
import itertools
import json
import math
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from campaigns.record import ROOT, where_and_when
from ssd.draft.protocol.sockets import make_keys, make_tenant_keys
from tests.server.process import ServerProcess, free_port, serving, until

TENANTS = ("alice", "bob")
DASHBOARDS = ("grafana.json", "grafana-pool.json")
RATE_WINDOW, STEP = "20s", 4
PROMPTS = (
    "def fibonacci(n):\n",
    "The capital of France is",
    "Write a short story about a rat that ate the malt.",
    "import json\n\ndef read_config(path):\n",
    "Explain why the sky is blue, to a child.",
)


class Drafts:
    def __init__(self, folder: Path, model: Path, *flags: str) -> None:
        self._command = [sys.executable, "-m", "ssd", "draft", "--model", str(model), *flags]
        self._keys = folder / "keys"
        make_keys(self._keys)
        for tenant in TENANTS:
            make_tenant_keys(self._keys, tenant)
        self._at = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self.addresses = ",".join(self._at)

    def keys_of(self, tenant: str) -> str:
        return str(self._keys / tenant)

    def start(self, number: int) -> None:
        command = [*self._command, "--listen", self._at[number], "--keys", str(self._keys / "draft")]
        self._running[number] = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def end(self, number: int, how: int) -> None:
        self._running[number].send_signal(how)
        self._running[number].wait(60)

    def close(self) -> None:
        for number in self._running:
            self.end(number, signal.SIGKILL)


@contextlib.contextmanager
def watching(folder: Path, program: str, servers: Mapping[str, ServerProcess]) -> Iterator[str]:
    """Prometheus, with our rules, at the address that is given."""
    [rules] = yaml.safe_load_all((ROOT / "deploy/kubernetes/rules.yaml").read_text())
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": rules["spec"]["groups"]}))
    targets = [
        {"targets": [each.url.removeprefix("http://")], "labels": {"pod": name}}
        for name, each in servers.items()
    ]
    config = {
        "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "ssd", "static_configs": targets}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    flags = [f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
    process = subprocess.Popen(
        [program, *flags, f"--web.listen-address={address}"],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(30)


def is_up(address: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{address}/-/ready").status_code == 200
    return False


def ask(server: ServerProcess, until_when: float, tokens: int, first: int) -> None:
    """One user after the other, until it is time."""
    prompts = itertools.cycle(PROMPTS[first:] + PROMPTS[:first])
    with httpx.Client(timeout=120) as client:
        while time.monotonic() < until_when:
            body = {"prompt": next(prompts), "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
            client.post(f"{server.url}/v1/completions", json=body)


def panels(address: str, start: float, end: float) -> Iterator[dict[str, Any]]:
    """What each panel of each dashboard would show; times count from `start`."""
    for file in DASHBOARDS:
        for panel in json.loads((ROOT / "deploy" / file).read_text())["panels"]:
            queries = [each["expr"] for each in panel["targets"]]
            series = [found for each in panel["targets"] for found in query(address, each, start, end)]
            unit = panel["fieldConfig"]["defaults"].get("unit", "none")
            yield {
                "dashboard": file,
                "panel": panel["title"],
                "unit": unit,
                "queries": queries,
                "series": series,
            }


def query(address: str, target: Mapping[str, str], start: float, end: float) -> Iterator[dict[str, Any]]:
    expression = target["expr"].replace("$__rate_interval", RATE_WINDOW)
    asked: dict[str, str | float] = {"query": expression, "start": start, "end": end, "step": STEP}
    answer = httpx.get(f"{address}/api/v1/query_range", params=asked).raise_for_status().json()
    for found in answer["data"]["result"]:
        name = target.get("legendFormat", "")
        for label, value in found["metric"].items():
            name = name.replace(f"{{{{{label}}}}}", value)
        points = [(round(at - start), float(value)) for at, value in found["values"]]
        kept = [(at, float(f"{value:.4g}")) for at, value in points if math.isfinite(value)]
        yield {"name": name.strip(), "points": kept}


def run(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    model = Path(options.model)
    drafts = Drafts(folder, model, "--precision", "int8", "--cores", "1")
    engine: dict[str, Any] = {
        "max_num_seqs": 8,
        "max_model_len": 512,
        "kv_cache_bytes": 200 << 20,
        "cores": (0,),
    }
    with contextlib.ExitStack() as stack:
        stack.callback(drafts.close)
        for number in range(2):
            drafts.start(number)
        servers = {}
        for tenant in TENANTS:
            draft = {"model": drafts.addresses, "keys": drafts.keys_of(tenant), "timeout": 60}
            log = folder / f"{tenant}.log"
            servers[tenant] = stack.enter_context(serving(model, log, mode="ssd", draft=draft, **engine))
        address = stack.enter_context(watching(folder, options.prometheus, servers))
        until(lambda: is_up(address), what="Prometheus")
        start, ends = time.time(), time.monotonic() + options.seconds
        users = [
            threading.Thread(target=ask, args=(server, ends, options.tokens, number))
            for server in servers.values()
            for number in range(options.users)
        ]
        for user in users:
            user.start()
        time.sleep(options.seconds * 0.5)
        drafts.end(1, signal.SIGKILL)
        events = {"a draft is killed": round(time.time() - start)}
        time.sleep(options.seconds * 0.2)
        drafts.start(1)
        events["and started again"] = round(time.time() - start)
        for user in users:
            user.join()
        return [{**each, "events": events} for each in panels(address, start, time.time())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True, help="target and draft; the draft is rounded to int8")
    parser.add_argument("--record", required=True, type=Path)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--users", type=int, default=2, help="of each of two servers")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--prometheus", default="prometheus")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(options, Path(folder))
    at = where_and_when()
    options.record.write_text("".join(json.dumps({**each, "at": at}) + "\n" for each in found))


if __name__ == "__main__":
    main()
