"""The renderer of terminal recordings, on a short recording."""

import re
import sys
import xml.etree.ElementTree as ElementTree

from benchmarks.recorded_svg import Chunk, draw
from benchmarks.screenshots import recorded

_SVG = "{http://www.w3.org/2000/svg}"
RECORDING = [
    Chunk(20.0, "colours: \x1b[32mdrafted\x1b[0m\r\n"),
    Chunk(20.2, "\x1b[1;33ma <b>\x1b[0m" + "x" * 20),
    Chunk(60.0, "\x1b[2K\x1b]0;title\x07end"),
]


def texts(svg: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(f"{_SVG}text"))


def test_text_stands_where_a_terminal_has_it() -> None:
    found = texts(draw(RECORDING, columns=16, prompt="$ ssd generate model"))
    assert [each.text for each in found] == [
        "$ ssd generate m", "odel", "colours: ", "drafted", "a <b>", "x" * 11, "x" * 9, "end",
    ]  # fmt: skip
    lines = [float(each.attrib["y"]) for each in found]
    assert lines == sorted(lines)
    assert len(set(lines)) == 5
    assert float(found[3].attrib["x"]) > float(found[2].attrib["x"])
    assert found[3].attrib["class"].split()[0] == "g"
    assert found[4].attrib["class"].split()[:2] == ["b", "y"]


def test_each_moment_has_an_animation_and_long_pauses_are_cut() -> None:
    svg = draw(RECORDING, columns=40, prompt="$ ssd")
    assert re.findall(r"animation:(k\d+) ([\d.]+)s", svg) == [(f"k{place}", "7.80") for place in (1, 2, 3)]
    starts = [float(each) for each in re.findall(r"\{0%,([\d.]+)%\{opacity:0\}", svg)]
    assert starts == sorted(starts)
    assert "prefers-color-scheme" in svg
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_a_command_is_recorded_as_it_writes_to_a_terminal() -> None:
    program = "import sys; print(sys.stdout.isatty(), flush=True); input_ = sys.stdin.read(); print('end')"
    chunks = recorded([sys.executable, "-c", program])
    assert "".join(each.text for each in chunks).split() == ["True", "end"]
    assert [each.seconds for each in chunks] == sorted(each.seconds for each in chunks)
