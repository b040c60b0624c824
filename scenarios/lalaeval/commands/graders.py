"""Commands `viva grade graders`, `serve`, `answer`, `queue`, `labels` and `invalidate`: graders and folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from viva.cli.exit_codes import print_note

if TYPE_CHECKING:
    from viva.grading.records import GraderRole, GraderState, Label
    from viva.grading.run_answers import Unit
    from viva.grading.store import GradeStore
    from viva.web.grading.site import NewLink

GraderAction = Literal["list", "add", "pause", "resume", "retire", "link"]
GRADERS_EXAMPLE = """\b
Examples:
  viva grade graders queue
  viva grade graders queue add Ada
  viva grade graders queue add Grace --role adjudicator --expires 2w
  viva grade graders queue retire Ada"""


def graders(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Grading folder.")],
    action: Annotated[
        GraderAction, typer.Argument(metavar="list|add|pause|resume|retire|link", help="What to do.")
    ] = "list",
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The grader.")] = None,
    role: Annotated[
        Literal["grader", "adjudicator", "admin"], typer.Option("--role", help="Role of a new grader.")
    ] = "grader",
    expires: Annotated[
        str, typer.Option("--expires", metavar="TIME", help="Validity of the link: 12h, 7d, 2w, never.")
    ] = "never",
) -> None:
    """List, add, pause, resume or retire the graders of a folder, or make a new secret link."""
    from viva.engine.errors import ConfigurationError
    from viva.grading.store import GradeStore

    if (action == "list") != (name is None):
        raise ConfigurationError(f"{action}: give the grader's name" if name is None else "list: does not take a name")
    with GradeStore.open(folder) as store:
        if name is None:
            _print_graders(store)
        else:
            _apply_action(store, action, name, role, expires)


def _apply_action(store: GradeStore, action: GraderAction, name: str, role: GraderRole, expires: str) -> None:
    from viva.web.grading.site import ADDRESS_KEY, make_link

    states: dict[str, GraderState] = {"pause": "paused", "resume": "active", "retire": "retired"}
    if action in states:
        store.set_state(store.grader(name).number, states[action], "viva grade graders")
        print(f"{name}: {states[action]}")
        return
    address = store.meta(ADDRESS_KEY)
    with store.batch():
        grader = store.add_grader(name, role=role) if action == "add" else store.grader(name)
        store.log("viva grade graders", f"added {name} as {role}" if action == "add" else f"{name}: new link")
        link = make_link(store, grader, address or "", expires)
    print(f"{name} ({grader.role}): {link.url}")
    if address is None:
        print(f"Prefix the link with the address that `viva grade serve {store.folder}` prints.")


def _print_graders(store: GradeStore) -> None:
    from viva.cli.output import print_tables
    from viva.grading.assignments import grader_progress
    from viva.reports.tables import DASH

    rows = []
    for grader in store.graders():
        progress = grader_progress(store, grader)
        remaining = str(progress.left) if grader.role == "grader" or progress.finished + progress.begun else DASH
        counts = [str(progress.finished), str(progress.begun), remaining]
        rows.append([str(grader.number), grader.name, grader.role, grader.model or grader.kind, grader.state, *counts])
    print_tables([("Graders", ["", "name", "role", "kind", "state", "finished", "begun", "left"], rows)])


GRADING_PORT = 7789
SERVE_EXAMPLE = """\b
Examples:
  viva grade serve project/rounds/first
  viva grade serve queue --host 0.0.0.0 \\
      --name grades.example.org --url https://grades.example.org"""


def serve(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Grading folder.")],
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on (0: any free one).")
    ] = GRADING_PORT,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    name: Annotated[
        list[str] | None, typer.Option("--name", metavar="HOST", help="Host name under which pages may be requested.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Address that graders use, if behind a proxy: https://HOST.")
    ] = None,
    expires: Annotated[
        str, typer.Option("--expires", metavar="TIME", help="Validity of new links: 12h, 7d, 2w, never.")
    ] = "never",
) -> None:
    """Serve the grading pages of a folder; prints a secret link for each person without one."""
    from viva.web.auth import is_loopback
    from viva.web.grading.server import serve
    from viva.web.page_server import PageServer

    if not is_loopback(host) and not (url or "").startswith("https:"):
        print_note("over plain http, links and grades can be read in transit; put an https proxy in front of the "
                   "pages, and give its address with --url")  # fmt: skip
    serve(folder, PageServer(host, port, name or (), url), _print_grader_links, expires=expires)


