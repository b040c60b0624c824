"""Accessibility of an opened page, checked by axe-core: WCAG 2.2 at the levels A and AA, and its best practices."""

from __future__ import annotations

import json
from importlib.resources import files

from browser import Page

LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def violations(page: Page) -> list[str]:
    """Return what axe objects to: rule, element, and what to fix. Folded parts are opened before."""
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8"))
    rules = json.dumps({"runOnly": LEVELS, "resultTypes": ["violations"]})
    page.evaluate(f"void axe.run(document, {rules}).then((one) => {{ window.axed = one; }})")
    rules_broken = page.until("window.axed?.violations")
    return [
        f"{rule['id']}: {node['target']}: {node['failureSummary']}" for rule in rules_broken for node in rule["nodes"]
    ]
