"""Drawings: what a reader finds in them, the same bytes each time, and names that nothing breaks."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viva.scoring.correlation import Figures, fits
from viva.scoring.plots import regression, rounds, rows, running, style

pytest.importorskip("matplotlib")

TEXT = "{http://www.w3.org/2000/svg}text"
NASTY = ["$x_{$", "<script>alert(1)</script>", "a & b", "模型\x07", "x" * 60 + "1", "x" * 60 + "2", "plain"]
FEW = [f"model {number}" for number in range(style.LINES)]
MANY = [f"model {number}" for number in range(30)]


def _texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(TEXT)]


def _curves(names: list[str]) -> list[rounds.Curve]:
    return [
        rounds.Curve(name, [rounds.Step(step, 90 - 2 * at - step, (3.0, 2.0)) for step in (1, 2, 3)])
        for at, name in enumerate(names)
    ]


def _tracks(names: list[str]) -> list[running.Track]:
    n = list(range(2, 200))
    tracks = []
    for at, name in enumerate(names):
        means = [80 - at + 10 / one for one in n]
        run = running.Run(n, means, [m - 40 / i for m, i in zip(means, n, strict=True)], [m + 1 for m in means])
        tracks.append(running.Track(name, [run, run]))
    return tracks


def _stops(names: list[str]) -> str:
    found = [rows.Stops(name, 50, {"off_topic": 10, "budget": 2}) for name in names]
    return rows.stops("set (n = 50 talks each)", found, rows.shown_reasons(found))


def _aspects(names: list[str]) -> str:
    overall = {name: rows.Dot(60.0, (4.0, 3.0)) for name in names}
    return rows.aspects("set (n = 50 talks each)", overall, {name: {"logic": rows.Dot(70.0)} for name in names})


def _regression(names: list[str]) -> str:
    group = [Figures(name, "set", 10.0 * at, 8.0 * at + (at == 2) * 40, 1.0, 1.0) for at, name in enumerate(names)]
    return regression.regression("set (n = 7 models)", group, fits(group)["set"], ("accuracy, %", "score, 0–100"))


DRAWINGS: dict[str, Callable[[list[str]], str]] = {
    "survival": lambda names: rounds.survival("set (n = 50 talks each)", _curves(names)),
    "rounds": lambda names: rounds.scores("set (n = 50 talks each)", _curves(names)),
    "running": lambda names: running.running("set (n = 50 talks each)", _tracks(names)),
    "aspects": _aspects,
    "stops": _stops,
    "regression": _regression,
}
LABELS = {
    "survival": {"round", "talks that held the round, %"},
    "rounds": {"round", "score of the round, 0–100"},
    "running": {"talks so far", "running mean score, 0–100"},
    "aspects": {"mean score, 0–100", "logic", "overall, 95% interval"},
    "stops": {"share of talks, %", "off_topic", "budget"},
    "regression": {"accuracy, %", "score, 0–100"},
}


@pytest.mark.parametrize("kind", DRAWINGS)
def test_few_candidates_are_all_named_and_axes_say_what_they_show(kind: str) -> None:
    texts = _texts(DRAWINGS[kind](FEW))
    assert set(FEW) | LABELS[kind] <= set(texts)
    assert any(re.search(r"\(n = \d+ ", text) for text in texts)


@pytest.mark.parametrize("kind", [name for name in DRAWINGS if name != "regression"])
def test_thirty_candidates_are_all_named_once(kind: str) -> None:
    texts = _texts(DRAWINGS[kind](MANY))
    assert [text for text in texts if text in MANY] == MANY


def test_of_many_models_only_those_off_the_line_are_named_beside_it() -> None:
    assert [text for text in _texts(_regression(MANY)) if text in MANY] == ["model 2"]


@pytest.mark.parametrize("kind", DRAWINGS)
def test_names_are_text_and_the_same_figures_are_the_same_bytes(kind: str) -> None:
    drawn = DRAWINGS[kind](NASTY)
    assert DRAWINGS[kind](NASTY) == drawn
    texts = _texts(drawn)  # well-formed, whatever stands in a name
    assert {"$x_{$", "a & b", r"模型\x07", "plain"} <= set(texts)
    assert len({text for text in texts if text.startswith("xxx")}) == 2
    assert "<script" not in drawn


def test_many_candidates_rounds_are_numbers_in_cells() -> None:
    curves = [rounds.Curve(name, [rounds.Step(1, 100), rounds.Step(2, 40 + at)]) for at, name in enumerate(MANY)]
    texts = _texts(rounds.survival("set", curves))
    assert "round (cells: talks that held the round, %)" in texts
    assert texts.count("100") == 30
    assert {str(40 + at) for at in range(30)} <= set(texts)


def test_reasons_beyond_the_colours_are_drawn_together() -> None:
    reasons = {f"reason {number}": 20 - number for number in range(10)}
    found = [rows.Stops("one", 200, reasons), rows.Stops("none", 0, {})]
    texts = _texts(rows.stops("set", found, rows.shown_reasons(found)))
    shown = [text for text in texts if text.startswith("reason")]
    assert shown == [f"reason {number}" for number in range(rows.REASONS - 1)]
    assert rows.OTHERS in texts
    assert rows.HELD in texts


def test_a_reason_has_its_colour_in_every_panel() -> None:
    first, second = rows.Stops("one", 50, {"a": 20, "b": 10}), rows.Stops("one", 50, {"b": 12})
    reasons = rows.shown_reasons([first, second])
    assert reasons == (["b", "a"], [])
    orange = style.colour(style.SERIES[1])
    assert [rows.stops("set", [one], reasons).count(orange) for one in (first, second)] == [2, 1]  # legend, bar


def test_a_short_run_and_a_lone_candidate_can_be_drawn() -> None:
    one = running.Track("only", [running.Run([2], [50.0], [40.0], [60.0])])
    assert "only" in _texts(running.running("set", [one]))
    assert "only" in _texts(rounds.scores("set", [rounds.Curve("only", [rounds.Step(1, 50.0)])]))
    assert "only" in _texts(regression.regression("set", [Figures("only", "set", 1, 2)], None, ("x", "y")))


@given(st.lists(st.text(max_size=50), unique=True, max_size=20), st.integers(12, 30))
def test_cut_names_fit_and_stay_apart(names: list[str], room: int) -> None:
    cut = style.short(names, room)
    assert list(cut) == names
    assert len(set(cut.values())) == len(names)
    assert all(style.columns(text) <= room + 4 for text in cut.values())
    assert all(
        cut[name] == name for name in names if style.columns(name) <= room and "…" not in name and "(" not in name
    )


def _luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize("name", [name for name in style.COLOURS if name not in ("paper", "grid", "rest")])
def test_what_is_drawn_can_be_seen_on_light_and_on_dark(name: str, theme: int) -> None:
    assert _contrast(style.COLOURS[name][theme], style.COLOURS["paper"][theme]) >= 4.5


def test_no_two_colours_are_alike_on_white() -> None:
    light = sorted(one for one, _ in style.COLOURS.values())
    assert all(one != other for one, other in pairwise(light))
