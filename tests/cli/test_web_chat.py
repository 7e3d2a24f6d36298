"""The web page in a real browser, against a small server of OpenAI's protocol.

Runs where Chromium is (see conftest.py).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.fake_openai import FakeOpenAI
from tests.server.process import serving, until
from tests.server.reciter import write_reciter

playwright = pytest.importorskip("playwright.sync_api")

ORIGINS = ("hit", "backup", "target")
PAGE = Path(__file__).parents[2] / "src/ssd/server/static/index.html"


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    served = FakeOpenAI(PAGE)
    yield served
    served.shutdown()


@pytest.fixture
def page(browser: Any, server: FakeOpenAI) -> Iterator[Any]:
    opened = browser.new_page()
    complaints: list[str] = []
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda sent: complaints.append(sent.url) if not _is_ours(sent.url, server) else None)
    opened.goto(server.url)
    yield opened
    opened.close()
    assert complaints == []


def _is_ours(url: str, server: FakeOpenAI) -> bool:
    return url.startswith((server.url, "data:"))


def ask(page: Any, text: str, *, wait: bool = True) -> None:
    page.fill("#input", text)
    page.press("#input", "Enter")
    if wait:
        page.wait_for_selector("#send:not([disabled])")


def test_with_the_real_server(browser: Any, tmp_path: Path) -> None:
    """The page has as many coloured tokens as the server counts as accepted."""
    model = str(write_reciter(tmp_path / "model", [f"word{number} " for number in range(60)]))
    with serving(Path(model), tmp_path / "log", draft=model, mode="sd", lookahead=4) as served:
        opened = browser.new_page()
        opened.goto(served.url)
        opened.click("summary")
        for name, value in {"temperature": "0", "max-tokens": "40"}.items():
            opened.fill(f"#{name}", value)
        ask(opened, "Hi")
        assert opened.locator(".error").count() == 0
        drawn = {origin: opened.locator(f".assistant .{origin}").count() for origin in ORIGINS}
        opened.close()
        # The engine reports its counters now and then.
        until(lambda: served.metric("ssd_spec_decode_num_accepted_tokens_total") == drawn["hit"])
    assert sum(drawn.values()) == 40
    assert 0 < drawn["hit"] < 40


def figures(page: Any) -> str:
    return " | ".join(page.locator("#stats span").all_inner_texts())


def test_an_answer_streams_with_its_origins_and_figures(page: Any, server: FakeOpenAI) -> None:
    server.script.pause = 0.05
    ask(page, "Hi <b>")
    pieces = page.locator(".assistant span")
    assert pieces.all_inner_texts() == ["Hello", " there", "!"]
    assert [pieces.nth(place).get_attribute("class") for place in range(3)] == ["target", "hit", "backup"]
    assert page.inner_text(".user") == "Hi <b>"
    assert page.inner_text("#model") == "parrot"
    shown = figures(page)
    assert re.fullmatch(
        r"4 tokens \| [\d.]+ tok/s \| first after [\d.]+ s \| hits 50 % \(1 of 2\) \| 1\.50 accepted a round",
        shown,
    ), shown


def test_trees_are_shown_with_the_branch_taken(page: Any, server: FakeOpenAI) -> None:
    server.script.trees = [
        {"start": 3, "tokens": ["a", " <b>", "c", "d\n"], "parents": [-1, -1, 1, 1], "branch": [1, 3]}
    ]
    ask(page, "Hi")
    assert page.inner_text(".trees summary") == "trees verified: 1"
    page.click(".trees summary")
    drawn = page.inner_text(".tree")
    assert drawn.splitlines() == [
        "after token 3: 2 of 4 nodes taken", "├○ a", "└●  <b>", " ├○ c", " └● d\\n",
    ]  # fmt: skip
    assert page.locator(".tree b").all_inner_texts() == ["●  <b>\n", "● d\\n\n"]
    # They are no part of what was said.
    ask(page, "and?")
    assert server.requests[-1]["messages"][1]["content"] == "Hello there!"


def test_settings_and_the_conversation_are_sent(page: Any, server: FakeOpenAI) -> None:
    page.click("summary")
    for name, value in {"system": "Be brief.", "temperature": "0", "max-tokens": "9"}.items():
        page.fill(f"#{name}", value)
    ask(page, "one")
    ask(page, "two")
    sent = server.requests[1]
    asked = [(message["role"], message["content"]) for message in sent["messages"]]
    expected = ["system", "user", "assistant", "user"]
    assert asked == list(zip(expected, ["Be brief.", "one", "Hello there!", "two"], strict=True))
    assert (sent["temperature"], sent["max_tokens"], sent["stream"]) == (0, 9, True)
    assert sent["stream_options"] == {"include_usage": True}


def test_figures_move_while_an_answer_comes_and_stop_ends_it(page: Any, server: FakeOpenAI) -> None:
    server.script.pause = 0.05
    server.script.chunks = [(f"{number} ", ["hit" if number else "target"]) for number in range(400)]
    ask(page, "count", wait=False)
    page.wait_for_selector("#stats span:has-text('tok/s')")
    page.wait_for_selector("#stats span:has-text('tokens from hits')")
    live = re.search(r"(\d+) of (\d+) tokens from hits", figures(page))
    assert live
    assert int(live[1]) == int(live[2]) - 1
    page.click("#stop")
    page.wait_for_selector("#send:not([disabled])")
    assert server.hung_up.wait(60)
    shown = page.inner_text(".assistant")
    assert shown.startswith("0 1 ")
    assert "399" not in shown
    server.script.chunks = [("ok", ["target"])]
    ask(page, "go on")
    assert server.requests[1]["messages"][1]["content"].strip() == shown.strip()


def test_clear_forgets_even_while_an_answer_comes(page: Any, server: FakeOpenAI) -> None:
    server.script.pause = 0.05
    server.script.chunks = [(f"{number} ", ["hit"]) for number in range(400)]
    ask(page, "count", wait=False)
    page.wait_for_selector(".assistant span")
    page.click("#clear")
    page.wait_for_selector("#send:not([disabled])")
    assert page.locator(".message").count() == 0
    server.script.chunks = [("ok", ["target"])]
    ask(page, "again")
    assert [message["content"] for message in server.requests[1]["messages"]] == ["again"]


def test_the_key_is_sent_and_never_stored(page: Any, server: FakeOpenAI) -> None:
    server.script.api_key = "secret"
    ask(page, "Hi")
    assert "wrong API key" in page.inner_text(".error"), "a refusal is shown"
    page.click("summary")
    page.fill("#key", "secret")
    ask(page, "Hi")
    assert page.inner_text(".assistant") == "Hello there!"
    assert page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0
    assert len(server.requests[0]["messages"]) == 1


@pytest.mark.parametrize(
    "texts",
    [
        ["So: ", "```", "py\nx = 1\n", "```\n", "done"],
        ["So: ``", "`py\nx = 1\n`", "`", "`", "\ndone `x`"],
    ],
)
def test_code_between_fences_looks_like_code(page: Any, server: FakeOpenAI, texts: list[str]) -> None:
    """However the fences are cut. What is sent with the next question is the text as it came."""
    server.script.chunks = [(text, ["hit"]) for text in texts]
    ask(page, "Hi")
    assert page.locator("pre").all_inner_texts() == ["x = 1"]
    assert "```" not in page.inner_text(".assistant")
    ask(page, "and?")
    assert server.requests[-1]["messages"][1]["content"] == "".join(texts)


MARKDOWN = """## Steps

