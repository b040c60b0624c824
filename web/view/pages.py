"""HTML pages of the viewer, made from templates with data from the index and the journals.

This module is used by one thread, outside an event loop. Model text is always escaped. On a server, links are
addresses; in an export, they are relative paths of files.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment
from markupsafe import Markup

from viva.engine.errors import JournalError, VivaError
from viva.engine.files import shell_path
from viva.engine.run_folder import is_running
from viva.grading.run_answers import has_answer
from viva.reports.plot_style import COLOURS
from viva.reports.tables import money
from viva.sweeps.sweep_folder import resumable_folder

from ..page_server import render, template_environment
from ..problems import Refusal
from ..report.html_page import isolated
from .calls import curl_command, suite_case, tokens
from .conversations import (
    LONGEST_TEXT,
    TURNS,
    ConversationReader,
    PageConversation,
    TurnsPart,
    differences,
    limit_words,
    pair_turns,
    part_of,
    share_prompts,
)
from .excerpts import SearchedWords
from .filters import Filter, column_of
from .findings import StudyAnswer
from .index import index_name
from .index_figures import IndexFigures
from .list_answer import read_answer
from .live import LiveAnswer, part_number
from .matrix import ACROSS, MARKS, ROWS, Matrix, MatrixCell, MatrixView, chosen_group, read_cells, read_matrix
from .queries import PAGE_SIZE, IndexReader, ListedConversation
from .run_figures import RunFigures, RunGroup
from .run_history import BlockFailure, CandidateHistory, block_ends, block_failures
from .run_record import RunRecord, read_record, record_state
from .run_view import RunResults, RunView, read_load, read_results, resume_command
from .runs import find_runs
from .selections import Selection, selected_runs
from .steering import Confirmation

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


# Each page's address on a server, and its file in an export.
_PLACES = {
    "overview": ("/", "index.html"),
    "conversations": ("/conversations", "conversations.html"),
    "compare": ("/compare", "compare.html"),
    "report": ("/report", "report.html"),
    "matrix": ("/matrix", "matrix.html"),
    "selection": ("/selection", ""),
    "selection_file": ("/selection.jsonl", ""),
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

    def conversation(self, conversation: ListedConversation | MatrixCell, query: str = "", anchor: str = "") -> str:
        """Return the address of a conversation; `query` is for servers only."""
        path = f"/c/{conversation.path}" if self.live else f"{self._up}{quote(conversation_file(conversation))}"
        return path + (f"?{query}" if query and self.live else "") + (f"#{anchor}" if anchor else "")

    def run(self, run: str) -> str:
        """Return the address of a run's page; in an export, which has none, that of its conversations."""
        return f"/run/{quote(run)}" if self.live else self.to("conversations", Filter(run=run).query())

    def call(self, conversation: ListedConversation, turn: str) -> str:
        """Return the address of the call behind a turn; only servers have it."""
        return f"/call/{conversation.path}/{turn.removeprefix('t')}"

    def compare(self, first: ListedConversation, second: ListedConversation) -> str:
        """Return the address that shows two conversations side by side."""
        names = [f"{each.run}/{each.number}" if self.live else conversation_file(each) for each in (first, second)]
        return self.to("compare", urlencode(dict(zip("ab", names, strict=True))))


def conversation_file(conversation: ListedConversation | MatrixCell) -> str:
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
_RUNS_SHOWN = 400
_KEPT_RUNS = 64  # runs whose records and results are kept
_RESULT_SECONDS, _RESULT_SHARE = 2.0, 20.0  # pause between results of a run in progress; as a multiple of their time
_MODELS_SHOWN = 60
_PENDING = "Verdicts are being computed; these are mean scores."
_NO_VERDICTS = "Verdicts cannot be computed, as the notes say; these are mean scores."
_STATE_WORDS = {0: "going on", 1: "finished", 2: "failed"}


@dataclass(slots=True)
class PageContext:
    """Data of a page besides its links; `answer` and `figures` are None until they have been computed.

    `busy`: findings are being computed; `reading`: the index is being built.
    """

    answer: StudyAnswer | None = None
    busy: bool = False
    figures: IndexFigures | None = None
    reading: bool = False


