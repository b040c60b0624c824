"""A reply of any length is judged in time that is bounded, and what is read of it is read as before."""

from __future__ import annotations

import time

from viva.agents.forms import MAX_READ_CHARS
from viva.engine.messages import Message
from viva.lab.interview import read_exchanges
from viva.lab.world import World

WORLD = World(1)


def _seconds(text: str) -> float:
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        WORLD.claims(text)
        best = min(best, time.process_time() - began)
    return best


def test_line_16_claims_are_found_in_proportion_to_the_text() -> None:
    clause = "its colour is amber "
    # A megabyte of it took minutes.
    assert _seconds(clause * 8_000) < 40 * _seconds(clause * 500) + 0.02


def test_line_16_of_a_long_reply_the_oracle_reads_the_beginning_and_the_end() -> None:
    reply = "It is amber. " + "So it goes on. " * 20_000 + "That is all."
    shown = f"[BEGIN INTERACTOR]\nWhy?\n[END INTERACTOR]\n\n[BEGIN CANDIDATE]\n{reply}\n[END CANDIDATE]"
    [exchange] = read_exchanges([Message("user", shown)])
    assert len(exchange.reply) <= MAX_READ_CHARS + 1
    assert (exchange.reply[:12], exchange.reply[-12:]) == ("It is amber.", "That is all.")


def test_it_is_said_of_the_mineral_named_last() -> None:
    first, second = WORLD.entities[:2]
    text = f"{first}: its colour is amber. The texture of {second} is chalky, and its region is Ashfen."
    said = [(claim.entity, claim.attribute) for claim in WORLD.claims(text)]
    assert said == [(first, "colour"), (second, "texture"), (second, "region")]
