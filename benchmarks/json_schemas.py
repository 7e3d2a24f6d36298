"""Fifty JSON schemas of things that programs ask models for, each with the words that ask for it.

A line is a thing and its fields: `name` a text, `name#` a whole number, `name%` a number, `name?` yes or no,
`name=a|b` one of these, `name*` a list of texts, `name{...}` an object, `name[...]` a list of objects. A
field with a tilde in front may be missing.
"""

import re
from typing import Any

_THINGS = """
a person: first_name last_name age# email
a book: title author year# pages# genre=novel|poetry|science|history
a recipe for pancakes: title servings# ingredients* steps*
a weather report for Oslo: city temperature% wind% sky=clear|cloudy|rain|snow
an order in a shop: order_id# customer{name email} items[product quantity# price%]
a bank account: owner iban balance% currency=EUR|USD|GBP
a film: title director year# rating% actors*
a song: title artist seconds# explicit?
a country: name capital population# languages*
a city with its sights: name country sights[name kind=museum|park|church|bridge]
a bug report: title severity=low|medium|high|critical steps* is_reproducible?
a pull request: title author files* is_draft? num_comments#
a meeting: subject start end attendees* room
an event in a calendar: title date place is_all_day?
a hotel: name stars# rooms[kind=single|double|suite price%]
a flight: number from to departure arrival seats#
a car: maker model year# engine{kind=petrol|diesel|electric power#}
a bicycle: brand frame_size# gears# is_electric?
a planet: name radius_km# moons* has_rings?
a star: name distance% spectral_class=O|B|A|F|G|K|M
a chemical element: name symbol number# mass%
a dog: name breed age# is_vaccinated? ~owner
a tree in a park: species height% session#
a football match: home away home_goals# away_goals# scorers[name minute#]
a chess game: white black result=1-0|0-1|1/2-1/2 moves*
a patient: name age# symptoms* ~allergies*
a prescription: medicine dose_mg# times_a_day# days#
a job advertisement: title company salary{from# to#} skills*
a curriculum vitae: name jobs[company title from# to#] ~languages*
a school class: teacher grade# pupils[name age#]
an exam: subject date points# passed?
a lecture: title lecturer topics* minutes#
a server: host cpus# memory_gb# state=running|stopped|failed
a deployment: service version replicas# env=dev|staging|production
a database table: name columns[name type=integer|text|boolean|timestamp is_nullable?]
an alert: metric threshold% level=info|warning|page message
a log entry: time level=DEBUG|INFO|WARNING|ERROR module message
a user of a forum: nickname joined posts# is_moderator?
a review of a restaurant: restaurant stars# text would_return?
a menu: starters* mains* desserts*
an invoice: number date lines[text amount%] total%
a parcel: tracking_id weight% sender{name city} receiver{name city}
a house for sale: street rooms# area% price# has_garden?
a painting: title painter year# technique=oil|watercolour|fresco|ink
a museum: name city collections* opening{opens closes}
a river: name length_km# countries*
a mountain: name height_m# range ~first_ascent#
a translation: source target text translated
a sentiment of "I love this phone": label=positive|negative|neutral confidence%
a function call: function arguments{path line# text} is_async?
"""
_FIELD = re.compile(r"(~?)(\w+)(?:=([^\s\]}]+)|([#%?*])|([\[{])(.*?)[\]}](?=\s|$))?(?:\s+|$)")
_KINDS = {"#": "integer", "%": "number", "?": "boolean", None: "string"}


def schemas() -> list[tuple[str, dict[str, Any]]]:
    """What is asked for, and how it must look."""
    lines = (line.rpartition(": ") for line in _THINGS.strip().splitlines())
    return [(f"Give me {thing} as JSON.", _object(fields)) for thing, _colon, fields in lines]


def _object(fields: str) -> dict[str, Any]:
    properties, required = dict[str, Any](), list[str]()
    for optional, name, choices, mark, bracket, inside in _FIELD.findall(fields):
        properties[name] = _value(choices, mark or None, bracket, inside)
        if not optional:
            required.append(name)
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _value(choices: str, mark: str | None, bracket: str, inside: str) -> dict[str, Any]:
    if choices:
        return {"enum": choices.split("|")}
    if bracket == "{":
        return _object(inside)
    if mark == "*" or bracket == "[":
        items = _object(inside) if bracket else {"type": "string"}
        return {"type": "array", "items": items, "minItems": 1, "maxItems": 4}
    return {"type": _KINDS[mark]}
