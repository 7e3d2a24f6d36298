"""Runs among peers. Workers are real processes; in most tests a few lines of Python play the engine."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.peers.plans import Places, plan_workers
from benchmarks.peers.process import Worker, WorkerPlan
from benchmarks.peers.records import PeerRecord, PeersFolder, PeersManifest, PeersSettings
from benchmarks.peers.registry import endpoint
from benchmarks.peers.run import PeersRun, Watcher
from ssd.bench.manifest import Provenance
from ssd.version import DISTRIBUTION
from tests.server.process import serving

COUNTING = """
def load(job):
    def generate(case, prompt, max_tokens, note):
        for token in range(max_tokens):
            note([token])
        return {}
    return generate
"""
NOT_LOADING = """
def load(job):
    raise ValueError("no such model")
"""
FAILING = """
def load(job):
    def generate(case, prompt, max_tokens, note):
        raise ValueError("it cannot")
    return generate
"""
TEXTS = """
def load(job):
    def generate(case, prompt, max_tokens, note):
        note([-1])
        return {{
            "text": "abcdefgh", "first_text": "abc", "tokens": None,
            "num_tokens": {usage}, "seconds_later": 3.0,
        }}
    return generate
"""
PROMPTS = {"code": [[5, 6, 7], [40, 41, 42, 43]]}


def settings(model: Path, draft: str, **more: object) -> PeersSettings:
    said: dict[str, object] = {
        "model": str(model), "draft": draft, "dtype": "float32", "peers": ["transformers"],
        "ssd_cases": ["ar", "ssd"], "peer_cases": ["plain", "draft3"], "target_cores": [0], "draft_cores": [],
        "datasets": ["code"], "num_prompts": 2, "first_prompt": 0, "max_tokens": 12, "prompts": {},
    }  # fmt: skip
    return PeersSettings(**{**said, **more})  # type: ignore[arg-type]


def plans(said: PeersSettings, **more: object) -> dict[str, WorkerPlan]:
    pythons = {"ssd": Path(sys.executable), "transformers": Path(sys.executable)}
    places = Places(pythons=pythons, **more)  # type: ignore[arg-type]
    found, absent = plan_workers(said, places, 64)
    assert absent == {}
    return {plan.name: plan for plan in found}


class Played:
    """A run in a folder, whose engines are played."""

    def __init__(self, folder: Path, **more: object) -> None:
        self._place, self.folder = folder, PeersFolder(folder / "run")
        self.settings = settings(folder, str(folder), **more)
        self.manifest = self.folder.begin(PeersManifest(settings=self.settings, sessions=[], engines={}))
        self.notes: list[str] = []

    def plan(self, name: str, program: str = COUNTING, cases: Sequence[str] = ("plain",)) -> WorkerPlan:
        file = self._place / f"worker_{name}.py"
        file.write_text(program)
        job = {"cores": [], "packages": ["torch"]}
        peer = dataclasses.replace(endpoint(name), worker=str(file))
        return WorkerPlan(peer=peer, cases=cases, python=Path(sys.executable), job=job, num_bytes=0)

    def go_on(
        self, *wave: WorkerPlan, on_text: Callable[[PeerRecord], None] = lambda _text: None
    ) -> list[PeerRecord]:
        """What is new."""
        before = len(self.folder.records())
        run = PeersRun(self.folder, self.manifest, [wave], PROMPTS, lambda text: [ord(c) for c in text])
        run.go_on(Watcher(on_text=on_text, on_note=self.notes.append))
        return self.folder.records()[before:]


def test_real_engines_write_the_same(tiny_llama: Path, tiny_draft: str, tmp_path: Path) -> None:
    said, folder = settings(tiny_llama, tiny_draft), PeersFolder(tmp_path / "run")
    manifest = folder.begin(PeersManifest(settings=said, sessions=[], engines={}))
    notes: list[str] = []
    run = PeersRun(folder, manifest, [list(plans(said).values())], PROMPTS, lambda _text: [])
    run.go_on(Watcher(on_text=lambda _text: None, on_note=notes.append))
    for place in range(2):
        texts = {tuple(each.tokens) for each in folder.records() if each.prompt == place}
        assert len(texts) == 1, "everyone is greedy with the same weights in float32"
    # The other one is stopped while it waits.
    assert set(folder.manifest().idle) == {"ssd"}
    assert folder.manifest().versions["ssd"][DISTRIBUTION] == version(DISTRIBUTION)
    assert [note for note in notes if "left out" in note] == []


def test_a_run_takes_turns_and_goes_on(tmp_path: Path) -> None:
    run = Played(tmp_path)
    wave = (run.plan("ssd", cases=["ar", "ssd"]), run.plan("other", cases=["plain", "draft3"]))

    def stop_after_three(_text: PeerRecord) -> None:
        if len(run.folder.records()) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.go_on(*wave, on_text=stop_after_three)
    run.go_on(*wave)
    found = run.folder.records()
    whole = PeersRun(run.folder, run.manifest, [wave], PROMPTS, lambda _text: [])
    # The prompt at which it ended is measured whole again: nobody is paired with an earlier hour.
    assert (len(found), whole.num_texts, whole.num_done, whole.is_complete) == (3 + 8, 8, 8, True)
    engines = [("ssd", "ar"), ("ssd", "ssd"), ("other", "plain"), ("other", "draft3")]
    order = [engines[place] for place in (*(0, 1, 3), *(0, 1, 3, 2), *(1, 2, 0, 3))]
    assert [(each.peer, each.case) for each in found] == order
    assert [each.sitting for each in found] == [0] * 3 + [1] * 8


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (NOT_LOADING, "ValueError: no such model; see "),
        (FAILING, "it cannot"),
        # Eight tokens where everyone writes twelve: a server that does not heed ignore_eos.
        (TEXTS.format(usage=8), "ended after 8 of 12 tokens"),
    ],
    ids=["loading", "warming up", "ending early"],
)
def test_a_peer_that_fails_is_ended_and_left_out_and_the_others_go_on(
    program: str, why: str, tmp_path: Path
) -> None:
    run = Played(tmp_path)
    failing = run.plan("failing", program)
    alive: list[bool] = []

    def on_text(_text: PeerRecord) -> None:
        commands = [_command(each) for each in Path("/proc").glob("[0-9]*/cmdline")]
        alive.append(any(str(failing.peer.worker_file) in command for command in commands))
        assert any("worker_ssd.py" in command for command in commands)

    found = run.go_on(run.plan("ssd"), failing, on_text=on_text)
    assert [each.peer for each in found] == ["ssd", "ssd"]
    assert not alive[-1]
    assert why in run.folder.manifest().absent["failing"]
    assert "failing is left out: " in " ".join(run.notes)


def _command(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""  # It ended meanwhile.


def test_who_failed_is_measured_later_beside_everyone(tmp_path: Path) -> None:
    run = Played(tmp_path)
    ours, there = run.plan("ssd", cases=["ar"]), run.plan("other")
    for peer, case, prompt in (("ssd", "ar", 0), ("other", "plain", 0), ("ssd", "ar", 1)):
        made = PeerRecord(
            wave=0, sitting=0, dataset="code", prompt=prompt, peer=peer, case=case, tokens=[1, 2],
            first_token=1.0, seconds_per_token=1.0,
        )  # fmt: skip
        run.folder.add(made)
    gone = dataclasses.replace(there, python=tmp_path / "nowhere")
    assert run.go_on(ours, gone) == [], "of those who are there, nobody has anything left to do"
    # The first prompt is whole. Of the second only one text is missing: both are measured again.
    found = [(each.sitting, each.prompt, each.peer) for each in run.go_on(ours, there)]
    assert found == [(1, 1, "other"), (1, 1, "ssd")]
    assert run.go_on(ours, there) == []


def test_another_version_is_refused(tmp_path: Path) -> None:
    run = Played(tmp_path)
    ours, other = run.plan("ssd"), run.plan("other")

    def stop_after_one_prompt(text: PeerRecord) -> None:
        if len(run.folder.records()) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.go_on(ours, other, on_text=stop_after_one_prompt)
    run.manifest = run.folder.manifest()
    older = {**run.manifest.versions, "other": {"torch": "1.0"}}
    run.manifest = dataclasses.replace(run.manifest, versions=older)
    assert [each.peer for each in run.go_on(ours, other)] == ["ssd"]
    assert "the run has texts of torch 1.0" in run.folder.manifest().absent["other"]


def test_a_server_is_a_peer_by_its_address(tiny_llama: Path, tiny_draft: str, tmp_path: Path) -> None:
    said = settings(tiny_llama, tiny_draft, peers=["there"])
    with serving(tiny_llama, tmp_path / "server", {"served_model_name": "tiny"}) as server:
        plan = plans(said, urls={"there": f"{server.url}/v1"})["there"]
        with Worker(plan, tmp_path / "log") as worker:
            answer = worker.ask("server", PROMPTS["code"][0], 12)
        body = {"prompt": PROMPTS["code"][0], "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        text = server.http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    assert (answer["text"], answer["tokens"]) == (text, None)
    assert text.startswith(answer["first_text"])
    assert (bool(answer["first_text"]), answer["num_tokens"]) == (True, 12)
    assert 0 < answer["seconds_later"] < 60


@pytest.mark.parametrize(("usage", "num_later"), [(9, 6), (0, 5)])
def test_the_first_burst_of_a_server_is_not_counted(usage: int, num_later: int, tmp_path: Path) -> None:
    """Three tokens come with the first piece of text; how many there are in all, a server may not say."""
    run = Played(tmp_path, max_tokens=8)
    found = run.go_on(run.plan("ssd"), run.plan("texts", TEXTS.format(usage=usage), ["server"]))
    texts = [each for each in found if each.peer == "texts"]
    assert [each.seconds_per_token for each in texts] == [3.0 / num_later] * 2
    assert all(list(each.tokens) == [ord(c) for c in "abcdefgh"] for each in texts)


def test_going_on_with_other_code_is_refused_unless_said(tmp_path: Path) -> None:
    said = settings(Path("model"), "draft")
    folder = PeersFolder(tmp_path)
    manifest = folder.begin(PeersManifest(settings=said, sessions=[], engines={}))
    now = Provenance(started="now", commit="a" * 12, versions={"ssd": "0.1"}, hardware={})

    def begin(session: Provenance, **mixed: bool) -> None:
        run = PeersRun(folder, folder.manifest(), [], PROMPTS, lambda text: [ord(c) for c in text])
        run.begin_session(session, **{"mixed": False, **mixed})

    assert manifest.sessions == []
    begin(now)
    begin(dataclasses.replace(now, commit="b" * 12))  # nothing was measured yet
    folder.add(
        PeerRecord(
            wave=0, sitting=0, dataset="code", prompt=0, peer="ssd", case="ar", tokens=[1], first_token=1.0,
            seconds_per_token=1.0,
        )
    )  # fmt: skip
    for _ in range(2):  # being refused is no session
        with pytest.raises(ValueError, match="commit was bbbbbbbbbbbb, is aaaaaaaaaaaa"):
            begin(now)
    begin(now, mixed=True)
    assert [each.commit for each in folder.manifest().sessions] == ["a" * 12, "b" * 12, "a" * 12]
