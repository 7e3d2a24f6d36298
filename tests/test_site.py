"""The site of docs/: it builds without a warning, every link of it leads somewhere, nothing is fetched from
elsewhere."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(find_spec("mkdocs") is None, reason="needs the extra docs")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def _pages(site: Path) -> dict[Path, str]:
    # The page for addresses that lead nowhere is written for the root of a server.
    return {page: page.read_text() for page in site.rglob("*.html") if page.name != "404.html"}


def test_every_page_is_there(site: Path) -> None:
    built = {page.parent.name for page in _pages(site)}
    assert {page.stem for page in ROOT.glob("docs/*.md")} - {"index", "log"} <= built
    assert "log" not in built, "it is for developers, in the repository"


def test_links_and_anchors_lead_somewhere(site: Path) -> None:
    texts = _pages(site)
    broken = []
    for page, text in texts.items():
        for link in re.findall(r'(?:href|src)="([^"]+)"', text):
            if urlparse(link).scheme or link.startswith("//"):
                continue
            path, fragment = urldefrag(link)
            target = (page.parent / unquote(path)).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            is_there = target.exists() and (
                not fragment or target.suffix != ".html" or f'id="{unquote(fragment)}"' in texts[target]
            )
            if not is_there:
                broken.append((page.relative_to(site).as_posix(), link))
    assert broken == []


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    fetched = re.compile(
        r'<(?:script|img|iframe|source)[^>]*\bsrc="(?:https?:)?//|@import|url\("?(?:https?:)?//'
    )
    sheets = re.compile(r'<link[^>]*rel="(?:stylesheet|preconnect|preload|icon)"[^>]*href="(?:https?:)?//')
    pages = [*_pages(site).items(), *((page, page.read_text()) for page in site.rglob("*.css"))]
    assert [page.name for page, text in pages if fetched.search(text) or sheets.search(text)] == []
