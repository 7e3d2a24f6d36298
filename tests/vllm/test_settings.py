"""What may stand in --additional-config, and what vLLM is told."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from ssd.integrations.vllm import PROPOSER, WORKER, Settings, arguments
from ssd.integrations.vllm.proposer import SilentProposer


def test_nothing_said_is_nobody_drafts_and_seeds_decide() -> None:
    nothing: list[dict[str, Any] | None] = [None, {}, {"ssd": {}}, {"other": 1}]
    for config in nothing:
        settings = Settings.from_additional_config(config)
        assert settings == Settings()
        assert settings.draft is None
        assert settings.coupled


def test_a_misspelt_key_is_named_with_its_neighbour() -> None:
    with pytest.raises(ValueError, match=r"ssd\.couplet: did you mean 'coupled'"):
        Settings.from_additional_config({"ssd": {"couplet": True}})
    with pytest.raises(ValueError, match="known settings: draft, "):
        Settings.from_additional_config({"ssd": {"zzz": True}})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"draft": "small-model"}, "no address"),
        ({"draft": "tcp://host:1"}, "needs ssd.draft_keys"),
        ({"coupled": "yes"}, "true or false"),
        ({"padded": 1}, "true or false"),
        ({"backup": "other"}, "use one of auto"),
        ({"draft_timeout": 2}, "speaks every 2 seconds: use 3 to 3600"),
        ({"draft_timeout": True}, "use 3 to 3600"),
        ({"salt": ""}, "not empty"),
        ({"draft_keys": 5}, "path of a folder"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings.from_additional_config({"ssd": wrong})


def test_what_is_ours_must_be_an_object() -> None:
    with pytest.raises(ValueError, match="must be an object"):
        Settings.from_additional_config({"ssd": "ipc:///x"})


def test_arguments_survive_json_and_say_the_same() -> None:
    given = arguments("ipc:///run/d.sock", lookahead=3, padded=True, salt="s", draft_timeout=3.5)
    assert given["worker_cls"] == WORKER
    assert given["speculative_config"] == {
        "method": "custom_class",
        "model": PROPOSER,
        "num_speculative_tokens": 3,
    }
    read = Settings.from_additional_config(json.loads(json.dumps(given["additional_config"])))
    assert read == Settings(draft="ipc:///run/d.sock", padded=True, salt="s", draft_timeout=3.5)


def test_without_a_draft_the_worker_is_the_same() -> None:
    given = arguments(None)
    assert given["worker_cls"] == WORKER
    assert given["additional_config"] == {"ssd": {}}


@pytest.mark.parametrize("lookahead", [0, 17, True, 2.0])
def test_a_lookahead_out_of_bounds_is_refused(lookahead: Any) -> None:
    with pytest.raises(ValueError, match="between 1 and 16"):
        arguments(None, lookahead=lookahead)


def test_the_stub_without_our_worker_is_refused() -> None:
    with pytest.raises(ValueError, match=f"--worker-cls {WORKER}"):
        SilentProposer(SimpleNamespace(parallel_config=SimpleNamespace(worker_cls="auto")))


def test_the_stub_says_nothing() -> None:
    stub = SilentProposer(SimpleNamespace(parallel_config=SimpleNamespace(worker_cls=WORKER)))
    stub.load_model(None)
    assert stub.propose([[1], [], [2, 3]], None, None, slot_mappings=None) == [[], [], []]
