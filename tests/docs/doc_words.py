"""Whether the verbs and options of ``viva`` in a text exist, without running them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

import click
import typer
from click.testing import CliRunner

_OPEN = re.compile(r"…|\.\.\.|[A-Z_/:]{2,}|[<$]")  # a place where the reader's own word stands


def unknown(text: str) -> list[str]:
    """The commands of a shell text that name a verb or an option that is not there, with what is wrong."""
    return [problem for words in _commands(text) if (problem := _wrong(words))]


def _commands(text: str) -> Iterator[list[str]]:
    """The words of each call of ``viva``, also of those in quotes (``--wrap 'viva sweep merge …'``)."""
    for words in _logical_lines(text):
        for at, word in enumerate(words):
            if word == "viva" and (at == 0 or words[at - 1] in _BEFORE or words[at - 1].startswith("(")):
                end = next((n for n in range(at, len(words)) if set(words[n]) <= set("();<>|&")), len(words))
                yield words[at + 1 : end]
            elif word.startswith("viva ") or "$(viva " in word:
                yield from _commands(word.partition("$(")[2].partition(")")[0] if "$(viva " in word else word)


_BEFORE = {"&&", "||", "|", ";", "&", "(", "do", "srun", "then", "time", "exec", "$"}


def _logical_lines(text: str) -> Iterator[list[str]]:
    """Each line's words; lines that a backslash or an open quote joins are one. Comments are left out."""
    joined = ""
    for line in text.splitlines():
        joined += line
        if joined.endswith("\\"):
            joined = joined[:-1] + " "
            continue
        try:
            words = shlex.shlex(re.sub(r"(^|\s)#[ !].*", "", joined), posix=True, punctuation_chars=True)
            words.whitespace_split, words.commenters = True, ""
            yield list(words)
        except ValueError:  # a quote is open
            joined += "\n"
            continue
        joined = ""
    assert not joined.strip(), f"a quote is never closed: {joined[:80]}"


@cache
def _app() -> Any:
    from viva.cli.main import app

    return typer.main.get_command(app)


def _wrong(words: list[str]) -> str:
    """What is wrong with the words behind ``viva``; empty: nothing that can be seen."""
    command, context, path = _app(), click.Context(_app()), ["viva"]
    options = _options(command, "viva")
    ahead = iter(words)
    for word in ahead:
        if word.startswith("-") and word != "-":
            name = re.sub(r"[=/|,;:].*", "", word) if word.startswith("--") else word
            if _OPEN.search(name):
                return ""
            if options is None:
                return ""
            if name not in options:
                return f"{' '.join(path)} has no option {name}"
            if options[name] and "=" not in word:
                next(ahead, None)
        elif hasattr(command, "commands") or hasattr(command, "list_commands"):
            if _OPEN.search(word) or (path == ["viva", "run"] and word not in _scenarios()):
                return ""
            below = _late(word) if path == ["viva", "run"] else command.get_command(context, word)
            if below is None and path == ["viva", "sweep"]:  # a sweep's file
                word, below = "run", command.get_command(context, "run")
            if below is None:
                return f"{' '.join(path)} has no verb {word}"
            command, context = below, click.Context(below)
            path.append(word)
            options = _options(below, " ".join(path))
    return ""


def _scenarios() -> set[str]:
    from viva.engine.imports import load_entry_points

    return set(load_entry_points("viva.scenarios"))


def _late(name: str) -> Any:
    return _app().get_command(click.Context(_app()), "run").get_command(click.Context(_app()), name)


def _options(command: Any, path: str) -> dict[str, bool] | None:
    """The options of a command, and whether each takes a value; None: they are those of the run that is named."""
    if path == "viva score":
        return None
    found = {"--help": False, "-h": False, "-v": False, "--verbose": False}
    if path in _LATE:  # its options are made when it is called
        said = CliRunner().invoke(_app(), [*path.split()[1:], "--help"]).output
        return found | dict.fromkeys(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", said), True)
    for parameter in command.params:
        takes = not getattr(parameter, "is_flag", False) and not getattr(parameter, "count", False)
        found |= dict.fromkeys((*parameter.opts, *parameter.secondary_opts), takes)
    return found


_LATE = {"viva probe", "viva qualify", "viva validate", "viva judge audit", "viva export", "viva import"}
