"""Texts keep to their grammar in every mode, and it is the same text."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from ssd import LLM, Grammar, SamplingParams
from ssd.draft.client.controller import Controller
from ssd.engine.grammar import GrammarCompiler
from ssd.engine.grammar_source import source_of
from ssd.sampling.constraint import GrammarError
from tests.tiny import tiny_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 2},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["name", "sizes", "kind"],
    "additionalProperties": False,
}
PROMPTS = [[5, 6, 7], [9, 8], [40, 41, 42, 43]]


@pytest.fixture(scope="module", params=["ar", "sd", "ssd"])
def llm(request: pytest.FixtureRequest, tiny_llama: Path) -> Any:
    settings: dict[str, Any] = {} if request.param == "ar" else {"draft": str(tiny_llama)}
    with LLM(
        str(tiny_llama), device="cpu", mode=request.param, deterministic=True, show_progress=False, **settings
    ) as engine:
        yield engine


def texts(llm: LLM, grammar: Grammar, temperature: float) -> list[str]:
    params = SamplingParams(temperature=temperature, seed=7, max_tokens=200, grammar=grammar)
    outputs = [each.outputs[0] for each in llm.generate(PROMPTS, params, use_tqdm=False)]
    assert [each.finish_reason for each in outputs] == ["stop"] * len(PROMPTS)
    return [each.text for each in outputs]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_json_schema(llm: LLM, tiny_llama: Path, temperature: float) -> None:
    found = texts(llm, Grammar("json_schema", json.dumps(SCHEMA)), temperature)
    for each in map(json.loads, found):
        assert set(each) == {"name", "sizes", "kind"}
        assert len(each["name"]) <= 6
        assert len(each["sizes"]) <= 2
        assert each["kind"] in ("a", "b")
    plain = LLM(str(tiny_llama), device="cpu", deterministic=True, show_progress=False)
    assert found == texts(plain, Grammar("json_schema", json.dumps(SCHEMA)), temperature)


def test_regex_and_choice(llm: LLM) -> None:
    assert all(
        re.fullmatch("[0-9]{3}-[a-f]{2}", each)
        for each in texts(llm, Grammar("regex", "[0-9]{3}-[a-f]{2}"), 1.0)
    )
    assert set(texts(llm, Grammar("choice", '["red", "green \\"x\\""]'), 1.0)) <= {"red", 'green "x"'}


def test_what_must_follow_is_proposed_without_asking_the_draft(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the draft says: but for the first, which comes with the prompt, nearly all at once."""
    # On a busy machine the measured price of a drafted token may be more than the token is worth.
    monkeypatch.setattr(Controller, "choose", lambda _self, chances, _num_rows: [*map(len, chances)])
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=40, grammar=ONE_TEXT)
    [output] = llm.generate([PROMPTS[0]] * 3, params, use_tqdm=False)[-1].outputs
    assert output.text == "green and blue"
    accepted = output.speculation.accepted
    assert accepted == 0 if llm.mode == "ar" else accepted >= 0.6 * len(output.token_ids)


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar("json_schema", "{"), "not JSON"),
        (Grammar("json_schema", '{"type": "nothing"}'), "cannot be used"),
        (Grammar("json_schema", '{"type": "array", "uniqueItems": true}'), "cannot be used"),
        (Grammar("regex", "("), "cannot be used"),
        (Grammar("lark", "start: other"), "cannot be used"),
        (Grammar("choice", '"red"'), "a list of texts"),
        (Grammar("lark", "start: start"), "no text fits it"),
        (Grammar("json_schema", '{"$ref": "#"}'), "no text fits it"),
        (Grammar("json_schema", '{"minimum": 18446744073709551616}'), "cannot be used"),
    ],
)
def test_a_grammar_without_sense_is_refused(llm: LLM, grammar: Grammar, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        llm.generate([PROMPTS[0]], SamplingParams(grammar=grammar), use_tqdm=False)
    assert llm.generate([PROMPTS[0]], SamplingParams(max_tokens=2), use_tqdm=False)


CHOICE = Grammar("choice", '["yes", "no"]')
ONE_TEXT = Grammar("choice", '["green and blue"]')
DEAD_END = Grammar("lark", 'start: "a" b | "c"\nb: b')


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_complete_text_ends_before_min_tokens(llm: LLM, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=7, max_tokens=20, min_tokens=8, grammar=CHOICE)
    for output in llm.generate(PROMPTS, params, use_tqdm=False):
        assert output.outputs[0].text in ("yes", "no")
        assert output.outputs[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("grammar", "bad_words", "started"),
    [(CHOICE, ["yes", "no"], ("ye", "n")), (CHOICE, ["y", "n"], ("",)), (DEAD_END, ["c"], ("a",))],
)
@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "logprobs": 1, "stop": ["zz"]}])
def test_a_text_that_cannot_go_on_is_an_error(
    llm: LLM,
    tiny_llama: Path,
    grammar: Grammar,
    bad_words: list[str],
    started: tuple[str, ...],
    settings: dict[str, Any],
) -> None:
    given: dict[str, Any] = {"temperature": 0.0, "seed": 3, "max_tokens": 20, "min_tokens": 4, **settings}
    params = SamplingParams(grammar=grammar, bad_words=bad_words, **given)
    found = [each.outputs[0] for each in llm.generate(PROMPTS, params, use_tqdm=False)]
    assert {each.finish_reason for each in found} == {"error"}
    assert all(each.text in started for each in found)
    assert all("no token is left" in str(each.stop_reason) for each in found)
    plain = LLM(str(tiny_llama), device="cpu", deterministic=True, show_progress=False)
    assert found == [each.outputs[0] for each in plain.generate(PROMPTS, params, use_tqdm=False)]
    assert llm.generate([PROMPTS[0]], SamplingParams(max_tokens=2), use_tqdm=False)


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ('{"a": 1, "b": [2, 3]}', True),
        ('{"a":1,"b":[2,3]}', False),
        ('{ "a": 1, "b": [2, 3]}', False),
        ('{"a": 1,  "b": [2, 3]}', False),
        ('{"a": 1, "b": [ 2, 3]}', False),
        ('{"a": 1, "b": [2, 3] }', False),
    ],
)
@pytest.mark.parametrize("grammar", [Grammar("json_object"), Grammar("json_schema", '{"type": "object"}')])
def test_json_has_one_space_after_commas_and_colons(grammar: Grammar, text: str, is_allowed: bool) -> None:
    tokenizer = tiny_tokenizer()
    tokens = tokenizer(text).input_ids
    constraint = GrammarCompiler(tokenizer, (1,), 512).constraints(grammar, 1)[0]
    assert (constraint.num_allowed([*tokens, 1]) == len(tokens) + 1) is is_allowed


