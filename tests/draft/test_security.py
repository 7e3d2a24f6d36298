"""Names tests for each sentence of SECURITY.md about the draft and its connection.

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
    "Engines whose keys have the same name are one tenant; an engine without a named key is a tenant of"
    " its own.": (
        f"{_SHARING}::test_engines_of_one_key_are_one_tenant_and_those_without_one_each_their_own",
        f"{_LINK}::test_a_tenant_is_let_in_by_its_key_and_known_by_its_name",
    ),
    "Rows of draft steps, trees, KV blocks and the time for reading messages are shared among tenants "
    "by weight.": (
        f"{_SHARING}::test_rows_stand_as_weights_do_while_everyone_wants_more",
        f"{_SHARING}::test_trees_are_shared_by_weight_and_who_had_to_go_comes_back",
        f"{_SHARING}::test_blocks_are_shared_too",
        f"{_INTAKE}::test_time_is_shared_by_weight",
    ),
    "A tenant cannot read another tenant's texts, and KV blocks of prompts are shared only within a "
    "tenant.": (f"{_SHARING}::test_what_is_read_of_a_prompt_is_for_its_tenant_alone",),
    "**TCP** requires keys.": (f"{_LINK}::test_there_is_no_tcp_without_keys",),
    "It is encrypted and authenticated in both directions (ZeroMQ's CURVE): the draft knows the "
    "engine's key, and the engine knows the draft's.": (
        f"{_LINK}::test_only_the_engines_key_is_let_in",
        f"{_LINK}::test_new_keys_need_no_new_target",
    ),
    "`ssd draft --make-keys` writes one folder for each side, with modes 0700 and 0600.": (
        f"{_LINK}::test_secrets_are_for_their_side_and_this_user_only",
    ),
    "All engines share one pair of keys unless you make further ones with `--tenant`.": (
        f"{_LINK}::test_a_tenant_is_let_in_by_its_key_and_known_by_its_name",
    ),
    "Unknown fields, wrong types and sizes above the limits are refused: the draft closes all sessions "
    "of an engine that sends one, and an engine disconnects from a draft after three.": (
        f"{_MESSAGES}::test_what_is_no_frame_is_refused",
        f"{_MESSAGES}::test_a_broken_rule_is_refused",
        f"{_LINK}::test_a_frame_that_is_too_large_does_not_arrive",
        "draft/client/test_reconnect.py::test_after_three_frames_of_nonsense_the_line_is_given_up",
    ),
    "**A sequence** with an invalid field in a message loses its drafts; other sequences in the frame "
    "and of the engine are not affected.": (
        f"{_REQUESTS}::test_an_opening_that_breaks_a_rule_costs_its_sequence_alone",
        f"{_REQUESTS}::test_an_outcome_that_breaks_a_rule_closes_its_sequence",
        "vllm/test_hostile_requests.py::test_what_a_worker_reads_of_a_request_costs_that_request_alone",
    ),
    "**Unread bytes** are limited (48 MiB for a connection over TCP on Linux, parts of messages "
    "included; within the draft 64 MiB for a peer and 128 MiB for a key), and so is the number of "
    "engines per key (1,024).": (
        f"{_FLOODS}::test_a_message_of_many_parts_does_not_fill_a_draft",
        f"{_FLOODS}::test_a_message_of_many_parts_does_not_fill_an_engine",
        f"{_FLOODS}::test_frames_that_a_draft_does_not_read_do_not_fill_it",
        f"{_INTAKE}::test_more_bytes_than_are_held_cost_the_peer_that_sent_them",
        f"{_INTAKE}::test_so_many_engines_of_one_key_are_taken_and_no_more",
    ),
    "**A draft that reports a false state** cannot make an engine resend texts without limit, nor put "
    "NaN or infinity into metrics.": (
        f"{_LYING}::test_asking_again_and_again_for_a_text_brings_few",
        f"{_LYING}::test_saying_again_and_again_that_there_is_room_brings_few",
        f"{_LYING}::test_figures_that_nothing_can_have_are_refused",
        f"{_LYING}::test_figures_stay_within_what_can_be_told",
    ),
    "A draft reads the public keys in its folder again when they change: an added one is accepted, and a "
    "removed one opens no further connection; to end those that stand, restart the draft.": (
        "draft/protocol/test_sockets.py::test_keys_are_added_and_removed_while_a_draft_runs",
    ),
}


def section() -> str:
    """Without line breaks."""
    text = (ROOT / "SECURITY.md").read_text()
    found = text.partition("## The draft and its connection")[2].partition("\n## ")[0]
    return re.sub(r"\s+", " ", found)


UNTESTED = (
    "A draft cannot change tokens: each token is the target's own decision, "
    "and a wrong or hostile draft only costs time.",
    "A draft sees texts.",
    "Every engine that uses it sends it the token ids of prompts and answers, with seeds and sampling "
    "parameters.",
    "Engines that share a draft must all trust it.",
    "A tenant can notice that the draft is busy.",
    "**Unix sockets** (the default) are in a folder that only their user can enter.",
    "They have no keys: every process that can open the socket may use it.",
    "If you choose the path (`--listen ipc:///…`), the permissions of its folder decide who that is.",
    "Only the size and number of frames are limited: a message of many parts can take unbounded memory.",
    "Keys do not expire.",
    "**Frames** are msgpack of fixed types, never pickle.",
    "vLLM's own security policy covers its server and its sockets.",
    "Inside vLLM, the connection to the draft is the same as above.",
    "With `--api-key`, `SSD_API_KEY` or `VLLM_API_KEY`, `ssd serve --engine vllm` adds a middleware "
    "that requires a key on all of vLLM's routes, websockets included, except `/health`.",
    "The middleware does not see keys in a file for vLLM's `--config`: then only vLLM's own check applies, "
    "which leaves routes open.",
    "Keys are passed to vLLM in its environment.",
)
"""Advice, what is trusted or cannot be promised, and what tests elsewhere hold that are not listed here."""


def sentences() -> list[str]:
    text = (
        (ROOT / "SECURITY.md")
        .read_text()
        .partition("## The draft and its connection")[2]
        .partition("\n## ")[0]
    )
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
