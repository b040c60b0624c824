"""Accessibility of all pages of the viewer by axe-core, narrow and wide, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from axe import violations
from browser import Browser
from viewed_runs import make_runs, viewer

PAGES = ["/", "/conversations", "/conversations?run=kieval&candidate=novice", "/conversations?sort=score",
         "/matrix", "/matrix?run=kieval&behind=novice", "/selection?candidate=novice",
         "/c/kieval/1", "/c/dialogs/0", "/c/hostile/1",
         "/call/kieval/1/4", "/run/kieval", "/compare?a=kieval/4&b=fork/4", "/report", "/none"]  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = make_runs(tmp_path_factory.mktemp("viewed"))
    with viewer(root, tmp_path_factory.mktemp("index")) as address:
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{address}/c/none/1")  # is answered when the index is complete
        yield address


@pytest.mark.parametrize("path", PAGES)
def test_pages_have_no_violations(browser: Browser, site: str, path: str) -> None:
    for width, dark in ((360, True), (1440, False)):
        page = browser.open(f"{site}{path}", width, dark)
        assert violations(page) == [], f"{width} px, {'dark' if dark else 'light'}"
