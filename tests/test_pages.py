"""README and docs as pages: links that lead somewhere, lines that can be read. Needs only the files."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "benchmarks/RESULTS.md",
    "examples/llamacpp/README.md",
    *sorted(f"docs/{p.name}" for p in ROOT.glob("docs/*.md")),
]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere_on_github(page: str) -> None:
    """What the site makes of them is held by tests/test_site.py."""
    broken = []
    for link, _, anchor in re.findall(r"\]\((?!http)([^)#]*)(#([^)]*))?\)", (ROOT / page).read_text()):
        target = (ROOT / page).parent / link if link else ROOT / page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append((link, anchor))
    assert broken == []


def _anchors(page: Path) -> set[str]:
    """As GitHub names headings."""
    without_code = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", without_code, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_lines_are_read_without_scrolling(page: str) -> None:
    """At most 100 characters but in tables, code and links that cannot be broken."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith("|")]
    unbreakable = re.compile(r"\s*(- )?(!?\[[^\]]*\]\([^)]*\)|\S+)[.,:]?")
    assert [line for line in lines if len(line) > 100 and not unbreakable.fullmatch(line)] == []


def test_a_page_is_read_in_one_sitting() -> None:
    """At most 250 lines, but in the reference, where one looks things up, and in what the site leaves out."""
    site = (ROOT / "mkdocs.yml").read_text()
    reference = re.findall(
        r": ([\w-]+\.md)$", site.split("- Reference:")[1].split("- Explanation:")[0], re.MULTILINE
    )
    assert "settings.md" in reference
    exempt = {*reference, *re.findall(r"^exclude_docs: (\S+)", site, re.MULTILINE)}
    pages = [page for page in ROOT.glob("docs/*.md") if page.name not in exempt]
    assert {page.name: n for page in pages if (n := len(page.read_text().splitlines())) > 250} == {}


def test_readme_is_short() -> None:
    readme = (ROOT / "README.md").read_text().splitlines()
    assert len(readme) <= 130
    assert [line for line in readme if len(line) > 100] == []


def test_every_picture_is_on_a_page() -> None:
    text = "".join((ROOT / page).read_text() for page in PAGES)
    pictures = {path.name for path in (ROOT / "docs/pictures").iterdir()}
    assert {name for name in pictures if f"pictures/{name}" not in text} == set()
