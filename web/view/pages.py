"""HTML pages of the viewer, made from templates with data from the index and the journals.

This module is used by one thread, outside an event loop. Model text is always escaped. On a server, links are
addresses; in an export, they are relative paths of files.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment
from markupsafe import Markup

from viva.reports.plot_style import COLOURS

from ..page_server import render, template_environment
from ..problems import Refusal
from .conversations import ConversationReader, pair_turns
from .findings import StudyAnswer, mean_scores_so_far
from .index import excerpt_pattern
from .live import LiveAnswer, part_number
from .queries import PAGE_SIZE, SORTS, Filter, IndexReader, ListedConversation, RunFigures
from .run_view import RunView, resume_command
from .runs import find_runs
from .steering import Confirmation

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


# Each page's address on a server, and its file in an export.
_PLACES = {
    "overview": ("/", "index.html"),
    "conversations": ("/conversations", "conversations.html"),
    "compare": ("/compare", "compare.html"),
    "report": ("/report", "report.html"),
    "asset": ("/asset/", "asset/"),
}


class Links:
    """Addresses of pages: on a server (`live`), or as files below one folder.

    `depth` is the number of folders from that folder down to the linking page.
    """

    def __init__(self, depth: int | None = None) -> None:
        self.live = depth is None
        self._up = "../" * (depth or 0)

    def to(self, page: str, query: str = "") -> str:
        """Return the address of a page with this query."""
        served, file = _PLACES[page]
        return (served if self.live else f"{self._up}{file}") + (f"?{query}" if query else "")

    def asset(self, name: str) -> str:
        """Return the address of a style sheet or script."""
        return self.to("asset") + name

    def conversation(self, conversation: ListedConversation, query: str = "", anchor: str = "") -> str:
        """Return the address of a conversation; `query` is for servers only."""
        path = f"/c/{conversation.path}" if self.live else f"{self._up}{quote(conversation_file(conversation))}"
        return path + (f"?{query}" if query and self.live else "") + (f"#{anchor}" if anchor else "")

    def run(self, run: str) -> str:
        """Return the address of a run's page; in an export, which has none, that of its conversations."""
        return f"/run/{quote(run)}" if self.live else self.to("conversations", Filter(run=run).query())

    def compare(self, first: ListedConversation, second: ListedConversation) -> str:
        """Return the address that shows two conversations side by side."""
        names = [f"{each.run}/{each.number}" if self.live else conversation_file(each) for each in (first, second)]
        return self.to("compare", urlencode(dict(zip("ab", names, strict=True))))


def conversation_file(conversation: ListedConversation) -> str:
    """Return the file of a conversation in an export."""
    return f"c/{run_folder_name(conversation.run)}/{conversation.number}.html"


def run_folder_name(run: str) -> str:
    """Return a unique folder name for a run's name."""
    plain = _UNSAFE.sub("-", run).strip(".-")[:60] or "run"
    if plain == run:
        return plain
    return f"{plain}-{hashlib.blake2b(run.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"


def filter_query(filter: Filter, position: int | None = None) -> str:  # noqa: A002
    """Return a filter as the query of a conversation's address, with the conversation's position in the list."""
    query = filter.query()
    return query if position is None else "&".join(part for part in (query, f"at={position}") if part)


TEMPLATES = Path(__file__).with_name("templates")
_EXCERPT = 90  # characters of an excerpt on each side of a match
_RUNS_SHOWN = 400
_MODELS_SHOWN = 60
_STATE_WORDS = {0: "going on", 1: "finished", 2: "failed"}


@dataclass(slots=True)
class PageContext:
    """Data of a page besides its links."""

    answer: StudyAnswer | None = None
    busy: bool = False


