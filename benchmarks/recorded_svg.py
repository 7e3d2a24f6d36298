"""Draws what a program wrote to a terminal, and when, as an animated SVG without scripts.

Each piece of text appears by a CSS animation when it was written; the animation repeats. Knows text, line
ends and the colours of SGR sequences; other control sequences are dropped, so it is for programs that write
from top to bottom. Readable on light and dark pages: the colours follow the reader's colour scheme.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT, _MARGIN = 8.4, 19.0, 14.0
"""Of a character, a line and the border, in pixels."""
_PAUSE, _START = 0.6, 1.0
"""Longest pause that is kept, and the time before the first piece, in seconds."""
_HOLD = 6.0
"""Seconds that the whole text is shown before it begins again."""
_SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b\][^\x07]*\x07")
_STYLES = {"1": "b", "2": "d", "32": "g", "33": "y", "34": "u", "31": "r"}
"""CSS class by SGR number: bold, dim, green, yellow, blue, red."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a program wrote at once."""

    seconds: float
    text: str


@dataclass(frozen=True, slots=True)
class _Piece:
    """Text of one style on one line."""

    seconds: float
    line: int
    column: int
    style: str
    text: str


def draw(chunks: Sequence[Chunk], *, columns: int, prompt: str) -> str:
    """The picture. `prompt`: the command line, shown before anything is written."""
    pieces = [*_wrapped_prompt(prompt, columns)]
    first = pieces[-1].line + 1
    pieces += _pieces(list(_paced(chunks)), columns, first)
    end = max(piece.seconds for piece in pieces) + _HOLD
    num_lines = max(piece.line for piece in pieces) + 1
    width, height = columns * _WIDTH + 2 * _MARGIN, num_lines * _HEIGHT + 2 * _MARGIN
    moments = sorted({piece.seconds for piece in pieces})
    frames = "\n".join(
        f"@keyframes k{place}{{0%,{100 * moment / end:.2f}%{{opacity:0}}"
        f"{min(100.0, 100 * moment / end + 0.01):.2f}%,100%{{opacity:1}}}}"
        f".k{place}{{animation:k{place} {end:.2f}s infinite}}"
        for place, moment in enumerate(moments)
        if moment
    )
    texts = "\n".join(_text(piece, moments.index(piece.seconds)) for piece in pieces)
    box = f'viewBox="0 0 {width:.0f} {height:.0f}" role="img"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" {box}>
<title>{escape(prompt)}</title>
<style>
svg{{color-scheme:light dark;--p:#fbfbf9;--i:#1d2024;--f:#6b7178;
--g:#17803d;--y:#9a6700;--u:#1f5fbf;--r:#b42318}}
@media(prefers-color-scheme:dark){{svg{{--p:#15171a;--i:#e3e5e8;--f:#8d949c;
--g:#6fd08c;--y:#e3b341;--u:#7fb0ff;--r:#ff8a80}}}}
rect{{fill:var(--p);stroke:var(--f);stroke-opacity:.4}}
text{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:var(--i);white-space:pre}}
.b{{font-weight:700}}.d{{fill:var(--f)}}.g{{fill:var(--g)}}.y{{fill:var(--y)}}.u{{fill:var(--u)}}.r{{fill:var(--r)}}
{frames}
@media(prefers-reduced-motion:reduce){{text{{animation:none!important}}}}
</style>
<rect x=".5" y=".5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="8"/>
{texts}
</svg>
"""


def _text(piece: _Piece, moment: int) -> str:
    x, y = _MARGIN + piece.column * _WIDTH, _MARGIN + (piece.line + 0.75) * _HEIGHT
    styles = " ".join(filter(None, (piece.style, f"k{moment}" if piece.seconds else "")))
    named = f' class="{styles}"' if styles else ""
    # The width is set, so that columns stay in line with any font.
    length = f' textLength="{len(piece.text) * _WIDTH:.1f}"'
    return f'<text x="{x:.1f}" y="{y:.1f}"{length}{named}>{escape(piece.text, quote=False)}</text>'


def _wrapped_prompt(prompt: str, columns: int) -> Iterator[_Piece]:
    for line in range(-(-len(prompt) // columns)):
        yield _Piece(0.0, line, 0, "b", prompt[line * columns : (line + 1) * columns])


def _paced(chunks: Sequence[Chunk]) -> Iterator[Chunk]:
    """The chunks in their rhythm, without long pauses such as the loading of models."""
    now, before = _START, chunks[0].seconds if chunks else 0.0
    for chunk in chunks:
        now += min(_PAUSE, chunk.seconds - before)
        before = chunk.seconds
        yield Chunk(round(now, 2), chunk.text)


def _pieces(chunks: Sequence[Chunk], columns: int, first_line: int) -> Iterator[_Piece]:
    """Lines that are too long go on in the next one, as in a terminal."""
    line, column, style = first_line, 0, ""
    for chunk in chunks:
        for text, numbers in _styled(chunk.text):
            for part in re.split(r"(\r?\n|\r)", text):
                if part.endswith("\n"):
                    line, column = line + 1, 0
                elif part == "\r":
                    column = 0
                else:
                    for start, word in _fitting(part, columns, column):
                        if start == 0 and column:
                            line += 1
                        if word.strip():
                            yield _Piece(chunk.seconds, line, start, style, word)
                        column = start + len(word)
            if numbers is not None:
                style = " ".join(_STYLES[each] for each in numbers.split(";") if each in _STYLES)


def _fitting(text: str, columns: int, column: int) -> Iterator[tuple[int, str]]:
    """Parts of a text with their first columns."""
    text = text.replace("\t", "    ")
    while text:
        if column >= columns:
            column = 0
        yield column, text[: columns - column]
        text, column = text[columns - column :], columns


def _styled(text: str) -> Iterator[tuple[str, str | None]]:
    """Texts, each with the SGR numbers that follow it; None: another sequence, or the end."""
    place = 0
    for match in _SEQUENCE.finditer(text):
        yield text[place : match.start()], (match[1] or "0") if match[2] == "m" else None
        place = match.end()
    yield text[place:], None
