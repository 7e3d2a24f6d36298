"""Workers as they run: real processes, real models, the protocol between them and a run."""

import dataclasses
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.peers.plans import Places, plan_workers
from benchmarks.peers.process import PeerError, Worker, WorkerPlan
from benchmarks.peers.records import PeerRecord, PeersFolder, PeersManifest, PeersSettings
from benchmarks.peers.registry import endpoint
from benchmarks.peers.run import PeersRun, Watcher
from ssd.bench.manifest import Provenance
from ssd.version import DISTRIBUTION
from tests.server.process import serving

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
COUNTING = """
import atexit, os

def load(job):
    os.mkdir("{alive}")  # fails where another one is there
    atexit.register(os.rmdir, "{alive}")
    def generate(case, prompt, max_tokens, note):
        for token in range(max_tokens):
            note([token])
        return {{}}
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


def test_our_own_version_is_told(tiny_llama: Path, tiny_draft: str, tmp_path: Path) -> None:
    with Worker(plans(settings(tiny_llama, tiny_draft))["ssd"], tmp_path / "log") as worker:
        assert worker.versions[DISTRIBUTION] == version(DISTRIBUTION)


def test_transformers_is_greedy_alone_and_with_a_draft(
    tiny_llama: Path, tiny_draft: str, tmp_path: Path
) -> None:
    plan = plans(settings(tiny_llama, tiny_draft))["transformers"]
    with Worker(plan, tmp_path / "log") as worker:
        plain = worker.ask("plain", PROMPTS["code"][0], 12)
        drafted = worker.ask("draft3", PROMPTS["code"][0], 12)
        assert worker.versions["transformers"] != "?"
    assert len(plain["tokens"]) == 12
    assert drafted["tokens"] == plain["tokens"]
    assert plain["first_token"] > 0
    assert plain["num_later"] == 11
    assert 0 < plain["seconds_later"] < 60


def test_what_a_peer_cannot_do_is_an_error_and_it_stays_alive(
    tiny_llama: Path, tiny_draft: str, tmp_path: Path
) -> None:
    plan = plans(settings(tiny_llama, tiny_draft))["transformers"]
    with Worker(plan, tmp_path / "log") as worker:
        with pytest.raises(PeerError, match="IndexError"):
            worker.ask("plain", [100_000], 4)
        assert len(worker.ask("plain", [5], 4)["tokens"]) == 4


def test_a_peer_that_cannot_load_says_why(tmp_path: Path) -> None:
    plan = plans(settings(tmp_path, str(tmp_path)))["transformers"]
    with pytest.raises(PeerError, match=r"ValueError.*see .*log"), Worker(plan, tmp_path / "log"):
        pass


def test_a_peer_that_is_killed_is_told_apart(tiny_llama: Path, tiny_draft: str, tmp_path: Path) -> None:
    plan = plans(settings(tiny_llama, tiny_draft))["transformers"]
    with Worker(plan, tmp_path / "log") as worker:
        worker._process.kill()
        with pytest.raises(PeerError, match="was killed"):
            worker.ask("plain", [5], 4)


def test_a_run_takes_turns_and_goes_on(tiny_llama: Path, tiny_draft: str, tmp_path: Path) -> None:
    said, folder = settings(tiny_llama, tiny_draft), PeersFolder(tmp_path / "run")
    manifest = folder.begin(PeersManifest(settings=said, sessions=[], engines={}))
    wave = list(plans(said).values())
    seen: list[PeerRecord] = []
    notes: list[str] = []

    def stop_after(text: PeerRecord) -> None:
        seen.append(text)
        if len(seen) == 3:
            raise KeyboardInterrupt

    def go_on(watcher: Watcher) -> PeersRun:
        run = PeersRun(folder, manifest, [wave], PROMPTS, lambda _text: [])
        run.go_on(watcher)
        return run

    with pytest.raises(KeyboardInterrupt):
        go_on(Watcher(on_text=stop_after, on_note=notes.append))
    run = go_on(Watcher(on_text=seen.append, on_note=notes.append))
    assert run.is_complete
    found = folder.records()
    # The prompt at which it ended is measured whole again: nobody is paired with an earlier hour.
    assert (len(found), len(seen), run.num_texts, run.num_done) == (3 + 8, 3 + 8, 8, 8)
    engines = [("ssd", "ar"), ("ssd", "ssd"), ("transformers", "plain"), ("transformers", "draft3")]
    order = [engines[place] for place in (*(0, 1, 3), *(0, 1, 3, 2), *(1, 2, 0, 3))]
    assert [(each.peer, each.case) for each in found] == order
    assert [each.sitting for each in found] == [0] * 3 + [1] * 8
    for place in range(2):
        texts = {tuple(each.tokens) for each in found if each.prompt == place}
        assert len(texts) == 1, "everyone is greedy with the same weights in float32"
    # The other one is stopped while it waits.
    assert set(folder.manifest().idle) == {"ssd"}
    assert [note for note in notes if "left out" in note] == []


def test_texts_are_written_again_in_each_turn_also_without_this_engine(
    tiny_llama: Path, tiny_draft: str, tmp_path: Path
) -> None:
    said = settings(tiny_llama, tiny_draft, ssd_cases=[], turns=2)
    folder, wave = PeersFolder(tmp_path / "run"), list(plans(said).values())
    assert [plan.name for plan in wave] == ["transformers"]
    manifest = folder.begin(PeersManifest(settings=said, sessions=[], engines={}))

    def go_on(on_text: Callable[[PeerRecord], None]) -> None:
        run = PeersRun(folder, manifest, [wave], PROMPTS, lambda _text: [])
        run.go_on(Watcher(on_text=on_text, on_note=lambda _note: None))

    def stop_at_the_end(text: PeerRecord) -> None:
        if (text.prompt, text.turn) == (1, 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go_on(stop_at_the_end)
    go_on(lambda _text: None)
    found = [(each.sitting, each.turn, each.prompt, each.case) for each in folder.records()]
    assert found == [
        (0, 0, 0, "plain"), (0, 0, 0, "draft3"), (0, 0, 1, "draft3"), (0, 0, 1, "plain"),
        (0, 1, 0, "draft3"), (0, 1, 0, "plain"), (0, 1, 1, "plain"),
        # Both again: they are compared with each other.
        (1, 1, 1, "plain"), (1, 1, 1, "draft3"),
    ]  # fmt: skip


def test_a_peer_that_fails_is_left_out_and_the_others_go_on(
    tiny_llama: Path, tiny_draft: str, tmp_path: Path
) -> None:
    said, folder = settings(tiny_llama, tiny_draft, ssd_cases=["ar"]), PeersFolder(tmp_path / "run")
    manifest = folder.begin(PeersManifest(settings=said, sessions=[], engines={}))
    found = plans(said)
    found["transformers"].job["model"] = str(tmp_path)
    notes: list[str] = []
    run = PeersRun(folder, manifest, [list(found.values())], PROMPTS, lambda _text: [])
    run.go_on(Watcher(on_text=lambda _record: None, on_note=notes.append))
    assert [each.peer for each in folder.records()] == ["ssd", "ssd"]
    assert "transformers is left out: " in " ".join(notes)
    assert list(folder.manifest().absent) == ["transformers"]


def test_who_failed_is_measured_later_beside_everyone(
    tiny_llama: Path, tiny_draft: str, tmp_path: Path
) -> None:
    said = settings(tiny_llama, tiny_draft, ssd_cases=["ar"], peer_cases=["plain"])
    folder = PeersFolder(tmp_path / "run")
    manifest = folder.begin(PeersManifest(settings=said, sessions=[], engines={}))
    there = plans(said)
    gone = dataclasses.replace(there["transformers"], job={**there["transformers"].job, "model": "none"})

    def go_on(peer: WorkerPlan) -> list[tuple[int, int, str]]:
        before = len(folder.records())
        run = PeersRun(folder, manifest, [[there["ssd"], peer]], PROMPTS, lambda _text: [])
        run.go_on(Watcher(on_text=lambda _text: None, on_note=lambda _note: None))
        return [(each.sitting, each.prompt, each.peer) for each in folder.records()[before:]]

    for peer, case, prompt in (("ssd", "ar", 0), ("transformers", "plain", 0), ("ssd", "ar", 1)):
        made = PeerRecord(
            wave=0, sitting=0, dataset="code", prompt=prompt, peer=peer, case=case, tokens=[1, 2],
            first_token=1.0, seconds_per_token=1.0,
        )  # fmt: skip
        folder.add(made)
    assert go_on(gone) == [], "of those who are there, nobody has anything left to do"
    # The first prompt is whole. Of the second only one text is missing: both are measured again.
    assert go_on(there["transformers"]) == [(1, 1, "transformers"), (1, 1, "ssd")]
    assert go_on(there["transformers"]) == []


def test_a_peer_that_runs_is_not_called_absent(tiny_llama: Path, tiny_draft: str, tmp_path: Path) -> None:
    """One with a process for each case is found missing by its own name, and there by that of a case."""
    said, folder = settings(tiny_llama, tiny_draft, ssd_cases=["ar"]), PeersFolder(tmp_path / "run")
    found = plans(said)
    peer = dataclasses.replace(found["transformers"].peer, shares_weights=False)
    plain = dataclasses.replace(found["transformers"], peer=peer, cases=["plain"])
    assert plain.name == "transformers-plain"
    absent = {"transformers": "no interpreter", "openvino": "no interpreter"}
    manifest = folder.begin(PeersManifest(settings=said, sessions=[], engines={}, absent=absent))
    run = PeersRun(folder, manifest, [[found["ssd"], plain]], PROMPTS, lambda _text: [])
    run.go_on(Watcher(on_text=lambda _text: None, on_note=lambda _note: None))
    assert list(folder.manifest().absent) == ["openvino"]


def test_a_peer_that_fails_while_it_warms_up_is_ended_at_once(
    tiny_llama: Path, tiny_draft: str, tmp_path: Path
) -> None:
    file = tmp_path / "failing.py"
    file.write_text(FAILING)
    said, folder = settings(tiny_llama, tiny_draft, ssd_cases=["ar"]), PeersFolder(tmp_path / "run")
    failing = WorkerPlan(
        peer=dataclasses.replace(endpoint("failing"), worker=str(file)), cases=["any"], num_bytes=0,
        python=Path(sys.executable), job={"cores": [], "packages": [], "variables": {}},
    )  # fmt: skip
    alive: list[bool] = []

    def on_text(_text: PeerRecord) -> None:
        commands = [_command(each) for each in Path("/proc").glob("[0-9]*/cmdline")]
        alive.append(any(str(file) in command for command in commands))
        assert any("worker_ssd.py" in command for command in commands)

    manifest = folder.begin(PeersManifest(settings=said, sessions=[], engines={}))
    run = PeersRun(folder, manifest, [[plans(said)["ssd"], failing]], PROMPTS, lambda _text: [])
    run.go_on(Watcher(on_text=on_text, on_note=lambda _note: None))
    assert alive == [False, False]
    assert "it cannot" in folder.manifest().absent["failing"]


def _command(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""  # It ended meanwhile.


def test_another_version_is_refused(tiny_llama: Path, tiny_draft: str, tmp_path: Path) -> None:
    said = settings(tiny_llama, tiny_draft, ssd_cases=["ar"], peer_cases=["plain"])
    folder, wave = PeersFolder(tmp_path / "run"), list(plans(said).values())
    manifest = folder.begin(PeersManifest(settings=said, sessions=[], engines={}))
    silent = Watcher(on_text=lambda _text: None, on_note=lambda _note: None)
    one = {"code": PROMPTS["code"][:1]}
    PeersRun(folder, manifest, [wave], one, lambda _text: []).go_on(silent)
    manifest = folder.manifest()
    older = {**manifest.versions, "transformers": {"transformers": "1.0", "torch": "1.0"}}
    manifest = dataclasses.replace(manifest, versions=older)
    PeersRun(folder, manifest, [wave], PROMPTS, lambda _text: []).go_on(silent)
    assert "the run has texts of transformers 1.0" in folder.manifest().absent["transformers"]
    assert [each.peer for each in folder.records()] == ["ssd", "transformers", "ssd"]


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


def beside_texts(said: PeersSettings, folder: PeersFolder, tmp_path: Path, *, usage: int) -> None:
    """A run beside a server that answers `abcdefgh`, three letters first, and counts `usage` tokens."""
    file = tmp_path / "texts.py"
    file.write_text(TEXTS.format(usage=usage))
    texts = WorkerPlan(
        peer=dataclasses.replace(endpoint("texts"), worker=str(file)), cases=["server"], num_bytes=0,
        python=Path(sys.executable), job={"cores": [], "packages": [], "variables": {}},
    )  # fmt: skip
    manifest = folder.begin(PeersManifest(settings=said, sessions=[], engines={}))
    run = PeersRun(
        folder, manifest, [[plans(said)["ssd"], texts]], PROMPTS, lambda text: [ord(c) for c in text]
    )
    run.go_on(Watcher(on_text=lambda _text: None, on_note=lambda _note: None))


@pytest.mark.parametrize(("usage", "num_later"), [(9, 6), (0, 5)])
def test_the_first_burst_of_a_server_is_not_counted(
    usage: int, num_later: int, tiny_llama: Path, tiny_draft: str, tmp_path: Path
) -> None:
    """Three tokens come with the first piece of text; how many there are in all, a server may not say."""
    said = settings(tiny_llama, tiny_draft, ssd_cases=["ar"], max_tokens=8)
    folder = PeersFolder(tmp_path / "run")
    beside_texts(said, folder, tmp_path, usage=usage)
    found = [each for each in folder.records() if each.peer == "texts"]
    assert [each.seconds_per_token for each in found] == [3.0 / num_later] * 2
    assert all(list(each.tokens) == [ord(c) for c in "abcdefgh"] for each in found)


def test_a_text_that_ends_early_is_none(tiny_llama: Path, tiny_draft: str, tmp_path: Path) -> None:
    """Eight tokens where everyone writes twelve: a server that does not heed ignore_eos."""
    folder = PeersFolder(tmp_path / "run")
    beside_texts(settings(tiny_llama, tiny_draft, ssd_cases=["ar"]), folder, tmp_path, usage=8)
    assert {each.peer for each in folder.records()} == {"ssd"}
    assert "ended after 8 of 12 tokens" in folder.manifest().absent["texts"]


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


def test_one_engine_after_another_where_memory_holds_no_two(tmp_path: Path) -> None:
    """Each is loaded alone, writes all texts of a turn and is ended; the next turn has another order."""
    said = settings(tmp_path, str(tmp_path), ssd_cases=[], alone=True, turns=2)
    wave = []
    for name in ("one", "two"):
        file = tmp_path / f"worker_{name}.py"
        file.write_text(COUNTING.format(alive=tmp_path / "alive"))
        peer = dataclasses.replace(endpoint(name), worker=str(file))
        wave.append(dataclasses.replace(plans(said)["transformers"], peer=peer, cases=["server"]))
    folder = PeersFolder(tmp_path / "run")
    manifest = folder.begin(PeersManifest(settings=said, sessions=[], engines={}))
    notes: list[str] = []
    run = PeersRun(folder, manifest, [wave], PROMPTS, lambda _text: [])
    run.go_on(Watcher(on_text=lambda _text: None, on_note=notes.append))
    assert run.is_complete
    found = [(each.peer, each.prompt, each.turn) for each in folder.records()]
    first = [(name, prompt, 0) for name in ("one", "two") for prompt in (0, 1)]
    assert found == first + [(name, prompt, 1) for name in ("two", "one") for prompt in (0, 1)]
    assert notes == [f"loading {name}" for name in ("one", "two", "two", "one")]
    before = len(found)
    PeersRun(folder, manifest, [wave], PROMPTS, lambda _text: []).go_on(
        Watcher(on_text=lambda _text: None, on_note=notes.append)
    )
    assert len(folder.records()) == before
