"""What probes take at most: readings and questions rendered from the very items and pack.

What never belongs here: prices.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..forecast import Use, tokens_in
from .probe import ROLE, Probe, ProbeTask


def probe_use(probe: Probe, tasks: Iterable[ProbeTask]) -> dict[str, Use]:
    """What the candidate takes for all items: by readings of several continuations, and with a request for each."""
    whole, single = Use(), Use()
    for task in tasks:
        item = task.item
        shots = probe.shots.of(item) if probe.shots is not None and not task.second else []
        for method in ["loss"] if task.second else probe.methods:
            match method:
                case "loss":
                    use = Use(1, tokens_in(probe.questions.whole(item)))
                    whole, single = whole + use, single + use
                case "generate":
                    said = sum(tokens_in(message.content) for message in probe.questions.talk(item, shots).messages)
                    use = Use(1, said, probe.sampling.max_tokens)
                    whole, single = whole + use, single + use
                case _:
                    make = probe.questions.by_letter if method == "letter" else probe.questions.by_text
                    reading = make(item, shots)
                    before = tokens_in(reading.shared) + tokens_in(reading.context)
                    read = sum(map(tokens_in, reading.continuations))
                    whole += Use(1, before + read)
                    single += Use(len(reading.continuations), len(reading.continuations) * before + read)
    return {ROLE: whole, f"{ROLE}, one by one": single}