def _print_grader_links(address: str, links: list[NewLink]) -> None:
    for link in links:
        print(f"{link.grader.name} ({link.grader.role}): {link.url}")
    if links:
        print("These links are shown only once: send each person theirs, or store this text safely.")
    print(f"viva grade: {address}/  (Ctrl-C to stop)", flush=True)


ROOM_PORT = 7790
ANSWER_EXAMPLE = """\b
Examples:
  viva grade answer room      # for `viva run … --candidate human:room`
  viva grade answer ada grace --port 8080     # two rooms, with a link each"""


def answer_as_human(
    room: Annotated[
        list[Path],
        typer.Argument(metavar="ROOM...", help="Folder of a room, as in human:ROOM; created if missing."),
    ],
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on (0: any free one).")
    ] = ROOM_PORT,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    name: Annotated[
        list[str] | None, typer.Option("--name", metavar="HOST", help="Host name under which pages may be requested.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", help="Address that people use, if behind a proxy: https://HOST.")
    ] = None,
) -> None:
    """Serve pages on which people answer for human:ROOM. Prints a secret link for each room."""
    from viva.web.auth import is_loopback
    from viva.web.page_server import PageServer
    from viva.web.rooms.server import serve

    if not is_loopback(host) and not (url or "").startswith("https:"):
        print_note("over plain http, links and answers can be read in transit; put an https proxy in front of the "
                   "pages, and give its address with --url")  # fmt: skip
    serve(room, PageServer(host, port, name or (), url), _print_room_links)


def _print_room_links(links: Mapping[str, str]) -> None:
    for folder, link in links.items():
        print(f"viva grade: {folder}: {link}")
    print("Anyone with a link can answer there (Ctrl-C to stop)", flush=True)


QUEUE_EXAMPLE = """\b
Examples:
  viva grade queue runs/sweep/cell --rounds -n 60 --out queue
  viva judge certify runs/kieval --select 40 --out next.csv --rounds
  viva grade queue runs/kieval --select next.csv --out queue"""
LABELS_EXAMPLE = """\b
Examples:
  viva grade labels queue --out grades.csv
  viva judge certify runs/kieval --labels grades.csv
  viva grade labels queue --ratings ratings.csv
  viva judge compare runs/kieval --ratings ratings.csv"""


def queue(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of any scenario.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Grading folder to create.")],
    rounds: Annotated[bool, typer.Option("--rounds", help="Grade rounds instead of whole conversations.")] = False,
    verdicts: Annotated[bool, typer.Option("--verdicts", help="Grade the judge's verdict on each round.")] = False,
    select: Annotated[
        Path | None,
        typer.Option("--select", help="File of answers by `viva judge certify --select`, or selected in `viva view`."),
    ] = None,
    n: Annotated[
        int | None, typer.Option("-n", min=1, help="Number of answers, drawn at random (default: all).")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draw and of the blind order.")] = 0,
    overlap: Annotated[int, typer.Option("--overlap", min=1, help="Number of graders per question.")] = 3,
    labels: Annotated[
        str | None, typer.Option("--labels", metavar="0=wrong,1=right", help="Permitted grades, worst first.")
    ] = None,
) -> None:
    """Make a grading folder from a run's answers: whole conversations, rounds, or verdicts."""
    from viva.engine.errors import ConfigurationError
    from viva.grading.human_grades import has_rounds
    from viva.grading.run_answers import (
        gradable_answers,
        labels_for,
        make_questions,
        read_selection,
        sample_answers,
        store_run_rows,
    )
    from viva.grading.store import GradeStore

    if (select is not None) + (n is not None) > 1:
        raise ConfigurationError("--select and -n: give only one of them; --select selects the answers")
    if rounds and verdicts:
        raise ConfigurationError("--rounds and --verdicts: give only one of them")
    if select is not None and not verdicts:
        rounds = has_rounds(select)
    unit: Unit = "verdicts" if verdicts else "rounds" if rounds else "conversations"
    answers = gradable_answers(run, unit)
    chosen = (
        read_selection(select, answers)
        if select is not None
        else sample_answers(answers, n, seed)
        if n is not None
        else None
    )
    allowed = _parse_labels(labels) if labels is not None else labels_for(answers, unit)
    questions = make_questions(run, answers, unit, chosen, overlap=overlap, labels=allowed)
    about = {"run": run.name, "what": unit, "kind": "evaluation"}
    with GradeStore.create(out, questions, title=f"{run.name}: {unit}", seed=seed, about=about) as store:
        if unit != "verdicts":
            store_run_rows(store, answers, chosen)
    count = sum(len(question.answers) for question in questions)
    print(f"{out}: {count:,} answers on {len(questions):,} pages, for {overlap} graders each")
    print_note(f"add graders and serve the pages: viva grade graders {out} add NAME; viva grade serve {out}")


def labels(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Grading folder that `viva grade queue` made.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.csv", help="Grades for `viva judge certify --labels`.")
    ] = None,
    ratings: Annotated[
        Path | None,
        typer.Option("--ratings", metavar="FILE.csv", help="Each grader's grades, for `viva judge compare --ratings`."),
    ] = None,
) -> None:
    """Write people's grades as files for `viva judge certify` and `viva judge compare`."""
    from viva.engine.errors import ConfigurationError
    from viva.grading.run_answers import write_labels, write_ratings
    from viva.grading.store import GradeStore

    if out is None and ratings is None:
        raise ConfigurationError("give --out FILE.csv, --ratings FILE.csv, or both")
    with GradeStore.open(folder) as store:
        if out is not None:
            graded, waiting = write_labels(store, out)
            print(f"{out}: {graded:,} graded answers" + (f", {waiting:,} still to grade" if waiting else ""))
        if ratings is not None:
            print(f"{ratings}: {write_ratings(store, ratings):,} rated answers")


