"""The pages of the documentation, taken apart: blocks of code with what a comment before them tells the test.

A comment ``<!-- test: … -->`` stands right before a block (or before another such comment):

- ``skip, REASON``: not run; verbs and options of ``viva`` in it must exist all the same
- ``needs NAME, NAME``: files that the reader has, made by ``doc_files``
- ``file NAME``: the block is the content of that file (also a first line ``# NAME.py`` or ``# NAME.yaml``)
- ``replace, A => B; C => D``: what the test writes otherwise, to be quick
- ``exit N``, ``exit N or M``: how the block ends, where it depends on the speed of the machine
- ``terminals``: each command in a terminal of its own; the last one is awaited, the others end by Ctrl-C
- ``background``: a server that stands until the page ends
- ``output`` or ``output, figures vary``: what the block before printed, in the order of its lines; ``…`` stands for
  anything
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
_COMMENT = re.compile(r"<!--\s*test:\s*(.*?)\s*-->", re.DOTALL)
_NAMED = re.compile(r"\A# ([\w-]+\.\w+)\b")


@dataclass(slots=True)
class Block:
    """One fenced block; ``line`` counts from 1."""

    kind: str
    text: str
    line: int
    needs: list[str] = field(default_factory=list)
    skipped: str = ""
    file: str = ""
    replaced: list[tuple[str, str]] = field(default_factory=list)
    codes: list[int] = field(default_factory=lambda: [0])
    terminals: bool = False
    background: bool = False
    output: str = ""

    @property
    def as_run(self) -> str:
        """The text with what the test writes otherwise."""
        text = self.text
        for written, instead in self.replaced:
            assert written in text, f"line {self.line}: {written!r} is to be replaced and is not there"
            text = text.replace(written, instead)
        return text


def pages() -> list[Path]:
    """Every page that a reader may come to."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page in order."""
    found, told = [], []
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        if token.type == "html_block":
            told += _COMMENT.findall(token.content)
        elif token.type == "fence":
            assert token.map is not None
            block = Block(token.info.strip(), token.content, token.map[0] + 1)
            if named := _NAMED.match(token.content):
                block.file = named[1]
            for words in told:
                _tell(block, words)
            found.append(block)
            told = []
        elif told and token.nesting >= 0 and token.level == 0:
            raise AssertionError(f"{page.name}: no block follows the comment {told[0]!r}")
    return found


def code_spans(page: Path) -> list[str]:
    """What stands in backquotes in the text and tables of a page."""
    markdown = MarkdownIt("commonmark").enable("table")
    inline = [token for token in markdown.parse(page.read_text(encoding="utf-8")) if token.type == "inline"]
    return [child.content for token in inline for child in token.children or () if child.type == "code_inline"]


def _tell(block: Block, words: str) -> None:
    what, _, more = words.replace("\n", " ").partition(" ")
    match what.rstrip(","):
        case "skip":
            assert len(more) > 5, f"line {block.line}: why is it skipped?"
            block.skipped = more
        case "needs":
            block.needs += [name.strip() for name in more.split(",")]
        case "file":
            block.file = more
        case "replace":
            block.replaced += [(one.strip(), other.strip()) for one, _, other in _pairs(more)]
        case "exit":
            block.codes = [int(code) for code in more.split(" or ")]
        case "terminals":
            block.terminals = True
        case "background":
            block.background = True
        case "output":
            block.output = more or "as it stands"
        case _:
            raise AssertionError(f"line {block.line}: the comment {words!r} says nothing that is known")


def _pairs(text: str) -> list[tuple[str, str, str]]:
    return [pair.partition("=>") for pair in text.split(";")]
