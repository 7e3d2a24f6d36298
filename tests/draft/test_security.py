"""Every sentence of SECURITY.md on the draft and its line has a test; here is which, and that it is there.

A sentence that is added or changed has no entry here, and this fails until it has one. What promises nothing
that a test could hold says so.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SHARING, _LINK = "draft/server/test_sharing.py", "draft/protocol/test_sockets.py"
_MESSAGES = "draft/protocol/test_messages.py"
_REQUESTS, _INTAKE = "draft/test_hostile_requests.py", "draft/server/test_frames.py"
_LYING, _FLOODS = "draft/client/test_lying_draft.py", "draft/protocol/test_floods.py"

PROMISES: dict[str, tuple[str, ...]] = {
    "Engines whose keys have the same name are one tenant; without a named key each engine is a tenant of "
    "its own.": (
        f"{_SHARING}::test_engines_of_one_key_are_one_tenant_and_those_without_one_each_their_own",
        f"{_LINK}::test_a_tenant_is_let_in_by_its_key_and_known_by_its_name",
    ),
    "Rows of draft steps, trees, KV blocks and the time for taking messages in are shared among tenants by "
    "weight.": (
        f"{_SHARING}::test_rows_stand_as_weights_do_while_everyone_wants_more",
        f"{_SHARING}::test_trees_are_shared_by_weight_and_who_had_to_go_comes_back",
        f"{_SHARING}::test_blocks_are_shared_too",
        f"{_INTAKE}::test_time_is_shared_by_weight",
    ),
    "A tenant cannot read another's texts, and KV blocks of prompts are shared only within one.": (
        f"{_SHARING}::test_what_is_read_of_a_prompt_is_for_its_tenant_alone",
    ),
    "**TCP** is refused without keys.": (f"{_LINK}::test_there_is_no_tcp_without_keys",),
    "It is encrypted and authenticated both ways (CURVE, by ZeroMQ): the draft knows the engine's key, the "
    "engine the draft's.": (
        f"{_LINK}::test_only_the_engines_key_is_let_in",
        f"{_LINK}::test_new_keys_need_no_new_target",
    ),
    "`ssd draft --make-keys` writes a folder for each side, with modes 0700 and 0600.": (
        f"{_LINK}::test_secrets_are_for_their_side_and_this_user_only",
    ),
    "All engines share one pair of keys unless `--tenant` makes further ones.": (
        f"{_LINK}::test_a_tenant_is_let_in_by_its_key_and_known_by_its_name",
    ),
    "Unknown fields, wrong types and sizes beyond the caps are refused: the draft forgets the engine, and an "
    "engine leaves the draft after three.": (
        f"{_MESSAGES}::test_what_is_no_frame_is_refused",
        f"{_MESSAGES}::test_a_broken_rule_is_refused",
        f"{_LINK}::test_a_frame_that_is_too_large_does_not_arrive",
        "draft/client/test_reconnect.py::test_after_three_frames_of_nonsense_the_line_is_given_up",
    ),
    "**One sequence** of which something impossible is said loses its drafts; the others of its frame and of "
    "its engine do not notice.": (
        f"{_REQUESTS}::test_an_opening_that_breaks_a_rule_costs_its_sequence_alone",
        f"{_REQUESTS}::test_an_outcome_that_breaks_a_rule_closes_its_sequence",
        "vllm/test_hostile_requests.py::test_what_a_worker_reads_of_a_request_costs_that_request_alone",
    ),
    "**Bytes** that a peer sends and nobody reads are bounded (48 MiB of a connection over TCP on Linux, "
    "parts of messages included; 64 MiB of a peer and 128 MiB of a key within the draft), and so are engines "
    "per key (1,024).": (
        f"{_FLOODS}::test_a_message_of_many_parts_does_not_fill_a_draft",
        f"{_FLOODS}::test_a_message_of_many_parts_does_not_fill_an_engine",
        f"{_FLOODS}::test_frames_that_a_draft_does_not_read_wait_with_their_sender",
        f"{_INTAKE}::test_more_bytes_than_are_held_cost_the_peer_that_sent_them",
        f"{_INTAKE}::test_so_many_engines_of_one_key_are_taken_and_no_more",
    ),
    "**A draft that lies** about its state cannot have texts sent again without end, nor put what is no "
    "number into figures.": (
        f"{_LYING}::test_asking_again_and_again_for_a_text_brings_few",
        f"{_LYING}::test_saying_again_and_again_that_there_is_room_brings_few",
        f"{_LYING}::test_figures_that_nothing_can_have_are_refused",
        f"{_LYING}::test_figures_stay_within_what_can_be_told",
    ),
}


def section() -> str:
    """Without line breaks."""
    text = (ROOT / "SECURITY.md").read_text()
    found = text.partition("## The draft and its line")[2].partition("\n## ")[0]
    return re.sub(r"\s+", " ", found)


UNTESTED = (
    "A draft is not trusted with tokens: under coupled acceptance each is the target's own decision, and a "
    "wrong or hostile draft costs time.",
    'Under ratio acceptance (`acceptance="ratio"`) the draft is trusted to have drawn from the distribution '
    "that it states: let only your own draft in.",
    "A draft is trusted with texts.",
    "It is sent the token ids of prompts and answers, with seeds and sampling parameters, of every engine "
    "that uses it.",
    "Engines that share a draft share that trust.",
    "It can notice that a draft is busy.",
    "**Unix sockets** (the default) lie in a folder that only their user can enter.",
    "There are no keys: whoever can open the socket is let in.",
    "With a path of your own (`--listen ipc:///…`) its folder decides who that is.",
    "Memory is bounded by the size and number of frames only: a message of many parts is not.",
    "Keys do not expire; make new ones to lock somebody out.",
    "**Frames** are msgpack of fixed types, never pickle.",
    "vLLM's own server and its sockets are vLLM's: see its security policy.",
    "The draft's line is the same there.",
    "With `--api-key`, `SSD_API_KEY` or `VLLM_API_KEY`, `ssd serve --engine vllm` puts a guard of ours in "
    "front of all of vLLM's routes, websockets included: every one asks for a key but `/health`.",
    "Keys in a file for vLLM's `--config` are not seen: then vLLM's own check, which leaves routes open, is "
    "the only one.",
    "Keys reach vLLM by its environment.",
)
"""Advice, what is trusted or cannot be promised, and what tests elsewhere hold that are not listed here."""


def sentences() -> list[str]:
    text = (ROOT / "SECURITY.md").read_text().partition("## The draft and its line")[2].partition("\n## ")[0]
    paragraphs = [" ".join(each.split()) for each in re.split(r"\n\n|^- ", text, flags=re.MULTILINE)]
    return [each for one in paragraphs for each in re.split(r"(?<=\.) (?=[A-Z`*])", one) if each]


def test_every_sentence_is_listed() -> None:
    assert sorted(sentences()) == sorted([*PROMISES, *UNTESTED])


@pytest.mark.parametrize("sentence", PROMISES)
def test_a_sentence_stands_there_and_its_tests_exist(sentence: str) -> None:
    assert sentence in section()
    for each in PROMISES[sentence]:
        path, _, name = each.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / path).read_text(), each
