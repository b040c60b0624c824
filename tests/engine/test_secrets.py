"""A key is recognised in every form in which an endpoint or a library may give it back."""

from __future__ import annotations

import base64
import html
import json
from functools import partial
from itertools import pairwise
from urllib.parse import quote, quote_plus

import pytest
from case_tables import case_table
from hypothesis import given, settings
from hypothesis import strategies as some

from viva.engine.backends.redaction import RedactedStream, Redactor

_PRINTABLE = "".join(chr(number) for number in range(33, 127) if chr(number) != "\\")
# A key holds a digit and is long enough: else it is a placeholder, or its half is nothing to speak of.
keys = some.text(_PRINTABLE, min_size=12, max_size=40).map(lambda text: "k7-" + text)
around = some.text(max_size=12).filter(lambda text: not set(text) & set("\\%&"))
ENCODINGS = {
    "raw": str,
    "json": lambda text: json.dumps(text)[1:-1],
    "json twice": lambda text: json.dumps(json.dumps(text)[1:-1])[1:-1],
    "slashes": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "unicode": lambda text: "".join(f"\\u{ord(one):04x}" for one in text),
    "UNICODE": lambda text: "".join(f"\\u{ord(one):04X}" for one in text),
    "some unicode": lambda text: "".join(f"\\u{ord(one):04x}" if ord(one) % 2 else one for one in text),
    "percent": lambda text: quote(text, safe=""),
    "percent plus": quote_plus,
    "all percent": lambda text: "".join(f"%{ord(one):02x}" for one in text),
    "percent twice": lambda text: quote(quote(text, safe="")),
    "html": html.escape,
    "html numbers": lambda text: "".join(f"&#{ord(one)};" for one in text),
    "repr": lambda text: repr(text + "'\"")[1:-1].removesuffix("\\'\""),
    "repr of bytes": lambda text: repr(text.encode() + b"'\"")[2:-1].removesuffix("\\'\""),
}


@settings(max_examples=60)
@given(key=keys, encoding=some.sampled_from(sorted(ENCODINGS)), before=around, after=around)
def test_line_18_no_form_of_a_key_is_left(key: str, encoding: str, before: str, after: str) -> None:
    assert Redactor(key)(before + ENCODINGS[encoding](key) + after) == f"{before}***{after}"


