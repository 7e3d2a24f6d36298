"""The tables of settings in docs/, from the configs themselves: python -m tests.settings_page writes them."""

from pathlib import Path
from typing import Literal, get_args, get_origin

from ssd.config import DraftConfig, EngineConfig
from ssd.config.schema import Field, fields_of
from ssd.config.server import ServerConfig
from ssd.integrations.vllm.settings import Settings

DOCS = Path(__file__).parent.parent / "docs"
PAGES: dict[str, dict[str, type]] = {
    "settings.md": {"Engine": EngineConfig, "Draft": DraftConfig, "Server": ServerConfig},
    "vllm-reference.md": {"Settings of the worker": Settings},
}
"""Whose settings the first table of a section tells."""


def made_anew(name: str) -> str:
    """A page with its tables as the configs have them."""
    page = (DOCS / name).read_text()
    for owner, config in PAGES[name].items():
        before, heading, section = page.partition(f"\n## {owner}\n")
        text, _, rest = section.partition("\n|")
        after = rest[rest.index("\n\n") :]
        page = before + heading + text + "\n" + "\n".join(_table(config)) + after
    return page


def _table(config: type) -> list[str]:
    rows = [
        f"| `{name}` | {_default(field)} | {_values(field)} | {field.about.help} |"
        for name, field in fields_of(config).items()
    ]
    return ["| setting | default | values | meaning |", "| --- | --- | --- | --- |", *rows]


def _default(field: Field) -> str:
    if field.default is None and not field.allows_none:
        return ""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if isinstance(field.default, int) and field.default >= size:
            return f"{field.default // size} {unit}"
    return f"{field.default:g}" if isinstance(field.default, float) else f"{field.default}"


def _values(field: Field) -> str:
    about = field.about
    if get_origin(field.kind) is Literal:
        return ", ".join(f"`{each}`" for each in get_args(field.kind))
    if about.multiple_of is not None:
        return f"multiples of {about.multiple_of}"
    if about.most is not None and field.kind is not str:
        return f"{about.least:,} to {about.most:,}"
    return "" if about.least is None else f"at least {about.least:,}"


if __name__ == "__main__":
    for each in PAGES:
        (DOCS / each).write_text(made_anew(each))
