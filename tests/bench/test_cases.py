"""Cases and their spelling: what is written is what is meant, and comes back as it was written."""

import pytest

from ssd.bench.cases import Case, cases_of, parse_case

SPELLED = {
    "ar": Case(mode="ar"),
    "ar+allcores": Case(mode="ar", all_cores=True),
    "sd4": Case(mode="sd", lookahead=4),
    "ssd": Case(mode="ssd"),
    "ssd+int8": Case(mode="ssd", draft_precision="int8"),
    "sd5+int8+head32768": Case(mode="sd", lookahead=5, draft_precision="int8", draft_head=32768),
    "ssd16+width8+children2+lookup0": Case(
        mode="ssd", lookahead=16, draft_width=8, draft_children=2, draft_lookup=0
    ),
    "ssd+growth=geometric+backup=ngram": Case(mode="ssd", growth="geometric", backup="ngram"),
}


@pytest.mark.parametrize(("text", "case"), SPELLED.items())
def test_spelling(text: str, case: Case) -> None:
    assert parse_case(text) == case
    assert case.name == text
    assert parse_case(case.label) == case


def test_settings_are_only_what_was_said() -> None:
    case = parse_case("ssd+int8+lookup0+t0.5+b4")
    assert case.settings == {"mode": "ssd"}
    assert case.draft_settings == {"precision": "int8", "lookup": 0}
    assert (case.temperature, case.batch_size, case.name) == (0.5, 4, "ssd+int8+lookup0")


@pytest.mark.parametrize("text", ["", "sdd", "ssd+int4", "ssd+width", "ssd+width1.5", "ar8b", "ssd+allcores"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"case|whole number|allcores"):
        parse_case(text)


def test_cases_at_every_temperature_and_batch_size() -> None:
    cases = cases_of("ar, ssd", [0.0, 1.0], [1, 8])
    assert [case.label for case in cases] == [
        f"{mode}+t{t}+b{b}" for mode in ("ar", "ssd") for t in (0, 1) for b in (1, 8)
    ]
    assert [case.label for case in cases_of("ssd+t1,ssd+b2", [0.0], [1])] == ["ssd+t1+b1", "ssd+t0+b2"]
    assert len(cases_of("ar,ar", [0.0], [1])) == 1
