"""Each sentence of SECURITY.md about servers, models and images, with the tests that hold it.

A sentence that is added or changed has no entry here, and this fails until it has one. What promises nothing
(advice, what cannot be promised) says so.
"""

import hmac
import re
from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import SecurityError
from transformers.utils.chat_template_utils import render_jinja_template

from ssd.config.server import ServerConfig
from ssd.server import protocol
from ssd.server.middleware import ApiKeys
from ssd.worker import compile_queue
from tests.server.process import ServerProcess, until

ROOT = Path(__file__).parents[2]
SECTIONS = ("The server", "Models", "Images")
ADVICE = "promises nothing"
HERE = "tests/server/test_security.py"
PRODUCTION, CONNECTIONS = "tests/server/test_production.py", "tests/server/test_connections.py"

HELD: dict[str, tuple[str, ...]] = {
    "By default `ssd serve` listens on 127.0.0.1.": (f"{HERE}::test_this_machine_only",),
    "It speaks plain HTTP: put a proxy in front of it for TLS and for telling callers apart.": (ADVICE,),
    "With `--api-key` or `SSD_API_KEY` every route except `/health`, `/livez` and `/ready` requires a key.": (
        f"{PRODUCTION}::test_keys_guard_every_route_but_three",
        "tests/vllm/test_guard.py::test_every_route_of_the_real_app_asks_for_a_key",
    ),
    "Keys are compared in constant time.": (f"{HERE}::test_every_key_is_compared_in_constant_time",),
    "All keys are equal: there are no roles.": (f"{HERE}::test_every_key_is_compared_in_constant_time",),
    "An empty `SSD_API_KEY` is refused.": ("tests/cli/test_settings.py::",),
    "Other users of the machine can read a key on the command line, but not one in the variable.": (ADVICE,),
    "everyone who can reach the port may use the server.": (ADVICE,),
    "On 127.0.0.1 it answers only requests for names of this machine, so a page of another site whose "
    "name resolves to this machine gets nothing (DNS rebinding).": (
        f"{PRODUCTION}::test_only_this_machines_names_are_answered_without_a_key",
    ),
    "The prefix cache shares nothing between keys, nor between different `cache_salt`s; without keys "
    "all callers that send no salt share it, and the time to first token can then reveal whether "
    "somebody sent the same prompt.": (
        f"{PRODUCTION}::test_nobody_learns_which_prompts_others_have_sent",
        f"{PRODUCTION}::test_without_keys_all_who_give_no_salt_share_prompts",
    ),
    "The server stores nothing; its log has a request's id, status, duration and token counts, not its "
    "text.": (f"{HERE}::test_the_log_has_no_text",),
    "Headers, bodies, connections, prompts, texts, unread answers and the queue have limits "
    "([docs/server.md](docs/server.md)).": (
        f"{CONNECTIONS}::test_headers_have_a_deadline",
        f"{CONNECTIONS}::test_bodies_have_a_deadline",
        f"{CONNECTIONS}::test_a_new_connection_finds_room_at_the_cost_of_one_that_waits",
        f"{CONNECTIONS}::test_who_reads_nothing_is_left",
        f"{PRODUCTION}::test_a_full_queue_is_answered_with_429",
        "tests/server/test_refusals.py::test_large_bodies_are_refused_declared_or_not",
        "tests/server/test_odd_bodies.py::test_a_body_of_too_many_objects_is_refused_unread",
        f"{HERE}::test_limits_are_the_ones_that_docs_name",
    ),
    "Grammars are compiled in a separate process first, with limits on time and memory, and a request "
    "whose grammar takes too much of the engine's time is ended without affecting others.": (
        "tests/worker/test_compile_queue.py::test_processor_time_has_an_end",
        "tests/worker/test_compile_queue.py::test_memory_has_an_end",
        "tests/engine/test_grammar_time.py::test_a_request_whose_time_is_used_up_ends_alone",
        "tests/engine/test_grammar_time.py::test_requests_do_not_pay_for_each_other_with_the_time_they_take",
    ),
    "Chat templates are rendered in a separate process with limits on time and memory.": (
        "tests/worker/test_templates.py::test_what_takes_too_much_is_refused_and_others_go_on",
        "tests/server/test_chat.py::test_a_chat_template_that_loops_is_refused",
    ),
    "In a test with fifty hostile clients, first tokens of honest ones took up to 4.4 times as long.": (
        "tests/e2e/test_soak.py::test_harm_beside_honest_traffic_changes_no_answer",
    ),
    "A server without keys cannot tell callers apart, so it cannot limit one caller that acts as many.": (
        ADVICE,
    ),
    "(`/metrics`) and `/openapi.json` require the key too.": (
        f"{PRODUCTION}::test_keys_guard_every_route_but_three",
    ),
    "Weights are read as safetensors or GGUF.": (
        "tests/models/test_refusals.py::test_pickled_weights_are_not_read",
    ),
    "Neither format runs code, and code in a model folder is never run (inside vLLM its own "
    "`--trust-remote-code` decides).": (
        "tests/models/test_gguf_check.py::test_code_in_a_model_folder_is_not_run",
    ),
    "Chat templates are rendered in the sandbox of transformers.": (
        "tests/worker/test_templates.py::test_the_text_is_the_tokenizers",
        f"{HERE}::test_templates_reach_nothing_outside_their_sandbox",
    ),
    "As in other servers, text in a message that spells a special token of the model becomes that "
    "token: roles do not separate people who write into the same conversation.": (ADVICE,),
    "Damaged files are refused or fail to load; the parsers of both formats are third-party code, so "
    "load models only from sources that you trust.": (
        "tests/models/test_refusals.py::test_damaged_files_are_named",
        "tests/models/test_gguf_check.py::test_a_header_that_does_not_fit_its_file_is_refused",
    ),
    "The images in [deploy/](deploy) run as an unprivileged user.": (
        "tests/test_deploy.py::test_images_run_as_a_user_without_rights_under_an_init",
    ),
    "They require no key unless `SSD_API_KEY` is set, and listen on all addresses of their container: "
    "publish the port only to those who should use it.": (ADVICE,),
}