@settings(max_examples=60)
@given(key=keys, user=some.text(_PRINTABLE, max_size=6), safe=some.booleans())
def test_line_18_no_key_inside_base64(key: str, user: str, safe: bool) -> None:
    encode = base64.urlsafe_b64encode if safe else base64.b64encode
    login = encode(f"{user}:{key}".encode()).decode()
    shown = Redactor(key)(f"Authorization: Basic {login}")
    assert "***" in shown
    middle = login[len(login) // 2 - 3 : len(login) // 2 + 3]
    assert middle not in shown.replace("Authorization: Basic", "")


@settings(max_examples=60)
@given(key=keys, encoding=some.sampled_from(sorted(ENCODINGS)), cuts=some.lists(some.integers(0, 200)), before=around)
def test_line_18_a_key_in_pieces_is_not_handed_on(key: str, encoding: str, cuts: list[int], before: str) -> None:
    text = f"{before}{ENCODINGS[encoding](key)} and so on"
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces: list[str] = []
    stream = RedactedStream(Redactor(key), pieces.append)
    for start, end in pairwise(places):
        stream.feed(text[start:end])
    stream.finish()
    said = "".join(pieces)
    assert said == Redactor(key)(text)
    assert key not in said


@case_table("encoding", ENCODINGS)
@case_table("key", ["k7-unux", "x0u-%25&amp;#38;lt;", "u;&;%u&#;x0"])
def test_a_key_of_the_signs_of_escapes_in_pieces_is_not_handed_on(key: str, encoding: str) -> None:
    # A backslash and a "u" may be an escaped "u" of the key, or the beginning of one: what follows tells.
    key += "-Ju4x&Q9%TzLw2NfR8sKb5Yk"
    text = f"so {ENCODINGS[encoding](key)} and so on"
    for size in (1, 9):
        pieces: list[str] = []
        stream = RedactedStream(Redactor(key), pieces.append)
        for start in range(0, len(text), size):
            stream.feed(text[start : start + size])
        stream.finish()
        assert "".join(pieces).replace(";", "") == "so *** and so on"


def _base64(text: str, before: int, safe: bool, padded: bool) -> str:
    encoded = (base64.urlsafe_b64encode if safe else base64.b64encode)(b"u:x"[:before] + text.encode()).decode()
    return encoded if padded else encoded.rstrip("=")


# Forms that hold the key as a part of something: what is left of them may be a few characters at both ends.
INSIDE = {
    f"base64 {before}{' safe' * safe}{' padded' * padded}": partial(_base64, before=before, safe=safe, padded=padded)
    for before in range(3)
    for safe in (False, True)
    for padded in (False, True)
}
INSIDE |= {
    "base64 twice": lambda text: _base64(_base64(text, 2, False, True), 0, False, True),
    "base64 twice, safe": lambda text: _base64(_base64(text, 1, True, False), 2, True, False),
    "base64 in percent": lambda text: quote(_base64(text, 1, False, True), safe=""),
    "hex": lambda text: text.encode().hex(),
    "HEX": lambda text: text.encode().hex().upper(),
    "upper": str.upper,
    "lower": str.lower,
    "swapped": str.swapcase,
    "upper percent": lambda text: quote(text.upper(), safe=""),
    "lower json": lambda text: json.dumps(text.lower())[1:-1],
}
_LONG = 'Steel takes heat from the hand; "wood" does not: 50% of it, \\u0026 &amp; so on.\n' * 14_000


def _streamed(redactor: Redactor, text: str, places: list[int]) -> str:
    pieces: list[str] = []
    stream = RedactedStream(redactor, pieces.append)
    for start, end in pairwise(sorted({0, len(text), *(place for place in places if 0 < place < len(text))})):
        stream.feed(text[start:end])
    stream.finish()
    return "".join(pieces)


def _left(encoded: str, shown: str) -> list[str]:
    """What of an encoded key, but for its ends, is still shown."""
    return [part for part in (encoded[at : at + 8] for at in range(3, len(encoded) - 14)) if part in shown]


@settings(max_examples=150)
@given(
    key=keys, form=some.sampled_from(sorted(ENCODINGS | INSIDE)), before=around, cuts=some.lists(some.integers(0, 90))
)
def test_s5_every_encoding_of_a_key_is_masked_wherever_a_stream_is_cut(
    key: str, form: str, before: str, cuts: list[int]
) -> None:
    encoded = (ENCODINGS | INSIDE)[form](key)
    text = f"{before} {encoded} and so on"
    shown = Redactor(key)(text)
    assert "***" in shown
    assert shown.endswith(" and so on")
    assert not _left(encoded, shown.replace(before, "", 1))
    assert _streamed(Redactor(key), text, cuts) == shown


def test_s5_the_length_of_an_answer_does_not_matter() -> None:
    assert len(_LONG) > 1_048_576
    key = "sk-9f+Qz/7Lw&2NfR 8sKb5Yk%Jh4x"
    encodings = [encode(key) for encode in (ENCODINGS | INSIDE).values()]
    size = len(_LONG) // len(encodings) + 1
    text = "".join(f"{_LONG[place * size :][:size]} {encoded} " for place, encoded in enumerate(encodings))
    shown = Redactor(key)(text)
    assert shown.count("***") == len(encodings)
    assert not [encoded for encoded in encodings if encoded[len(encoded) // 2 :][:8] in shown]
    outside = [text[at : at + 40] for at in range(0, len(text), 9973) if text[at : at + 40] in _LONG]
    assert outside
    assert all(part in shown for part in outside)
    assert _streamed(Redactor(key), text, list(range(0, len(text), 4001))) == shown


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_s5_a_key_that_stands_directly_behind_another_form_of_it_is_masked(size: int) -> None:
    key = "sk-9f+Qz/7Lw2NfR8sKb5Yk"
    encodings = [encode(key) for encode in (ENCODINGS | INSIDE).values()]
    for encoded in encodings:
        text = encoded + key + encoded + key.encode().hex()
        for shown in (Redactor(key)(text), _streamed(Redactor(key), text, list(range(0, len(text), size)))):
            assert not _left(encoded, shown)
            assert not _left(key, shown)
            assert not _left(key.encode().hex(), shown)


def test_s5_a_stream_holds_back_no_more_than_a_key_takes() -> None:
    redactor, told = Redactor("sk-0123456789abcdef"), [0]

    def hear(piece: str) -> None:
        told[0] += len(piece)

    stream = RedactedStream(redactor, hear)
    said = 0
    for piece in ("sk-0123456789abcde", "c2stMDEyMzQ1Njc4OWFiY2R", "\\u0073\\u006b", "%73%6b%2d", "and so on ") * 300:
        stream.feed(piece)
        said += len(piece)
        assert said - told[0] <= redactor.longest


@case_table("key", ["EMPTY", "1", "ab", "sk-12", "hunter2"])
def test_s5_short_keys_mask_no_ordinary_text(key: str) -> None:
    ordinary = "HTTP 401: an emptyish table of 12 tokens, EMPTYING 21 tabs: unabated, sk-123, shunter2"
    shown = Redactor(key)(ordinary)
    assert shown == ordinary
    assert Redactor(key).answer(f"It is {key}.") == f"It is {key}."
    assert Redactor(key)(f"bad key '{key}'") == "bad key '***'"


@given(some.text())
def test_line_18_other_texts_stay_as_they_are(text: str) -> None:
    redactor, pieces = Redactor("sk-0123456789abcdef"), list[str]()
    stream = RedactedStream(redactor, pieces.append)
    for character in text:
        stream.feed(character)
    stream.finish()
    assert (redactor(text), "".join(pieces)) == (text, text)


@case_table("key", ["EMPTY", "ollama", "lm-studio", "not-needed", "sk-no-key-required"])
def test_line_18_a_placeholder_is_no_secret_in_an_answer(key: str) -> None:
    assert Redactor(key).answer(f"They use {key} there.") == f"They use {key} there."
    assert key not in Redactor(key)(f"wrong key {key}")


@pytest.mark.parametrize("text", ["\\" * 20_000 + "x", "%25" * 7_000, "&amp;" * 4_000 + "#", "s" * 20_000])
def test_line_18_long_texts_take_no_long_search(text: str) -> None:
    redactor = Redactor("s" * 60 + "%&1")
    assert redactor(text) == text
