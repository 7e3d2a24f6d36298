"""Hooks of mkdocs: what the repository shows beside docs/, for the site.

Knows two things. Some pages outside docs/ become pages of the site. A link to a file that the site does not
have (outside docs/, or excluded by mkdocs.yml) leads to the repository, where pyproject.toml says where that
is, and is plain text otherwise. Links between pages are written as GitHub needs them, and stay.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {
    name: f"{Path(name).stem.lower()}.md"
    for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/RESULTS.md")
    if (ROOT / name).exists()
}
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?://|#)([^)#]+)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    for name, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Links as seen from a page of docs/; those from elsewhere are there as well now."""
    sources = {page: name for name, page in PAGES.items()}
    folder = (ROOT / sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")).parent

    def placed(match: re.Match[str]) -> str:
        text, link, fragment = match[1], match[2], match[3] or ""
        target = (folder / link).resolve()
        if not target.exists():
            raise PluginError(f"{page.file.src_uri}: {link} leads nowhere")
        within = target.relative_to(ROOT).as_posix()
        if within in PAGES:
            return f"[{text}]({PAGES[within]}{fragment})"
        if within == "README.md":
            return f"[{text}](index.md)"
        file = files.get_file_from_path(within.removeprefix("docs/")) if within.startswith("docs/") else None
        if file is not None and not file.inclusion.is_excluded():
            return f"[{text}]({file.src_uri}{fragment})"
        return f"[{text}]({_repository()}{within})" if _repository() else text

    # Code is shown as it is.
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(placed, part) for part in parts)


def _repository() -> str:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {})
    home = urls.get("Source") or urls.get("Repository") or ""
    return f"{home.rstrip('/')}/blob/main/" if home else ""