class Pages:
    """The pages of the runs below `root`. `latest` returns the number of the last sent event."""

    def __init__(
        self, root: Path, reader: IndexReader, *, served: bool = True, latest: Callable[[], int] = lambda: 0
    ) -> None:
        self._root, self.reader, self._served, self._latest = root, reader, served, latest
        self.conversations_read = ConversationReader()
        self._paths: dict[str, Path] = {}
        self._environment = viewer_templates()

    def close(self) -> None:
        self.conversations_read.close()
        self.reader.close()

    def overview(self, context: PageContext) -> str:
        """Render the verdict, then the candidates, the runs, and the reasons for failures."""
        latest = self._latest()  # must come before data is read
        return self._render("overview.html", 0, latest=latest, **self._overview(context))

    def overview_part(self, context: PageContext) -> str:
        return self._render("overview_part.html", 0, **self._overview(context))

    def conversations(self, filter: Filter, busy: bool = False) -> str:  # noqa: A002
        """Render one page of the list of conversations; `busy`: the index is still being built."""
        latest = self._latest()
        count, listed = self.reader.count(filter), self.reader.listed(filter)
        pattern = excerpt_pattern(filter.q)
        if pattern is not None:
            for conversation in listed:
                conversation.excerpt = self._excerpt(conversation, pattern)
        return self._render(
            "conversations.html",
            0,
            latest=latest,
            filter=filter,
            listed=listed,
            count=count,
            busy=busy,
            first=(filter.page - 1) * PAGE_SIZE,
            pages=max(1, -(-count // PAGE_SIZE)),
            choices=self.reader.choices(),
            sorts=SORTS,
            query_of=filter_query,
            running=any(run.running for run in self.reader.runs()),
        )

    def conversation(self, run: str, number: int, filter: Filter | None = None, at: int | None = None,  # noqa: A002
                     depth: int = 0) -> str:  # fmt: skip
        """Render a conversation; its neighbours are those at `at` in the filtered list (None: those in its run)."""
        latest = self._latest()
        listed = self._listed(run, number)
        page = self.conversations_read.read(self._path(run), number)
        chosen = filter or Filter()
        before, after = self._neighbours(listed, chosen, at)
        return self._render(
            "conversation.html",
            depth,
            latest=latest,
            conversation=listed,
            page=page,
            before=before,
            after=after,
            filter=chosen,
            at=at,
            query_of=filter_query,
            beside=self.reader.beside(listed),
            figures=next((run for run in self.reader.runs() if run.name == listed.run), None),
        )

    def compare(self, left: tuple[str, int], right: tuple[str, int]) -> str:
        """Render two conversations side by side."""
        first, second = self._listed(*left), self._listed(*right)
        pages = [self.conversations_read.read(self._path(run), number) for run, number in (left, right)]
        return self._render(
            "compare.html",
            0,
            first=first,
            second=second,
            pages=pages,
            pairs=pair_turns(*pages),
            beside=self.reader.beside(first),
        )

    def run_figures(self, run: str) -> RunFigures:
        """Return a run's row; refuse a run that is not in the index."""
        figures = self.reader.run(run)
        if figures is None:
            raise Refusal(404, "Not found", f"no run '{run}'")
        return figures

    def run(
        self,
        run: str,
        live: LiveAnswer | None,
        *,
        steered: bool = False,
        form: str | None = None,
        answer: tuple[str, bool] | None = None,
    ) -> str:
        """Render a run: what it has done, what it waits for and, with a `form` token, the buttons that steer it.

        `live` is what the run says of itself, None unless it is in progress; `steered`: the operator may steer runs;
        `answer`: what the run said to the last button, and if it did it.
        """
        view = self._run_view(run, live)
        part = self._render("run_part.html", 0, view=view)
        status = None if live is None else live.status
        open_now = self.reader.listed(Filter(run=run, state="open")) if form is not None and status is not None else []
        return self._render(
            "run.html",
            0,
            view=view,
            part=Markup(part),
            latest=part_number(part),
            events=urlencode({"page": "run", "run": run, "since": part_number(part)}),
            steered=steered,
            form=form,
            answer=answer,
            models=[] if status is None else sorted(status.models.items())[:_MODELS_SHOWN],
            open_now=open_now,
        )

    def run_part(self, run: str, live: LiveAnswer | None) -> str:
        """Render the live part of a run's page."""
        return self._render("run_part.html", 0, view=self._run_view(run, live))

    def confirmation(self, run: str, question: Confirmation, form: str) -> str:
        """Render the page that asks before a run's work is ended."""
        return self._render("confirm.html", 0, run=run, question=question, form=form)

    def run_path(self, run: str) -> Path:
        """Return the folder of a run; only runs below the root are ever opened."""
        return self._path(run)

    def _run_view(self, run: str, live: LiveAnswer | None) -> RunView:
        now = time.time()
        figures = self.run_figures(run)
        return RunView(figures, self.reader.load(run, now), live, now, resume_command(self._root, self._path(run)))

    def comparing(self) -> str:
        """Render the page of an export that shows two conversations side by side; its address names both."""
        return self._render("comparing.html", 0)

    def problem(self, title: str, text: str) -> str:
        return self._render("refused.html", 0, refusal=Refusal(500, title, text))

    def style(self) -> str:
        return self._environment.get_template("view.css").render(colours=COLOURS)

    # -- data -----------------------------------------------------------------------------------------------------

    def _overview(self, context: PageContext) -> dict[str, Any]:
        runs = self.reader.runs()
        findings = context.answer.findings if context.answer is not None else []
        scenarios = {part["scenario"] for part in findings}
        parts = [
            *findings,
            *(part for part in mean_scores_so_far(runs) if part["scenario"] not in scenarios and part["standings"]),
        ]
        several = len(parts) > 1
        return {
            "answer": context.answer,
            "busy": context.busy,
            "parts": [
                part
                | {
                    "scale": _scale(part["standings"]),
                    "title": f"{part['scenario']} · {part['about']}" if several else "",
                }
                for part in parts
            ],
            "rules": list(dict.fromkeys(part["rule"] for part in parts if part["rule"])),
            "totals": _totals(runs),
            "runs": runs[:_RUNS_SHOWN],
            "hidden": max(0, len(runs) - _RUNS_SHOWN),
            "running": [run for run in runs if run.running],
            "choices": self.reader.choices(),
            "ended": sum(run.ended for run in runs),
            "planned": sum(run.planned or run.total.total for run in runs),
        }

    def _neighbours(self, conversation: ListedConversation, filter: Filter, at: int | None) -> tuple[Any, Any]:  # noqa: A002
        """Return the previous and next conversations, each with its position in the list."""
        pairs: list[tuple[ListedConversation | None, int | None]]
        if at is not None:
            pairs = [(self.reader.at(filter, position), position) for position in (at - 1, at + 1)]
        else:
            pairs = [
                (self.reader.conversation(conversation.run, number), None)
                for number in (conversation.number - 1, conversation.number + 1)
            ]
        before, after = (pair if pair[0] is not None else None for pair in pairs)
        return before, after

    def _excerpt(self, conversation: ListedConversation, pattern: re.Pattern[str]) -> str:
        """Return some words around the first match in an answer."""
        for text in self.conversations_read.texts(self._path(conversation.run), conversation.number):
            if (match := pattern.search(text)) is not None:
                start, end = max(0, match.start() - _EXCERPT), min(len(text), match.end() + _EXCERPT)
                cut = " ".join(text[start:end].split())
                return ("…" if start else "") + cut + ("…" if end < len(text) else "")
        return ""

    def _listed(self, run: str, number: int) -> ListedConversation:
        conversation = self.reader.conversation(run, number)
        if conversation is None:
            raise Refusal(404, "Not found", f"no conversation {number} in the run '{run}'")
        return conversation

    def _path(self, run: str) -> Path:
        """Return the folder of a run; only runs found below the root are ever opened."""
        if run not in self._paths:
            self._paths = dict(find_runs(self._root))
        if run not in self._paths:
            raise Refusal(404, "Not found", f"the run '{run}' no longer exists")
        return self._paths[run]

    def _render(self, template: str, depth: int, **values: Any) -> str:
        return render(
            self._environment,
            template,
            link=Links(None if self._served else depth),
            root=self._root.resolve().name,
            states=_STATE_WORDS,
            filter_query=lambda **chosen: Filter(**chosen).query(),
            **values,
        )


def viewer_templates() -> Environment:
    """Load the viewer's templates."""
    environment = template_environment(TEMPLATES)
    environment.filters |= {"grade": mark_class, "seconds": format_duration, "whole": lambda number: f"{number:,}"}
    return environment


def mark_class(level: float | None) -> Markup:
    """Return the style class of a mark, which is one of three levels."""
    if level is None:
        return Markup("plain")
    return Markup("low" if level < 0.34 else "middling" if level < 0.67 else "high")


def format_duration(value: float) -> str:
    if value < 0.0995:
        return f"{1000 * value:.0f} ms"
    return f"{value:.1f} s" if value < 100 else f"{value / 60:.0f} min"


def _totals(runs: list[RunFigures]) -> dict[str, Any]:
    """Return each candidate's figures over all runs."""
    totals: dict[str, Any] = {}
    for run in runs:
        for name, figures in run.candidates.items():
            totals.setdefault(name, type(figures)(name)).add(figures)
    return totals


def _scale(standings: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the ends of the axis for figures: 0 and 100 if all figures lie between them."""
    values = [
        standing[name] for standing in standings for name in ("value", "low", "high") if standing[name] is not None
    ]
    low, high = min([0.0, *values]), max(values, default=100.0)
    return low, (100.0 if 1.5 < high <= 100 else high or 1.0)
