"""Links of the pages that lie outside of the site (whose build checks its own): each leads to a file and a heading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_pages import ROOT

_LINK = re.compile(r"\]\(([^)\s]+)\)")


def _anchors(page: Path) -> set[str]:
    """The names under which headings are found: small letters, blanks as hyphens, nothing but words."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", re.sub(r"`|\*|_", "", one).lower()).strip().replace(" ", "-") for one in headings}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_every_link_leads_somewhere(name: str) -> None:
    links = _LINK.findall((ROOT / name).read_text(encoding="utf-8"))
    assert links
    for link in links:
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        assert (ROOT / path).exists(), f"{name}: {link}"
        assert not anchor or anchor in _anchors(ROOT / path), f"{name}: {link}"


def test_the_readmes_pictures_are_in_the_checkout() -> None:
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert pictures
    assert all((ROOT / picture).is_file() for picture in pictures)
