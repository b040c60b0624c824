"""YAML that users wrote: what it means, its bounds, and that errors name file, line and column."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_tables import case_table

from viva.engine.errors import ConfigurationError
from viva.engine.yaml_file import MAX_BYTES, MAX_DIGITS, MAX_LEVELS, parse_list, parse_yaml, read_yaml


def problem(text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parse_yaml(text, "grid.yaml")
    return str(caught.value)


def bomb(levels: int) -> str:
    """A few lines of aliases that stand for 9 to the power of ``levels`` words."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


def test_values_are_read_as_ever_and_dates_stay_text() -> None:
    text = "a: [1, 0x10, 2.5, yes, null, text]\nb: &b {x: 1}\nc: {<<: *b, y: 2024-01-01}\nd: *b\n"
    assert parse_yaml(text, "f") == {
        "a": [1, 16, 2.5, True, None, "text"],
        "b": {"x": 1},
        "c": {"x": 1, "y": "2024-01-01"},
        "d": {"x": 1},
    }
    assert parse_yaml("", "f") is None
    assert parse_list("- a\n\n- b:\n    c\n- d", "f") == (["a", {"b": "c"}, "d"], [1, 3, 5])
    assert parse_list("a: 1", "f") == ({"a": 1}, [])
    assert parse_yaml("a: &a {x: 1}\nb: {<<: *a, x: 2}\n", "f")["b"] == {"x": 2}  # what << brings may be given anew


@case_table(
    ("text", "expected"),
    [
        ("a: 1\nb: c: d\n", "grid.yaml:2:5: cannot be read: mapping values are not allowed here"),
        ("a: [", "grid.yaml:1:5: cannot be read: expected the node content"),
        ("a: 1\nb: x\x07\n", "grid.yaml:2:5: cannot be read: the character U+0007 is not allowed"),
        ("a: 1\n---\nb: 2", "grid.yaml:2:1: cannot be read: but found another document"),
        ("a: *b", "grid.yaml:1:4: cannot be read: found undefined alias 'b'"),
        ("a: !!int x", "grid.yaml:1:4: cannot be read: not a value of tag:yaml.org,2002:int"),
        ("a: !!python/object:os.system x", "grid.yaml:1:4: cannot be read: could not determine a constructor"),
        ("? [a]\n: b", "grid.yaml:1:3: cannot be read: found unhashable key"),
    ],
)
def test_line_14_an_error_names_file_line_and_column(text: str, expected: str) -> None:
    assert problem(text).startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "seeds: [1]\nn: 2\nseeds: [2]\n",
            "grid.yaml:3:1: cannot be read: the key 'seeds' is given twice, first on line 1",
        ),
        ("a:\n  - {x: 1, x: 2}\n", "grid.yaml:2:12: cannot be read: the key 'x' is given twice, first on line 2"),
        ("1: a\n0x1: b\n", "grid.yaml:2:1: cannot be read: the key '0x1' is given twice, first as '1' on line 1"),
        ("a: &a {x: 1}\nb: {<<: *a, <<: *a}", "grid.yaml:2:13: cannot be read: the key '<<' is given twice"),
    ],
)
def test_line_29_a_key_given_twice_is_refused_with_both_lines(text: str, expected: str) -> None:
    assert problem(text).startswith(expected)


@pytest.mark.parametrize("text", ["[" * 5000, "- " * 5000 + "x", "{a: " * 5000, "? " * 5000], ids=["[", "-", "{", "?"])
def test_line_29_depth_is_bounded(text: str) -> None:
    assert f"nested deeper than {MAX_LEVELS} levels" in problem(text)


def test_line_29_up_to_the_bound_depth_is_read() -> None:
    value = parse_yaml("[" * (MAX_LEVELS - 1) + "x" + "]" * (MAX_LEVELS - 1), "f")
    for _ in range(MAX_LEVELS - 1):
        (value,) = value
    assert value == "x"


@pytest.mark.parametrize(
    "text",
    [
        bomb(10),
        "a0: &a0 {p: 1, q: 2}\n"
        + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 9)),
        "a: &a " + "x" * 1000 + "\nb: [" + ", ".join(["*a"] * 300) + "]",
    ],
    ids=["lists", "merges", "text"],
)
def test_line_29_aliases_are_bounded_by_what_they_stand_for(text: str) -> None:
    assert len(text) < 10_000
    assert "aliases stand for more than 200,000 characters and values" in problem(text)


def test_line_29_an_alias_within_itself_is_refused() -> None:
    assert problem("a: &a [1, *a]").startswith("grid.yaml:1:11: cannot be read: the alias *a contains itself")


def test_line_29_a_time_of_day_is_no_number() -> None:
    text = "a: 21:05\nb: 190:20:30.15\nc: [6:40, 7]\nd: !!int 1:30\n"
    assert parse_yaml(text, "grid.yaml") == {"a": "21:05", "b": "190:20:30.15", "c": ["6:40", 7], "d": 90}


def test_a_number_of_many_digits_is_refused() -> None:
    assert problem("a: " + "1" * (MAX_DIGITS + 1)).startswith("grid.yaml:1:4: cannot be read: a number of 401 digits")
    assert problem("a: !!int " + ":".join("1" * MAX_DIGITS)).startswith("grid.yaml:1:4: cannot be read: a number of")


def test_line_29_a_file_is_read_up_to_a_size(tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    file.write_bytes(b"# " + b"x" * MAX_BYTES)
    with pytest.raises(ConfigurationError, match=r"large\.yaml: larger than 2 MB"):
        read_yaml(file)
    with pytest.raises(ConfigurationError, match="/dev/zero: larger than 2 MB"):
        read_yaml(Path("/dev/zero"))


def test_a_file_that_is_no_text_or_not_there_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ConfigurationError, match=r"a\.yaml:2: cannot be read: not UTF-8"):
        read_yaml(file)
    with pytest.raises(ConfigurationError, match="none: cannot be read: No such file"):
        read_yaml(tmp_path / "none")
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_yaml(file) == {"a": 1}
