"""Drawings: what a reader finds in them, the same bytes each time, and names that nothing breaks."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from case_tables import case_table
from hypothesis import given
from hypothesis import strategies as st

from viva.reports import line_plots, plot_style, row_plots
from viva.reports.label_layout import overlap_of, place_labels
from viva.scoring.correlation import ModelScores, fit_lines

pytest.importorskip("matplotlib")

TEXT = "{http://www.w3.org/2000/svg}text"
NASTY = ["$x_{$", "<script>alert(1)</script>", "a & b", "模型\x07", "x" * 60 + "1", "x" * 60 + "2", "plain"]
FEW = [f"model {number}" for number in range(plot_style.LINES)]
MANY = [f"model {number}" for number in range(30)]


def _texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(TEXT)]


def _curves(names: list[str]) -> list[line_plots.RoundCurve]:
    return [
        line_plots.RoundCurve(name, [line_plots.RoundValue(step, 90 - 2 * at - step, (3.0, 2.0)) for step in (1, 2, 3)])
        for at, name in enumerate(names)
    ]


def _tracks(names: list[str]) -> list[line_plots.CandidateRuns]:
    n = list(range(2, 200))
    tracks = []
    for at, name in enumerate(names):
        means = [80 - at + 10 / one for one in n]
        run = line_plots.RunningMean(
            n, means, [m - 40 / i for m, i in zip(means, n, strict=True)], [m + 1 for m in means]
        )
        tracks.append(line_plots.CandidateRuns(name, [run, run]))
    return tracks


def _stops(names: list[str]) -> str:
    found = [row_plots.StopCounts(name, 50, {"off_topic": 10 + at % 9, "budget": 2}) for at, name in enumerate(names)]
    return row_plots.stop_plot("set (n = 50 talks each)", found, row_plots.shown_reasons(found))


def _aspects(names: list[str]) -> str:
    overall = {name: row_plots.AspectMean(60.0, (4.0, 3.0)) for name in names}
    return row_plots.aspect_plot(
        "set (n = 50 talks each)", overall, {name: {"logic": row_plots.AspectMean(70.0)} for name in names}
    )


def _regression(names: list[str]) -> str:
    group = [ModelScores(name, "set", 10.0 * at, 8.0 * at + (at == 2) * 40, 1.0, 1.0) for at, name in enumerate(names)]
    return line_plots.regression_plot(
        "set (n = 7 models)", group, fit_lines(group)["set"], ("accuracy, %", "score, 0–100")
    )


DRAWINGS: dict[str, Callable[[list[str]], str]] = {
    "survival": lambda names: line_plots.survival_plot("set (n = 50 talks each)", _curves(names)),
    "rounds": lambda names: line_plots.round_score_plot("set (n = 50 talks each)", _curves(names)),
    "running": lambda names: line_plots.running_mean_plot("set (n = 50 talks each)", _tracks(names)),
    "aspects": _aspects,
    "stops": _stops,
    "regression": _regression,
}
LABELS = {
    "survival": {"round", "reached the round, %"},
    "rounds": {"round", "score of the round, 0–100"},
    "running": {"interviews so far", "running mean score, 0–100"},
    "aspects": {"mean score, 0–100", "logic", "overall, 95% interval"},
    "stops": {"interviews, %", "off_topic", "budget"},
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


@pytest.mark.parametrize("kind", ["survival", "rounds"])
def test_panels_that_stand_side_by_side_have_one_scale(kind: str) -> None:
    draw = {"survival": line_plots.survival_plot, "rounds": line_plots.round_score_plot}[kind]
    panels = [
        [line_plots.RoundCurve("only", [line_plots.RoundValue(1, first), line_plots.RoundValue(2, last)])]
        for first, last in ((99.0, 95.0), (60.0, 20.0))
    ]
    both = [curve for panel in panels for curve in panel]
    ticks = [[text for text in _texts(draw("set", panel, both)) if text.isdigit()] for panel in panels]
    assert ticks[0] == ticks[1]
    assert ticks[0] != [text for text in _texts(draw("set", panels[0])) if text.isdigit()]


def test_aspects_of_panels_side_by_side_have_one_scale() -> None:
    low, high = row_plots.AspectMean(10.0), row_plots.AspectMean(95.0)
    middle = row_plots.AspectMean(90.0)
    drawn = row_plots.aspect_plot("set", {"a": high}, {"a": {"logic": middle}}, [low, middle, high])
    assert {"0", "20", "100"} <= set(_texts(drawn))
    assert "20" not in _texts(row_plots.aspect_plot("set", {"a": high}, {"a": {"logic": middle}}))


@given(
    st.lists(
        st.sampled_from(["science", "(evaluator", "a)", "模型模型", "x" * 60, "(n = 5 interviews each)"]), max_size=9
    )
)
def test_long_titles_are_broken_between_words(words: list[str]) -> None:
    lines = plot_style._wrap(" ".join(words), 40)
    assert all(plot_style.text_width(line) <= 40 for line in lines)
    whole = " ".join(lines)
    assert [word for word in words if plot_style.text_width(word) <= 40] == [
        word for word in re.findall(r"\(n = [^()]*\)|\S+", whole) if "…" not in word
    ]


def test_many_candidates_rounds_are_numbers_in_cells() -> None:
    curves = [
        line_plots.RoundCurve(name, [line_plots.RoundValue(1, 100), line_plots.RoundValue(2, 40 + at)])
        for at, name in enumerate(MANY)
    ]
    texts = _texts(line_plots.survival_plot("set", curves))
    assert "round (cells: reached the round, %)" in texts
    assert texts.count("100") == 30
    assert {str(40 + at) for at in range(30)} <= set(texts)


def test_reasons_beyond_the_colours_are_drawn_together() -> None:
    reasons = {f"reason {number}": 20 - number for number in range(10)}
    found = [row_plots.StopCounts("one", 200, reasons), row_plots.StopCounts("none", 0, {})]
    texts = _texts(row_plots.stop_plot("set", found, row_plots.shown_reasons(found)))
    shown = [text for text in texts if text.startswith("reason")]
    assert shown == [f"reason {number}" for number in range(row_plots.MAX_REASONS_SHOWN - 1)]
    assert row_plots.OTHER_STOPS in texts
    assert row_plots.ALL_ROUNDS in texts


def test_a_reason_has_its_colour_in_every_panel() -> None:
    first, second = row_plots.StopCounts("one", 50, {"a": 20, "b": 10}), row_plots.StopCounts("one", 50, {"b": 12})
    reasons = row_plots.shown_reasons([first, second])
    assert reasons == (["b", "a"], [])
    orange = plot_style.light_colour(plot_style.SERIES[1])
    assert [row_plots.stop_plot("set", [one], reasons).count(orange) for one in (first, second)] == [
        2,
        1,
    ]  # legend, bar


def test_a_short_run_and_a_lone_candidate_can_be_drawn() -> None:
    one = line_plots.CandidateRuns("only", [line_plots.RunningMean([2, 3], [50.0, 51.0], [40.0] * 2, [60.0] * 2)])
    assert "only" in _texts(line_plots.running_mean_plot("set", [one]))


NOTHING_TO_SEE = {
    "no point": (lambda: line_plots.round_score_plot("set", []), "set: There are no figures yet."),
    "one point": (
        lambda: line_plots.round_score_plot("set", [line_plots.RoundCurve("only", [line_plots.RoundValue(1, 50.0)])]),
        "set: only, round 1: 50.0.",
    ),
    "one model": (
        lambda: line_plots.regression_plot("set", [ModelScores("only", "set", 1, 2)], None, ("x", "y")),
        "set: only: score 2.0, accuracy 1.0%.",
    ),
    "equal models": (
        lambda: line_plots.regression_plot(
            "set", [ModelScores(n, "set", 70 + at, 60 + at / 2, 9, 9) for at, n in enumerate(FEW)], None, ("x", "y")
        ),
        "set: All six models lie within 2.5 points of each other in score and within 5 in accuracy, less than two "
        "standard errors of each: too few items for this figure to tell them apart.",
    ),
    "full rounds": (
        lambda: line_plots.survival_plot(
            "set", [line_plots.RoundCurve(name, [line_plots.RoundValue(at, 100.0) for at in (1, 2)]) for name in FEW]
        ),
        "set: All interviews of six candidates reached every round.",
    ),
    "no stops": (
        lambda: row_plots.stop_plot("set", [row_plots.StopCounts(name, 9, {}) for name in "ab"], ([], [])),
        "set: No interview stopped early.",
    ),
    "zeros": (
        lambda: row_plots.bar_plot("set", {"a": row_plots.Bar(0.0), "b": row_plots.Bar(0.0)}, "98th percentile"),
        "set: All two figures (98th percentile) are at 0.",
    ),
    "drift of 0": (
        lambda: line_plots.curve_plot(
            "set", [line_plots.Curve("j", [1, 2], [0.0, 0.0], [0, 0], [0, 0])], line_plots.Axes("load", "drift, %")
        ),
        "set: All values (drift, %) are at 0.",
    ),
}  # fmt: skip


@case_table("kind", list(NOTHING_TO_SEE))
def test_where_nothing_can_be_seen_a_sentence_says_so(kind: str) -> None:
    draw, sentence = NOTHING_TO_SEE[kind]
    drawn = draw()
    assert isinstance(drawn, plot_style.Sentence)
    assert drawn == sentence


_VALUES = st.one_of(st.sampled_from([0.0, 50.0, 100.0]), st.floats(0, 100))


@st.composite
def _figures(draw: st.DrawFn) -> list[plot_style.Figure]:
    figures: list[plot_style.Figure] = []
    for at in range(draw(st.integers(0, 6))):
        value = draw(_VALUES)
        low, high = value - draw(_VALUES) / 3, value + draw(_VALUES) / 3
        figures.append((f"m{at}", value, *((low, high) if draw(st.integers(0, 4)) else (None, None))))
    return figures


@given(_figures())
def test_a_plot_gives_way_to_a_sentence_exactly_where_it_shows_nothing(figures: list[plot_style.Figure]) -> None:
    values = {value for _, value, _, _ in figures}
    inside = all(
        low is not None and high is not None and all(low <= value <= high for value in values)
        for _, _, low, high in figures
    )
    sentence = plot_style.sentence_instead(figures, "all models")
    assert (sentence is not None) == (len(figures) < 2 or inside or max(values) - min(values) <= 1e-7)
    if sentence is not None and "within" in sentence:
        spread = float(re.findall(r"within ([\d.]+) point", sentence)[0])
        assert spread >= max(values) - min(values) - 1e-6


@given(st.lists(st.floats(-50, 150), min_size=1, max_size=9), st.sampled_from([None, (0.0, 100.0)]))
def test_an_axis_contains_all_that_is_drawn_and_no_more_than_it_needs(
    values: list[float], whole: tuple[float, float] | None
) -> None:
    low, high = plot_style.axis_range(values, whole)
    assert low <= min(values)
    assert max(values) <= high
    assert low < high
    if whole is not None and all(0 <= value <= 100 for value in values):
        assert low >= -4
        assert high <= 104
        assert max(values) - min(values) >= 40 or high - low <= max(10.0, 1.2 * (max(values) - min(values))) + 1e-6


_POINTS = st.lists(st.tuples(st.sampled_from([10.0, 60.0, 60.5, 180.0]), st.floats(5, 190)), max_size=12)


@given(_POINTS, st.data())
def test_names_never_cover_each_other_nor_leave_the_frame(
    points: list[tuple[float, float]], data: st.DataObject
) -> None:
    sizes = [(data.draw(st.floats(10, 110)), 9.0) for _ in points]
    frame = (0.0, 0.0, 220.0, 200.0)
    labels = [label for label in place_labels(points, sizes, frame, away=5.0) if label is not None]
    assert len(labels) == len(points), "twelve names have room"
    boxes = [label.box for label in labels]
    assert all(overlap_of(one, other) == 0 for one, other in combinations(boxes, 2))
    assert all(box[0] >= -1e-6 and box[1] >= -1e-6 and box[2] <= 220.001 and box[3] <= 200.001 for box in boxes)


def test_models_on_one_point_share_a_name_and_their_mark_has_both_figures() -> None:
    group = [ModelScores(name, "set", at, at, 1, 1) for at, name in ((20, "a"), (40, "b"), (60, "c"))]
    group += [ModelScores(name, "set", 90.0, 50.0, 2.0, 4.4) for name in ("left", "right")]
    svg = line_plots.regression_plot("set", group, None, ("x", "y"), {"left": 100, "right": 98})
    assert "left, right" in _texts(svg)
    titles = [element.text for element in ElementTree.fromstring(svg).iter(TEXT.replace("text", "title"))]
    figures = "score 50.0 ± 4.4 (standard error), accuracy 90.0 ± 2.0 (standard error)"
    assert f"left: {figures}, n = 100; right: {figures}, n = 98" in titles


@pytest.mark.parametrize("kind", DRAWINGS)
def test_every_mark_can_be_focused_and_tells_its_figure_within_the_drawing(kind: str) -> None:
    root = ElementTree.fromstring(DRAWINGS[kind](FEW))
    marks = [element for element in root.iter() if element.get("class") == "mark"]
    assert len(marks) >= 6
    wide = float(root.attrib["viewBox"].split()[2])
    for mark in marks:
        title, circle, note = list(mark)
        assert (mark.get("tabindex"), mark.get("role")) == ("0", "img")
        assert re.search(r"model \d.*: .*\d", title.text or "")
        assert 0 <= float(circle.attrib["cx"]) <= wide
        box = note[0]
        assert 0 <= float(box.attrib["x"]) <= float(box.attrib["x"]) + float(box.attrib["width"]) <= wide


@given(st.lists(st.text(max_size=50), unique=True, max_size=20), st.integers(12, 30))
def test_cut_names_fit_and_stay_apart(names: list[str], room: int) -> None:
    cut = plot_style.shorten_names(names, room)
    assert list(cut) == names
    assert len(set(cut.values())) == len(names)
    assert all(plot_style.text_width(text) <= room + 4 for text in cut.values())
    assert all(
        cut[name] == name
        for name in names
        if plot_style.text_width(name) <= room and "…" not in name and "(" not in name
    )


def _luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@case_table("theme", [0, 1])
@case_table("name", [name for name in plot_style.COLOURS if name not in ("paper", "grid", "rest")])
def test_what_is_drawn_can_be_seen_on_light_and_on_dark(name: str, theme: int) -> None:
    assert _contrast(plot_style.COLOURS[name][theme], plot_style.COLOURS["paper"][theme]) >= 4.5


def test_no_two_colours_are_alike_on_white() -> None:
    light = sorted(one for one, _ in plot_style.COLOURS.values())
    assert all(one != other for one, other in pairwise(light))