def _parse_labels(text: str) -> list[Label]:
    """Parse VALUE=MEANING, separated by commas.

    Raises:
        ConfigurationError: It has another form.
    """
    from viva.engine.errors import ConfigurationError
    from viva.grading.human_grades import finite_number
    from viva.grading.records import Label

    parsed = []
    for part in text.split(","):
        value, _, meaning = part.partition("=")
        number = finite_number(value.strip())
        if number is None:
            raise ConfigurationError(f"--labels: expected NUMBER=MEANING, separated by commas, found '{part}'")
        parsed.append(Label(number, meaning.strip()))
    if len({label.value for label in parsed}) < max(2, len(parsed)):
        raise ConfigurationError(f"--labels {text}: expected at least two different grades")
    return sorted(parsed, key=lambda label: label.value)


INVALIDATE_EXAMPLE = """\b
Examples:
  viva grade invalidate library/rounds/2026-06 lifeguard --by Dora \\
      --reason "the source is outdated"
  viva grade invalidate library/rounds/2026-06 lifeguard --grader Cleo \\
      --candidate alpha --by Dora --reason "misread"
  viva grade invalidate library/rounds/2026-06 lifeguard --by Dora \\
      --reason "" """


def invalidate(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Grading folder, such as a round's.")],
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="Question id.")],
    author: Annotated[str, typer.Option("--by", metavar="NAME", help="Your name.")],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Reason; an empty one includes the grades again.")
    ],
    grader: Annotated[
        str | None, typer.Option("--grader", metavar="NAME", help="Only the grades of this grader.")
    ] = None,
    candidate: Annotated[
        str | None,
        typer.Option("--candidate", metavar="NAME", help="Only the grade of this candidate's answer (with --grader)."),
    ] = None,
) -> None:
    """Exclude a question, or a grader's grades of it, from the figures.

    The grades are kept, and the folder records who excluded them and why.
    """
    from viva.engine.errors import ConfigurationError
    from viva.grading.store import GradeStore

    if not author.strip():
        raise ConfigurationError("--by: expected a name")
    if candidate is not None and grader is None:
        raise ConfigurationError("--candidate: also give --grader")
    reason = reason.strip()
    with GradeStore.open(folder) as store:
        row = store.connection.execute("select number from questions where id = ?", (question,)).fetchone()
        if row is None:
            raise ConfigurationError(f"{folder}: there is no question '{question}'")
        outcome = "counts again" if not reason else "is excluded from the figures"
        if grader is None:
            store.invalidate_question(row[0], author, reason)
            print(f"question {question} {outcome}")
            return
        number = store.grader(grader).number
        answers = {answer.id: answer.candidate for answer in store.question(row[0]).answers}
        if candidate is not None and candidate not in answers.values():
            raise ConfigurationError(f"question '{question}': has no answer of '{candidate}'")
        graded = [answer.answer for answer in store.grades(grader=number, question=row[0])]
        selected = [answer for answer in graded if candidate is None or answers[answer] == candidate]
        if not selected:
            raise ConfigurationError(f"question '{question}': no such grade by {grader}")
        with store.batch():
            for answer in selected:
                store.invalidate(answer, number, author, reason)
        print(f"{len(selected)} grade{'s' * (len(selected) != 1)} of {grader} for question {question}: {outcome}")