class Pages:
    """The pages of the runs below `root`. `latest` returns the number of the last sent event."""

    def __init__(
        self, root: Path, reader: IndexReader, *, served: bool = True, latest: Callable[[], int] = lambda: 0
    ) -> None:
        self._root, self.reader, self._served, self._latest = root, reader, served, latest
        self.conversations_read = ConversationReader()
        self._paths: dict[str, Path] = {}
        self._environment = viewer_templates()
        self._records: dict[str, tuple[Any, RunRecord]] = {}
        self._results: dict[str, tuple[int, float, RunResults]] = {}  # by run: index version, earliest next time

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
        answer = None if busy or not self._served else read_answer(self.reader, filter)
        if filter.question is not None:
            words = SearchedWords(filter.q)
            for conversation in listed:
                conversation.excerpt = self._excerpt(conversation, words)
        return self._render(
            "conversations.html",
            0,
            latest=latest,
            answer=answer,
            age=self._age(answer.matrix) if answer is not None and answer.matrix is not None else None,
            group=next((group for group in self.reader.groups() if group.id == filter.matrix), None)
            if filter.matrix
            else None,
            groups=[] if self._served else self.reader.groups(),
            filter=filter,
            listed=listed,
            count=count,
            busy=busy,
            nothing="" if count or busy else self._nothing(filter),
            first=(filter.page - 1) * PAGE_SIZE,
            pages=max(1, -(-count // PAGE_SIZE)),
            choices=self.reader.choices(),
            query_of=filter_query,
            running=any(run.running for run in self.reader.run_rows()),
            **self._columns(filter),
        )

    def _nothing(self, filter: Filter) -> str:  # noqa: A002
        """Return why a list is empty."""
        totals = [run.total for run in self.reader.runs()]
        if not any(total.total for total in totals):
            return "There is no conversation yet."
        if filter.state == "failed" and not any(total.failed for total in totals):
            return "No conversation matches: none has failed."
        return "No conversation matches."

    def _columns(self, filter: Filter) -> dict[str, Any]:  # noqa: A002
        """Return the columns of the list: all titles, the shown keys, and the score's scale if all runs share it."""
        titles, visible = self.reader.columns(filter)
        kinds = self.reader.kinds(filter)
        scales = {kind.scale for kind in kinds}
        return {
            "titles": titles,
            "visible": visible,
            "column_of": column_of,
            "scale": next(iter(scales)) if len(scales) == 1 else None,
            "apart": filter.by_score and len(kinds) > 1,
        }

    def matrix(self, view: MatrixView) -> str:
        """Render one page of the matrix of items and candidates."""
        groups = self.reader.groups()
        group = chosen_group(groups, view)
        if not groups:
            raise Refusal(404, "Nothing to compare yet", "There is no run with a conversation yet.")
        if group is None or (view.run and view.run not in group.names):
            raise Refusal(404, "Not found", "no such matrix; its runs have changed, or the address is wrong")
        matrix = read_matrix(self.reader, group, view.run)
        rows, columns, total = matrix.rows(view), matrix.columns(view), len(matrix.chosen(view))
        cells = read_cells(self.reader, matrix, [row.name for row in rows], view.run) if self._served else {}
        return self._render(
            "matrix.html",
            0,
            view=view,
            groups=groups,
            group=group,
            matrix=matrix,
            rows=rows,
            total=total,
            marks=MARKS,
            columns=columns,
            cells=cells,
            pages=max(1, -(-total // ROWS)),
            widths=max(1, -(-len(matrix.candidates) // ACROSS)),
            age=self._age(matrix),
        )

    def _age(self, matrix: Matrix) -> float | None:
        """Return how old a matrix is in seconds; None if it is that of the current index."""
        return None if matrix.version == self.reader.version else time.monotonic() - matrix.at

    def selection(self, selection: Selection) -> str:
        """Render the commands for selected conversations."""
        runs, count = selected_runs(selection, self.reader, self._root, self._has_answer)
        return self._render("selection.html", 0, selection=selection, runs=runs, count=count, filter=selection.filter)

    def conversation(self, run: str, number: int, filter: Filter | None = None, at: int | None = None,  # noqa: A002
                     depth: int = 0, part: int = 1) -> str:  # fmt: skip
        """Render a part of a conversation's turns, all in an export.

        Its neighbours are those at `at` in the filtered list (None: those in its run).
        """
        latest = self._latest()
        listed = self._listed(run, number)
        page = self._read(run, number)
        chosen = filter or Filter()
        before, after = self._neighbours(listed, chosen, at)
        on_page = TurnsPart.select(page.turns, part, TURNS if self._served else len(page.turns) + 1)
        share_prompts(on_page.turns)
        query = filter_query(chosen, at)

        def address(part: int, anchor: str = "") -> str:
            return Links().conversation(listed, f"{query}&turns={part}" if query else f"turns={part}", anchor)

        return self._render(
            "conversation.html",
            depth,
            latest=latest,
            conversation=listed,
            page=page,
            part=on_page,
            to_part=address,
            to_turn=_to_turn(on_page, address),
            before=before,
            after=after,
            filter=chosen,
            at=at,
            query_of=filter_query,
            beside=self.reader.beside(listed),
            figures=next((run for run in self.reader.runs() if run.name == listed.run), None),
        )

    def call(self, run: str, number: int, turn: int) -> str:
        """Render the call behind a turn of a conversation, which counts from 1."""
        listed = self._listed(run, number)
        page = self._read(run, number)
        page_turn = page.turns[turn - 1] if 0 < turn <= len(page.turns) else None
        if page_turn is None or page_turn.rendered.call is None:
            raise Refusal(404, "Not found", f"turn {turn} of conversation {number} in the run '{run}' is no call")
        call = page_turn.rendered.call
        chat = call.messages is not None
        return self._render(
            "call.html",
            0,
            conversation=listed,
            page=page,
            turn=page_turn,
            back=Links().conversation(
                listed, f"turns={part_of(page_turn.anchor)}" if turn > TURNS else "", page_turn.anchor
            ),
            call=call,
            model=page.models.get(call.role),
            tokens=tokens(None if call.completion is None else call.completion.logprobs),
            curl=curl_command(call, page.models.get(call.role)) if chat else "",
            case=suite_case(call, f"{listed.key}#{turn}") if chat else "",
        )

    def compare(self, left: tuple[str, int], right: tuple[str, int], part: int = 1) -> str:
        """Render a part of two conversations side by side."""
        first, second = self._listed(*left), self._listed(*right)
        pages = [self._read(run, number) for run, number in (left, right)]
        pairs = pair_turns(*pages)
        on_page = TurnsPart.select(pairs, part)
        limit_words(on_page.turns)
        for side in ("left", "right"):
            share_prompts(turn for pair in on_page.turns if not pair.same and (turn := getattr(pair, side)) is not None)

        def address(part: int, anchor: str = "") -> str:
            return Links().compare(first, second) + f"&turns={part}" + (f"#{anchor}" if anchor else "")

        return self._render(
            "compare.html",
            0,
            first=first,
            second=second,
            pages=pages,
            part=on_page,
            to_part=address,
            to_turn=_to_turn(on_page, address),
            differences=differences(pairs),
            alike=replace(first.kind, judge="") == replace(second.kind, judge=""),
            beside=self.reader.beside(first),
        )

    def run_figures(self, run: str) -> RunFigures:
        """Return a run's row; refuse a run that is not in the index."""
        figures = self.reader.run(run)
        if figures is None:
            raise Refusal(404, "Not found", f"no run '{run}'")
        figures.running = is_running(self._path(run))  # the index is behind while it is being built
        return figures

    def run(
        self,
        run: str,
        live: LiveAnswer | None,
        *,
        busy: bool = False,
        steered: bool = False,
        form: str | None = None,
        answer: tuple[str, bool] | None = None,
        stopped: str = "",
    ) -> str:
        """Render a run: what it has done, what it waits for and, with a `form` token, the buttons that steer it.

        `live` is what the run says of itself, None unless it is in progress; `busy`: the index is still being built;
        `steered`: the operator may steer runs; `answer`: what the run said to the last button, and if it did it;
        `stopped`: what last ended it from a page.
        """
        view = self._run_view(run, live, busy, stopped)
        part = self._render("run_part.html", 0, view=view)
        status = None if live is None else live.status
        open_now = self.reader.listed(Filter(run=run, state="open")) if form is not None and status is not None else []
        return self._render(
            "run.html",
            0,
            view=view,
            record=self._record(run),
            part=Markup(part),
            latest=part_number(part),
            events=urlencode({"page": "run", "run": run, "since": part_number(part)}),
            steered=steered,
            form=form,
            answer=answer,
            models=[] if status is None else sorted(status.models.items())[:_MODELS_SHOWN],
            open_now=open_now,
        )

    def run_part(self, run: str, live: LiveAnswer | None, busy: bool = False, stopped: str = "") -> str:
        """Render the live part of a run's page."""
        return self._render("run_part.html", 0, view=self._run_view(run, live, busy, stopped))

    def confirmation(self, run: str, question: Confirmation, form: str) -> str:
        """Render the page that asks before a run's work is ended."""
        return self._render("confirm.html", 0, run=run, question=question, form=form)

    def run_path(self, run: str) -> Path:
        """Return the folder of a run; only runs below the root are ever opened."""
        return self._path(run)

    def _run_view(self, run: str, live: LiveAnswer | None, busy: bool, stopped: str) -> RunView:
        now = time.time()
        figures = self.run_figures(run)
        load, record = read_load(self.reader, run, now), self._record(run)
        results, command = self._run_results(figures, record), resume_command(self._path(run))
        return RunView(figures, load, live, now, command, busy, results, record.imported, stopped)

    def _record(self, run: str) -> RunRecord:
        """Return what a run was; it is read again when its manifest changes."""
        path = self._path(run)
        state = record_state(path)
        kept = self._records.get(run)
        if kept is None or kept[0] != state:
            _make_room(self._records)
            kept = self._records[run] = (state, read_record(path))
        return kept[1]

    def _run_results(self, figures: RunFigures, record: RunRecord) -> RunResults:
        """Return scores and usage; those of a run in progress may be older than the index, so that they cost little."""
        version, began = self.reader.version, time.monotonic()
        kept = self._results.get(figures.name)
        if kept is not None and (kept[0] == version or (figures.running and began < kept[1])):
            return kept[2]
        results = read_results(self.reader, figures.name, record)
        ended = time.monotonic()
        # The first time has imports in it.
        pause = _RESULT_SECONDS if kept is None else max(_RESULT_SECONDS, _RESULT_SHARE * (ended - began))
        _make_room(self._results)
        self._results[figures.name] = version, ended + pause, results
        return results

    def comparing(self) -> str:
        """Render the page of an export that shows two conversations side by side; its address names both."""
        return self._render("comparing.html", 0)

    def problem(self, title: str, text: str, depth: int = 0) -> str:
        return self._render("refused.html", depth, refusal=Refusal(500, title, text))

    def style(self) -> str:
        return self._environment.get_template("view.css").render(colours=COLOURS)

    # -- data -----------------------------------------------------------------------------------------------------

    def _overview(self, context: PageContext) -> dict[str, Any]:
        runs = self.reader.runs()
        findings = context.answer.findings if context.answer is not None else []
        self._paths = self._paths if all(run.name in self._paths for run in runs) else dict(find_runs(self._root))
        answer, figures = context.answer, context.figures
        means = [] if figures is None else figures.means
        if answer is not None and answer.problem and not findings:
            means = [part | {"sentences": [_NO_VERDICTS]} for part in means]
        elif answer is None and context.busy:
            means = [part | {"sentences": [_PENDING]} for part in means]
        parts = [_with_defaults(part) for part in (*findings, *means)]
        for standing in (standing for part in parts for standing in part["standings"]):
            standing["candidate"] = index_name(standing["candidate"])
        blocks = self._blocks(runs, parts, context)
        return {
            "answer": answer,
            "busy": context.busy,
            "reading": context.reading,
            "blocks": blocks,
            "rules": list(dict.fromkeys(part["rule"] for part in parts if part["rule"])),
            "figures": figures,
            "has_means": any(not part["tested"] for block in blocks for part in block.parts),
            "running": [run for run in runs if run.running],
            "left_out": self.reader.left_out(),
            "ended": sum(run.ended for run in runs),
            "planned": sum(run.planned or run.total.total for run in runs),
        }

    def _blocks(self, runs: list[RunFigures], parts: list[dict[str, Any]], context: PageContext) -> list[OverviewBlock]:
        """Return a block for each scenario and dataset, in the order of their runs."""
        blocks: dict[tuple[str, str], OverviewBlock] = {}
        for run in runs:
            blocks.setdefault((run.scenario, run.dataset), OverviewBlock(run.scenario, run.dataset)).runs.append(run)
        scenarios = {run.scenario for run in runs}
        for block in blocks.values():
            block.chosen = {"dataset": block.dataset} | ({"scenario": block.scenario} if len(scenarios) > 1 else {})
        joint = []
        for part in parts:
            owner = _block_of(part, list(blocks.values()))
            if owner is None:
                joint.append(block := OverviewBlock(part["scenario"], part["about"], parts=[part]))
                if len(scenarios) > 1 and block.scenario in scenarios:
                    block.chosen = {"scenario": block.scenario}
            elif part["tested"] or not any(other["tested"] for other in owner.parts):
                owner.parts.append(part)
        _add_matrices(list(blocks.values()), self.reader.groups())
        failures, figures = self.reader.failures(), context.figures or IndexFigures([], {}, [], 0)
        costs = {} if context.answer is None else context.answer.costs
        for key, block in blocks.items():
            block.totals = _totals(block.runs)
            block.histories = figures.histories.get(key, [])
            block.failures = block_failures(failures, block.runs)
            block.ends = block_ends(figures.ends, block.runs)
            block.commands = [command for run in block.runs if (command := self._resume_command(run))]
            block.cost = costs.get(f"{block.scenario}\n{block.dataset}")
            block.hidden = max(0, len(block.runs) - _RUNS_SHOWN)
        # Verdicts come first; means without a test follow.
        return sorted([*joint, *blocks.values()], key=lambda block: not any(part["rule"] for part in block.parts))

    def _resume_command(self, run: RunFigures) -> tuple[str, str] | None:
        """Return what a run lacks and the command that resumes it; None if nothing is missing."""
        path = self._paths.get(run.name)
        missing = 0 if run.planned is None else run.planned - run.ended
        failed = run.total.failed
        if path is None or run.running or run.problem or not (missing > 0 or failed):
            return None
        folder = shell_path(resumable_folder(path))
        lacks = [f"{missing:,} not finished"] * (missing > 0) + [f"{failed:,} failed"] * bool(failed)
        return f"{run.name}: {', '.join(lacks)}", f"viva resume {folder}" + " --retry-failed" * bool(failed)

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

    def _excerpt(self, conversation: ListedConversation, words: SearchedWords) -> str:
        """Return some words around those of a search, in an answer or the task."""
        return words.excerpt(self.conversations_read.texts(self._path(conversation.run), conversation.number))

    def _has_answer(self, conversation: ListedConversation) -> bool:
        """Return True if people can grade a finished conversation; False also if it cannot be read."""
        try:
            page = self.conversations_read.read(self._path(conversation.run), conversation.number)
        except (VivaError, Refusal):
            return False
        return has_answer(turn.rendered for turn in page.turns)

    def _listed(self, run: str, number: int) -> ListedConversation:
        conversation = self.reader.conversation(run, number)
        if conversation is None:
            raise Refusal(404, "Not found", f"no conversation {number} in the run '{run}'")
        return conversation

    def _read(self, run: str, number: int) -> PageConversation:
        path = self._path(run)
        try:
            return self.conversations_read.read(path, number)
        except JournalError as error:
            raise Refusal(500, "Cannot be shown", str(error)) from None

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
            matrix_query=lambda **chosen: MatrixView(**chosen).query(),
            **values,
        )


@dataclass(slots=True)
class OverviewBlock:
    """Everything on one scenario and dataset: findings, figures by candidate, cost, histories, failures, ends, runs.

    `commands` has pairs of what a run lacks and the command that resumes it; `cost` is None if it is unknown. `chosen`
    are the fields of a filter that select its conversations.
    """

    scenario: str
    dataset: str
    parts: list[dict[str, Any]] = field(default_factory=list)
    runs: list[RunFigures] = field(default_factory=list)
    totals: dict[str, Any] = field(default_factory=dict)
    histories: list[CandidateHistory] = field(default_factory=list)
    failures: list[BlockFailure] = field(default_factory=list)
    ends: list[tuple[str, int]] = field(default_factory=list)
    commands: list[tuple[str, str]] = field(default_factory=list)
    cost: float | None = None
    hidden: int = 0
    chosen: dict[str, str] = field(default_factory=dict)

    def query(self, **more: str) -> str:
        """Return the query of a list of its conversations, with further fields of the filter."""
        return Filter(**self.chosen, **more).query()  # type: ignore[arg-type]

    def query_of(self, part: dict[str, Any], candidate: str) -> str:
        """Return the query of a list of the candidate's conversations that a part of the findings is about."""
        several = sum(other["set"] == part["set"] for other in self.parts) > 1
        return self.query(candidate=candidate, set=part["set"], **({"matrix": part["matrix"]} if several else {}))

    @property
    def anchor(self) -> str:
        """The block's id in the page, which stays the same while blocks come and go."""
        name = f"{self.scenario}/{self.dataset}".encode("utf-8", "surrogatepass")
        return f"block-{hashlib.blake2b(name, digest_size=4).hexdigest()}"

    @property
    def is_adaptive(self) -> bool:
        return any(run.adaptive for run in self.runs)

    @property
    def verdicts(self) -> list[tuple[str, str, bool]]:
        """The first sentence of each part, with its subject and True if it is tested; one for all untested parts."""
        tested = [
            (part["about"], part["sentences"][0], True) for part in self.parts if part["tested"] and part["sentences"]
        ]
        untested = list(dict.fromkeys(part["sentences"][0] for part in self.parts if not part["tested"]))
        if len(untested) > 1:
            so_far = "" if all(run.is_complete for run in self.runs) else ", so far"
            untested = [f"Mean scores only{so_far}: no test compares the candidates."]
        return [*tested, *((self.dataset, sentence, False) for sentence in untested)]

    @property
    def title(self) -> str:
        return f"{self.scenario} · {self.dataset}" if self.dataset else self.scenario

    @property
    def ended(self) -> int:
        return sum(run.ended for run in self.runs)

    @property
    def planned(self) -> int:
        return sum(run.planned or run.total.total for run in self.runs)

    @property
    def tokens(self) -> int:
        return sum(figures.tokens for figures in self.totals.values())

    @property
    def calls(self) -> int:
        return sum(figures.calls for figures in self.totals.values())


def _make_room(kept: dict[str, Any]) -> None:
    if len(kept) >= _KEPT_RUNS:
        del kept[next(iter(kept))]


def _block_of(part: dict[str, Any], blocks: list[OverviewBlock]) -> OverviewBlock | None:
    """Return the block of findings; their name may state circumstances after the dataset's name in parentheses."""
    own = [block for block in blocks if block.scenario == part["scenario"]]
    exact = [block for block in own if block.dataset == part["about"]]
    named = [block for block in own if str(part["about"]).startswith(f"{block.dataset} (")]
    return next(iter([*exact, *named, *(own if len(own) == 1 else [])]), None)


def _add_matrices(blocks: list[OverviewBlock], groups: list[RunGroup]) -> None:
    """Name the matrix of each part with a test, if its block has only one."""
    for block in blocks:
        names = {run.name for run in block.runs}
        own = [group for group in groups if not group.second and names.issuperset(group.names)]
        for part in block.parts:
            if part["tested"] and len(own) == 1:
                part["matrix"] = own[0].id


def _with_defaults(finding: dict[str, Any]) -> dict[str, Any]:
    """Return a part with the keys that only mean scores have, and its axis."""
    part: dict[str, Any] = {"tested": True, "set": "", "matrix": "", "scale": None, "clusters": "", **finding}
    low, high = part["scale"] = part["scale"] or _scale(part["standings"])
    return {"digits": 1 if high - low > 10 else 2, **part}


def viewer_templates() -> Environment:
    """Load the viewer's templates."""
    environment = template_environment(TEMPLATES)
    environment.filters |= {
        "bounded": bounded_text,
        "grade": mark_class,
        "isolated": isolated,
        "seconds": format_duration,
        "points": format_points,
        "digits": lambda value, digits: f"{value:.{digits}f}",
        "whole": lambda number: f"{number:,}",
        "money": money,
    }
    return environment


def _to_turn(part: TurnsPart[Any], address: Callable[[int, str], str]) -> Callable[[str], str]:
    """Return a function that returns the address of a turn from its anchor: on this page, or on that of its part."""

    def to_turn(anchor: str) -> str:
        if part.count == 1 or part_of(anchor) == part.number:
            return f"#{anchor}"
        return address(part_of(anchor), anchor)

    return to_turn


def bounded_text(text: str) -> str:
    """Return a text, or the first part of a very long one, and say so."""
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]}\n… ({len(text) - LONGEST_TEXT:,} more characters; `viva show` writes all)"


def mark_class(level: float | None) -> Markup:
    """Return the style class of a mark, which is one of three levels."""
    if level is None:
        return Markup("plain")
    return Markup("low" if level < 0.34 else "middling" if level < 0.67 else "high")


def format_points(value: float, high: float | None) -> str:
    """Return a score with as many digits as its scale is worth."""
    return f"{value:.2f}" if high is not None and high <= 10 else f"{value:.1f}"


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
