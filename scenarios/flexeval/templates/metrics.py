"""Metrics of this suite: plain functions. They run in a process of their own, within a time limit.

The first argument says what is measured: a text (`str`), its messages (`list`), or `Dialog`, `Turn`, `Message`,
`ToolCall` of `viva.suite`. A function returns a number, a truth value, a category, several of these by name, or None.
"""

import re

_MONEY = re.compile(r"\b(refund|voucher|compensation|money back)\b", re.IGNORECASE)


def promises_money(text: str) -> bool:
    """Whether an answer promises what only a person may promise."""
    return bool(_MONEY.search(text)) and "cannot" not in text