def test_a_matcher_that_fails_allows_nothing() -> None:
    """The library would allow the end alone, and the text would look complete."""
    compiler = GrammarCompiler(tiny_tokenizer(), (1,), 512)
    constraint = compiler.constraints(DEAD_END, 1)[0]
    dead_end = tiny_tokenizer()("a").input_ids
    assert not constraint.masks(dead_end)[1].any()
    constraint.advance(dead_end)
    assert not constraint.masks([])[0].any()
    assert constraint.num_allowed([1]) == 0


def test_an_added_token_that_spells_a_text_ends_it_instead_of_coming_for_ever() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken("<mark>", special=False, normalized=False)])
    mark = tokenizer.convert_tokens_to_ids("<mark>")
    compiler = GrammarCompiler(tokenizer, (1,), 512)
    as_text = compiler.constraints(Grammar("lark", 'start: "<mark>" "a"'), 1)[0]
    as_token = compiler.constraints(Grammar("lark", f'start: <[{mark}]> "a"'), 1)[0]
    for constraint in (as_text, as_token):
        constraint.advance([mark])
    assert not as_text.masks([])[0].any()
    assert as_token.num_allowed(tokenizer("a").input_ids) == 1
    assert as_token.masks([])[0].any()


def test_a_text_that_is_complete_is_not_lost() -> None:
    """Its end is allowed, and not taken again."""
    tokenizer = tiny_tokenizer()
    constraint = GrammarCompiler(tokenizer, (1,), 512).constraints(Grammar("choice", '["yes", "no"]'), 1)[0]
    constraint.advance([*tokenizer("yes").input_ids, 1])
    constraint.advance([1])
    assert constraint.masks([])[0].any()


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1100)}}),
        json.dumps({"type": "object", "patternProperties": {f"^x{i}[a-z]*$": {} for i in range(300)}}),
        json.dumps({"anyOf": [{"const": {"a": i}} for i in range(600)]}),
    ],
)
def test_what_would_compile_for_long_is_refused_at_once(text: str) -> None:
    for grammar in (Grammar("json_schema", text), Grammar("lark", f'start: "x" call\ncall: %json {text}')):
        with pytest.raises(GrammarError, match="at most"):
            source_of(grammar)


def test_a_drafted_token_that_leads_nowhere_spoils_nothing() -> None:
    """What was only drafted must not be remembered: the mask afterwards is the one before."""
    tokenizer = tiny_tokenizer()
    compiler = GrammarCompiler(tokenizer, (1,), 512)
    constraint = compiler.constraints(Grammar("lark", 'start: "a" b | "c"\nb: b'), 1)[0]
    before = constraint.masks([])[0].tolist()
    dead_end = tokenizer("a").input_ids
    assert len(constraint.masks(dead_end)) == 2
    assert constraint.masks([])[0].tolist() == before
    assert constraint.num_allowed(tokenizer("c").input_ids) == 1


def test_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="use one of json_object"):
        Grammar("yaml", "")  # type: ignore[arg-type]


def allowed_ids(mask: Any) -> list[int]:
    return [token for token in range(512) if mask[token // 32] >> (token % 32) & 1]


def test_a_grammar_state_knows_what_must_follow_and_what_may() -> None:
    """Step by step along a text, a state says what masks say; the text itself stays where it was."""
    tokenizer = tiny_tokenizer()
    constraint = GrammarCompiler(tokenizer, (1,), 512).constraints(
        Grammar("json_schema", json.dumps(SCHEMA)), 1
    )[0]
    tokens = tokenizer('{"name": "fox", "sizes": [4], "kind": "a"}').input_ids
    state, num_forced = constraint.state(), 0
    assert state is not None
    for token, mask in zip(tokens, constraint.masks(tokens), strict=False):
        allowed = allowed_ids(mask)
        assert state.mask().tolist() == mask.tolist()
        assert state.only() == (allowed[0] if len(allowed) == 1 else None)
        assert all(state.allows(each) for each in allowed)
        num_forced += state.only() is not None
        state = state.after(token)
    assert num_forced > 5
    assert state.only() is None  # An end is never worth a guess: the row before it decides it.
    before = constraint.state()
    assert before is not None
    assert before.mask().tolist() == constraint.masks([])[0].tolist()


def test_where_nothing_can_follow_there_is_no_state() -> None:
    constraint = GrammarCompiler(tiny_tokenizer(), (1,), 512).constraints(DEAD_END, 1)[0]
    state = constraint.state()
    assert state is not None
    dead_end = tiny_tokenizer()("a").input_ids
    assert state.after(dead_end[0]).only() is None
    constraint.advance(dead_end)
    constraint.masks([])
    assert constraint.state() is None