1. Use **bold *and* more** and `a * b`.
- 2*3*4 and snake_case_name stay

| a | b |
|---|---|
| 1 | 2 |

> quoted
***
<b>no markup</b>"""


def test_markdown_is_drawn_and_keeps_the_origins_of_tokens(page: Any, server: FakeOpenAI) -> None:
    pieces = [MARKDOWN[place : place + 3] for place in range(0, len(MARKDOWN), 3)]
    server.script.chunks = [(each, ["hit" if place % 2 else "target"]) for place, each in enumerate(pieces)]
    ask(page, "Hi")
    answer = page.locator(".assistant")
    assert [each.strip() for each in answer.locator(".heading, .item").all_inner_texts()] == [
        "Steps", "1.\nUse bold and more and a * b.", "•\n2*3*4 and snake_case_name stay",
    ]  # fmt: skip
    assert answer.locator("strong").all_inner_texts() == ["bold and more"]
    assert answer.locator("strong em").all_inner_texts() == ["and"]
    assert answer.locator("code").all_inner_texts() == ["a * b"]
    assert answer.locator("td").all_inner_texts() == ["a", "b", "1", "2"]
    assert answer.locator("hr").count() == 1
    assert answer.locator(".line").all_inner_texts() == ["<b>no markup</b>"]
    assert answer.locator("b").count() == 0
    by_origin = {each: "".join(answer.locator(f".{each}").all_inner_texts()) for each in ("hit", "target")}
    assert len(by_origin["hit"]) > 20
    assert len(by_origin["target"]) > 20
    shown = answer.locator(".hit, .target").all_inner_texts()
    assert all(len(each) <= 3 for each in shown), "each piece came with an origin of its own"


def test_the_first_view_explains_and_offers_questions(page: Any, server: FakeOpenAI) -> None:
    page.wait_for_function("document.querySelector('#welcome h1').textContent.includes('parrot')")
    assert page.inner_text("#how") == "mode ssd · draft small-parrot"
    assert "small-parrot works ahead" in page.inner_text("#welcome p >> nth=0")
    terms = page.locator("#welcome dt").all_inner_texts()
    legend = page.text_content("#legend").split(" · ")
    assert [term.removeprefix("■ ") for term in terms] == legend
    example = page.locator("#examples button").first
    text = example.inner_text()
    example.click()
    page.wait_for_selector("#send:not([disabled])")
    assert server.requests[0]["messages"][-1]["content"] == text
    assert page.locator("#welcome").count() == 0
    page.click("#clear")
    assert page.locator("#examples button").count() == 3


def test_without_a_draft_nothing_is_said_of_colours(browser: Any, server: FakeOpenAI) -> None:
    server.script.decoding = {"mode": "ar", "draft": None}
    opened = browser.new_page()
    opened.goto(server.url)
    opened.wait_for_function("document.querySelector('#how').textContent")
    assert not opened.locator("#legend").is_visible()
    assert not opened.locator("#welcome dl").is_visible()
    assert "--draft" in opened.inner_text("#welcome p >> nth=0")
    opened.close()


@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_is_cut_off(page: Any, server: FakeOpenAI, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    server.script.chunks = [("```\n" + "wide " * 60 + "\n```\n" + "w" * 300, ["hit"])]
    wide = "document.documentElement.scrollWidth <= innerWidth"
    inside = """[...document.querySelectorAll('#log > *, button, pre')].every(
        each => each.getBoundingClientRect().right <= innerWidth)"""
    for asks in (False, True):
        if asks:
            ask(page, "x" * 200)
            assert page.locator("pre").count() == 1
        assert page.evaluate(wide)
        assert page.evaluate(inside)


def test_dark_and_light(page: Any) -> None:
    def paper() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    page.emulate_media(color_scheme="light")
    light = paper()
    page.emulate_media(color_scheme="dark")
    dark = paper()
    assert light != dark
    page.click("#theme")
    assert paper() == light
