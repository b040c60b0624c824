"""Accessibility of an opened page, checked by axe-core: WCAG 2.2 at the levels A and AA, and its best practices."""

from __future__ import annotations

import json
from importlib.resources import files

from browser import Page

LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
OF_LOOK = ["color-contrast", "scrollable-region-focusable", "target-size"]  # whose answers depend on width or theme


def violations(page: Page, only: list[str] | None = None) -> list[str]:
    """Return what axe objects to: rule, element, and what to fix. Folded parts are opened before.

    Args:
        page: An opened page.
        only: Names of rules; without, those of `LEVELS`.
    """
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8"))
    chosen = LEVELS if only is None else {"type": "rule", "values": only}
    options = json.dumps({"runOnly": chosen, "resultTypes": ["violations"]})
    page.evaluate(f"void axe.run(document, {options}).then((one) => {{ window.axed = one; }})")
    rules_broken = page.until("window.axed?.violations")
    return [
        f"{rule['id']}: {node['target']}: {node['failureSummary']}" for rule in rules_broken for node in rule["nodes"]
    ]
