"""The language of the house: names are nouns and verbs, each thing has one term, docstrings begin with a verb or noun.

Each rule is a table of what is not written and what is written instead; a test lists every place that breaks it. That
docstrings are imperative and have the Google sections is checked by ruff (``D`` in pyproject.toml).
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import jinja2
import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(init.parent for init in ROOT.glob("*/__init__.py") if init.parent.name not in ("tests", "benches"))
MODULES = [path for folder in FOLDERS for path in sorted(folder.rglob("*.py"))]
BENCHES = [
    path for folder in ("benches", "benches/peers", "benches/gpu") for path in sorted((ROOT / folder).glob("*.py"))
]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEMPLATES = [path for folder in FOLDERS for path in sorted(folder.rglob("*.html"))]

# A name says what the thing is. These say only that something happened to it, or nothing.
_NO_NAMES = set(
    re.findall(
        r"\w+",
        "found told said one place held given posed again drawn heard shown asked taken gone meant wanted talk talks "
        "portion kin deed mended whose how what where which who of by few most least less many",
    )
)
# Their names are those of public parameters, or of fields in files and records.
_PUBLIC = {
    "engine/backends/base.py": "what where",
    "engine/cancellation.py": "by",
    "engine/computation.py": "where",
    "engine/conversation.py": "by where",
    "engine/conversation_check.py": "where",
    "engine/conversation_replay.py": "where",
    "engine/events.py": "by",
    "engine/runner.py": "how",
    "scenarios/contract.py": "many",
    "scoring/adaptive_exam.py": "asked",
    "scenarios/flexeval/builtin_metrics.py": "what",
    "scenarios/flexeval/gate.py": "by found",
    "scenarios/flexeval/spec.py": "where",
    "scenarios/flexeval/suite_report.py": "by",
    "scenarios/function.py": "many one",
    "scenarios/lalaeval/commands/judge.py": "shown",
    "scenarios/lalaeval/question_bank.py": "wanted",
    "scenarios/lalaeval/scenario.py": "shown",
    "web/api/schemas.py": "many",
}
# Docstrings that are sent to models as descriptions of a schema: another word would be another request.
_SENT = {"agents/judge.py": "PairVerdict", "scenarios/kieval/verdicts.py": "AspectVerdict"}
# Texts of simulated models, as earlier runs have recorded them.
_RECORDED = re.compile(r"/simulated_\w+\.py$|lab/judging\.py$")
_SQL = re.compile(r"\s*(select|insert|update|delete|create|drop|alter|with) ", re.IGNORECASE)
_NO_FIRST_WORDS = [
    "What",
    "Whether",
    "How",
    "Which",
    "Where",
    "When",
    "Who",
    "Whose",
    "See",
    "Its",
    "Those",
    "All",
    "By",
]
_TERMS = {  # what a reader would have to read twice: what to write
    r"\b(a|the|this|each|every|per|of|one) talks?\b": "conversation (an interview in KIEval, a dialog in FunctionChat)",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bgo(es|ing)? on with\b": "resume, continue",
    r"\bmore than chance\b": "significant",
    r"\bseats?\b": "assignment",
    r"\bis had\b": "is obtained",
    r"\ball told\b": "in total",
    r"\bturn about\b": "alternating",
    r"\bso many (seconds|tokens|calls|times)\b": "the number itself",
    r"\bwhere there (is|are) (none|no)\b": "if there is no …",
    r"\b[Tt]ier [AC]\b": "reproducible report, reproducible transcript",
    r"\b(run|sweep|cell|conversation|interview|dialog)s? (is|are|was|were) held\b": "run",
    r"\bwhat never belongs here\b": "nothing: imports are checked by tests/test_house.py",
}


def _names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno


def _template_names(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the names of a template with their lines: variables set, looped over or passed to it, macros, blocks."""
    kinds = (jinja2.nodes.Name, jinja2.nodes.Macro, jinja2.nodes.Block)
    for node in jinja2.Environment().parse(_source(path)).find_all(kinds):
        yield node.name, node.lineno


def _docstrings(path: Path) -> Iterator[tuple[str, int]]:
    sent = _SENT.get(str(path.relative_to(ROOT)), "")
    for node in ast.walk(ast.parse(_source(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node)
            if text and not (isinstance(node, ast.ClassDef) and node.name == sent):
                yield text, node.body[0].lineno


def _sentences(source: str) -> Iterator[tuple[str, int]]:
    """Yield the comments and the strings of several words in a module's source, each with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield "" if _SQL.match(node.value) else node.value, node.lineno
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string, token.start[0]


def _prose(text: str) -> str:
    """Return a page's text with its code replaced by as many line ends."""
    return re.sub(
        r"```.*?```|<!--.*?-->|`[^`\n]*`|\]\([^)]*\)", lambda code: "\n" * code[0].count("\n"), text, flags=re.DOTALL
    )


def _at(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


@cache
def _source(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def unclear_terms(text: str) -> list[str]:
    """Return what in a text is not the term of the house, each with what to write."""
    return [f"'{match[0]}' → {better}" for pattern, better in _TERMS.items() for match in re.finditer(pattern, text)]


def test_names_are_nouns_and_verbs() -> None:
    wrong = [
        f"{_at(path, line)}: {name}"
        for path in [*MODULES, *BENCHES]
        for name, line in _names(ast.parse(_source(path)))
        if name.strip("_").lower() in _NO_NAMES and name not in _PUBLIC.get(str(path.relative_to(ROOT)), "").split()
    ]
    assert not wrong, "\n".join(wrong)


def test_names_in_templates_are_nouns_and_verbs() -> None:
    wrong = [
        f"{_at(path, line)}: {name}"
        for path in TEMPLATES
        for name, line in _template_names(path)
        if name.strip("_").lower() in _NO_NAMES
    ]
    assert not wrong, "\n".join(wrong)


def test_the_public_names_that_are_let_pass_are_still_there() -> None:
    for path, names in _PUBLIC.items():
        used = {name for name, _ in _names(ast.parse(_source(ROOT / path)))}
        assert set(names.split()) <= used, path


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    wrong = [
        f"{_at(path, line)}: {text.splitlines()[0]}"
        for path in MODULES
        for text, line in _docstrings(path)
        if text.split()[0].rstrip(",") in _NO_FIRST_WORDS
    ]
    assert not wrong, "\n".join(wrong)


def test_code_says_each_thing_by_its_one_term() -> None:
    wrong = [
        f"{_at(path, line)}: {problem}"
        for path in MODULES
        if not _RECORDED.search(str(path))
        for text, line in _sentences(_source(path))
        for problem in unclear_terms(text)
    ]
    assert not wrong, "\n".join(wrong)


def test_pages_say_each_thing_by_its_one_term() -> None:
    wrong = [
        f"{_at(path, number)}: {problem}"
        for path in [*PAGES, *TEMPLATES]
        for number, line in enumerate(_prose(_source(path)).splitlines(), 1)
        for problem in unclear_terms(line)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("text", ["when the cause is mended", "each talk has ended", "tier A", "the run was held"])
def test_the_check_sees_what_it_is_for(text: str) -> None:
    assert unclear_terms(text)