def sentences() -> list[str]:
    """Of the sections that are listed, without the names that bullets begin with."""
    found: list[str] = []
    for section in re.split(r"^## ", (ROOT / "SECURITY.md").read_text(), flags=re.MULTILINE):
        title, _, text = section.partition("\n")
        if title in SECTIONS:
            for paragraph in re.split(r"\n\n|^- ", text, flags=re.MULTILINE):
                plain = re.sub(r"\*\*[^*]+\*\*", "", " ".join(paragraph.split())).strip()
                found += [each for each in re.split(r"(?<=\.) (?=[A-Z`])", plain) if each]
    return found


def test_every_sentence_has_its_tests() -> None:
    assert sentences() == list(HELD), "SECURITY.md and the table in this file differ"


@pytest.mark.parametrize("named", sorted({each for tests in HELD.values() for each in tests} - {ADVICE}))
def test_the_tests_are_there(named: str) -> None:
    path, _, name = named.partition("::")
    text = (ROOT / path).read_text()
    assert f"def {name}(" in text if name else "SSD_API_KEY is set but empty" in text


def test_this_machine_only() -> None:
    assert ServerConfig().host == "127.0.0.1"


async def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However early one matches, all are compared, and by the function that takes the same time for all; any
    of them opens a route."""
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def counting(offered: bytes, key: bytes) -> bool:
        compared.append(key)
        return compare(offered, key)

    async def passed(scope: Any, _receive: Any, _send: Any) -> None:
        opened.append(scope["path"])

    async def nothing(*_: Any) -> Any: ...

    opened: list[str] = []
    monkeypatch.setattr(hmac, "compare_digest", counting)
    guard = ApiKeys(passed, ("first", "second", "third"))
    for key in ("first", "second", "third", "wrong"):
        headers = [(b"authorization", f"Bearer {key}".encode())]
        await guard({"type": "http", "path": f"/{key}", "headers": headers}, nothing, nothing)
    assert compared == [b"first", b"second", b"third"] * 4
    assert opened == ["/first", "/second", "/third"]


def test_the_log_has_no_text(server: ServerProcess) -> None:
    secret = "xylophone sonata"
    headers = {"X-Request-Id": "no-text"}
    body = {"prompt": secret, "max_tokens": 2, "cache_salt": secret, "user": secret}
    server.http.post("/v1/completions", json=body, headers=headers)
    server.http.post("/v1/completions", json={**body, "stop": 3}, headers=headers)
    until(lambda: sum(line.get("request_id") == "no-text" for line in server.log) == 2)
    assert "xylophone" not in str(server.log)


def test_templates_reach_nothing_outside_their_sandbox() -> None:
    for template in ("{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}"):
        with pytest.raises(SecurityError):
            render_jinja_template([[{"role": "user", "content": "x"}]], chat_template=template)


def test_limits_are_the_ones_that_docs_name() -> None:
    page = " ".join((ROOT / "docs" / "serving.md").read_text().split())
    assert f"more than {protocol._MOST_UNREAD >> 20} MiB" in page
    assert protocol._MOST_UNREAD == 256 << 20
    page = " ".join((ROOT / "docs" / "sampling.md").read_text().split())
    assert f"{compile_queue._MOST_BYTES >> 20} MB" in page
    assert compile_queue._MOST_BYTES == 128 << 20
