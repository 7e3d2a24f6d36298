"""The tables that are made of the record of vLLM's runs."""

from typing import Any

from campaigns.vllm.tables import table


def test_a_row_shows_what_stock_vllm_gave_for_the_same_case_of_the_same_run() -> None:
    run = {
        "target": "one",
        "draft": "one",
        "tokens": 8,
        "dtype": "float32",
        "runner": "v2",
        "vllm": "0.32.0+cpu",
    }
    drafted = {"equal": 7, "drafted": 5.0, "accepted": 3.0, "preempted": 2.0}
    lines: list[dict[str, Any]] = [
        {"case": "T=0", "run": run, "texts": 8, **drafted},
        {"case": "stock vLLM, T=0", "run": run, "texts": 8, "equal": 6},
        {"case": "T=0", "run": {**run, "asynchronous": True}, "texts": 8, **drafted},
        {"case": "vLLM's own speculation, T=0", "run": run, "texts": 8, "equal": 1},
        {"case": "kill 1", "run": {"target": "one"}, "requests": 3},
    ]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table(lines).splitlines()[2:]]
    usual = "one, float32, 8 tokens, V2 of 0.32.0"
    assert rows == [
        [usual, "T=0", "8", "7", "6", "3 of 5", "", "preempted: 2"],
        [f"{usual}, asynchronous", "T=0", "8", "7", "", "3 of 5", "", "preempted: 2"],
        [usual, "vLLM's own speculation, T=0", "8", "", "1", "", "", ""],
    ]
