"""The page to send: each case in a server of its own, within a budget of minutes, and the self-test on it."""

import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import vllm_page
from benchmarks.flags import parser
from benchmarks.vllm_page import CASES, FLAGS, Point, command_of, main
from ssd.bench.folder import read_lines
from ssd.cli import machine
from ssd.cli.machine import provenance
from tests.test_images import parse

SERVER = """
import json, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
case, port = sys.argv[1], int(sys.argv[sys.argv.index("--port") + 1])
class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"
    def log_message(self, *_): pass
    def say(self, text):
        self.wfile.write(text.encode())
        self.wfile.flush()
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        if self.path == "/metrics":
            drafts = "" if case == "vLLM alone" else "vllm:spec_decode_num_drafts_total{engine=\\"0\\"} "
            self.say("ssd_draft_up 1.0\\n" + (drafts + str(time.monotonic()) + "\\n" if drafts else ""))
        elif self.path == "/v1/models":
            self.say(json.dumps({"data": [{"id": "served"}]}))
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["model"] == "served" and asked["ignore_eos"]
        self.send_response(200)
        self.end_headers()
        try:
            for count in range(1, asked["max_tokens"] + 1):
                time.sleep(0.01)
                piece = {"choices": [{"text": f"{count} "}], "usage": {"completion_tokens": count}}
                self.say("data: " + json.dumps(piece) + "\\n\\n")
            self.say("data: [DONE]\\n\\n")
        except OSError:
            pass
ThreadingHTTPServer(("127.0.0.1", port), Answers).serve_forever()
"""
DOCTOR = """
import json, sys
facts = {"ssd": "9", "packages": [{"name": "torch", "version": "2"}], "machine": {"MPS": "runs"}, "seats": {}}
line = {"part": "kernels", "what": "decide", "verdict": "ok", "found": "8 of 8 equal", "why": "none"}
print(json.dumps({"device": "cuda:0", "lines": [line]} if "--selftest" in sys.argv else facts))
"""


def options(*words: str) -> Namespace:
    return parser(None, FLAGS).parse_args(["m", "--draft", "d", "--run", "r", *words])


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Words of a run whose server and doctor are small programs."""
    (tmp_path / "prompts.jsonl").write_text('{"text": "Once"}\n{"text": "Twice"}\n')
    monkeypatch.setattr(vllm_page, "command_of", lambda _, case: [sys.executable, "-c", SERVER, case, "--"])
    monkeypatch.setattr(vllm_page, "DOCTOR", ("-c", DOCTOR))

    def never(*_: object) -> None:
        pytest.fail("the device is initialised in the process that starts vLLM")

    monkeypatch.setattr("torch.cuda._lazy_init", never)
    monkeypatch.setattr("ssd.selftest.run.SelfTest", never)
    return [
        *("m", "--draft", "d", "--run", str(tmp_path / "run"), "--datasets", str(tmp_path / "prompts.jsonl")),
        *("--num-prompts", "2", "--batches", "1", "2", "--seconds", "0.5", "--max-tokens", "9"),
    ]


def test_cases_are_commands_that_there_are() -> None:
    for case in CASES:
        command = command_of(options("--tensor-parallel-size", "2"), case)
        assert command[1:4] == ["-m", "ssd", "serve"]
        parse(["ssd", *command[3:]])
        assert ("--draft" in command) == (case == "SSD")
        assert ("--speculative-config" in command[command.index("--") :]) == ("own" in case)
    assert "--enforce-eager" in command_of(options("--without-compilation"), "SSD")
    assert parse(["ssd", *vllm_page.DOCTOR[2:], "--selftest", "--model", "m", "--draft", "d"])["selftest"]


def test_every_case_temperature_and_batch_is_on_the_page(stand_ins: list[str], tmp_path: Path) -> None:
    assert main([*stand_ins, "--turns", "1"]) == 0
    page = (tmp_path / "run/page.md").read_text()
    points = read_lines(tmp_path / "run/records.jsonl", Point)
    assert {each.key for each in points} == {
        (0, case, heat, batch) for case in CASES for heat in (0.0, 0.7) for batch in (1, 2)
    }
    for heat, batch in ((0, 1), (0, 2), (0.7, 1), (0.7, 2)):
        part = page.partition(f"## T = {heat}, batch {batch}\n\n")[2].partition("\n\n")[0]
        assert [line.split(" | ")[0] for line in part.splitlines()[2:]] == [f"| {case}" for case in CASES]
    assert all(each.load.tokens for each in points)
    alone = next(each.load for each in points if each.key == (0, "vLLM alone", 0.0, 1))
    assert (alone.tokens_a_verification, alone.texts[0][:2]) == (1.0, "1 ")
    assert "of SSD are those of vLLM alone" in page
    assert "## Left out\n\n- nothing" in page
    assert "| kernels | decide | ok | 8 of 8 equal (none) |" in page
    assert "- MPS: runs" in page


def test_it_ends_in_its_minutes_and_goes_on_later(stand_ins: list[str], tmp_path: Path) -> None:
    words = [*stand_ins, "--turns", "1", "--seconds", "1"]
    records, page = tmp_path / "run/records.jsonl", tmp_path / "run/page.md"
    started = time.monotonic()
    # Enough for no case: 90 s of the minutes are kept for the end.
    assert main([*words, "--minutes", "1.5"]) == 0
    assert time.monotonic() - started < 60
    assert not read_lines(records, Point)
    assert page.read_text().count("no time was left") == 3
    assert main(words) == 0
    assert len(read_lines(records, Point)) == 12
    before = records.read_bytes()
    assert main(words) == 0
    assert records.read_bytes() == before
    with pytest.raises(SystemExit, match="other settings"):
        main([*words, "--max-tokens", "5"])


def test_a_server_that_does_not_start_is_left_out_by_name(
    stand_ins: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_page, "command_of", lambda *_: [sys.executable, "-c", "exit(3)", "--"])
    monkeypatch.setattr(vllm_page, "DOCTOR", ("-c", "exit(4)"))
    assert main([*stand_ins, "--turns", "1", "--no-selftest"]) == 0
    page = (tmp_path / "run/page.md").read_text()
    assert "`ssd doctor`: it ended with code 4." in page
    assert "turn 1 of SSD, in whole or in part: it ended with code 3: see" in page
    assert "not run." in page
    # What failed is asked again when the run goes on.
    monkeypatch.setattr(vllm_page, "DOCTOR", ("-c", DOCTOR))
    assert main([*stand_ins, "--turns", "1", "--no-selftest"]) == 0
    assert "- MPS: runs" in (tmp_path / "run/page.md").read_text()


def test_an_hour_is_enough_for_the_defaults() -> None:
    """Where a server starts within five minutes: it compiles at the first."""
    asked = options()
    figures = asked.turns * len(CASES) * len(asked.temperatures) * len(asked.batches)
    seconds = figures * 1.5 * asked.seconds + asked.turns * len(CASES) * 300
    assert asked.minutes == 60
    assert seconds + 90 + 60 < 60 * asked.minutes
    assert (asked.batches, asked.temperatures) == ([1, 8, 32], [0.0, 0.7])


def test_what_hardware_there_is_is_asked_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where GPUs are counted: names of theirs are a line of every record."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda._lazy_init", lambda: pytest.fail("the device is initialised here"))
    monkeypatch.setattr(machine, "_NAME_GPUS", "print('NVIDIA Something')")
    assert provenance().hardware["GPUs"] == "NVIDIA Something"
