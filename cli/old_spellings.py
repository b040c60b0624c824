"""Old spellings of verbs and options: they work for one more version, and a note names the new spelling.

This file is separate so that it can be deleted with that version.
"""

from __future__ import annotations

# Longer spellings come first, because the first match counts.
VERBS = {
    "bench judge": "judge load",
    "bench": "judge",
    "correlate": "judge compare",
    "meta": "judge compare",
    "grade sit": "grade answer",
    "plan": "sweep plan",
    "merge": "sweep merge",
    "compact": "sweep compact",
}
# Options by the words of their command; "" stands for every command.
OPTIONS = {
    "": {"--patience": "--wait-for-endpoint"},
    "export": {"--to": "--format"},
    "grade queue": {"--next": "--select"},
    "grade report": {"--whose": "--grader"},
    "judge certify": {"--next": "--select", "--level": "--confidence"},
    "judge compare": {"--without": "--exclude", "--level": "--confidence"},
    "run --fork": {"--evaluator": "--judge"},
    "score": {"--by": "--group-by"},
}


def modernize(words: list[str]) -> tuple[list[str], str]:
    """Return a command in the new spelling, and a sentence that says what was replaced, or ""."""
    replaced: dict[str, str] = {}
    for old, new in VERBS.items():
        parts = old.split()
        if words[: len(parts)] == parts:
            words = [*new.split(), *words[len(parts) :]]
            replaced[f"viva {old}"] = f"viva {new}"
            break
    options: dict[str, str] = {}
    for verb, renamed in OPTIONS.items():
        if _has_words(words, verb.split()):
            options |= renamed
    end = words.index("--") if "--" in words else len(words)
    for position, word in enumerate(words[:end]):
        name, equals, value = word.partition("=")
        if name in options:
            words = [*words[:position], options[name] + equals + value, *words[position + 1 :]]
            replaced[name] = options[name]
    return words, "; ".join(f"`{old}` is now `{new}`" for old, new in replaced.items())


def _has_words(words: list[str], verb: list[str]) -> bool:
    """Return True if a command begins with the first word of a verb and contains its other words."""
    names = [word.partition("=")[0] for word in words]
    return not verb or (names[:1] == verb[:1] and all(word in names for word in verb[1:]))
