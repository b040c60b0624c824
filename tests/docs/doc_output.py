"""Whether what a page shows as output is what was printed."""

from __future__ import annotations

import re

from doc_pages import Block


def compare(block: Block, printed: str) -> None:
    """Every line that is shown stands in what was printed, in this order."""
    vary = block.output != "as it stands"
    ahead = iter([_plain(line, vary) for line in printed.splitlines()])
    for line in block.text.splitlines():
        if line.strip() in ("", "…"):
            continue
        wanted = re.compile(".*".join(re.escape(part.strip()) for part in _plain(line, vary).split("…")))
        assert any(wanted.fullmatch(one) for one in ahead), (
            f"line {block.line}: this is shown, but not printed (there): {line!r}\n{printed[-6000:]}"
        )


def _plain(line: str, vary: bool) -> str:
    """A line without what depends on the width of columns, and without its figures where these vary."""
    line = re.sub(r"─+", "─", " ".join(line.split()))
    return re.sub(r"[-+−]?\d[\d,.:]*", "0", line) if vary else line
