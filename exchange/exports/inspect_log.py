"""Cells as logs of Inspect (``.eval``), one a cell, written by the package ``inspect_ai`` itself.

A conversation is a sample: the compared model's dialog are its messages, every call of every role is an event, and each
criterion is a score with the judge's words as explanation. What never belongs here: what a score means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import anyio

from viva.engine.escapes import in_utf8
from viva.engine.lazy_import import imported
from viva.reports.rows import Row

from .cells import ExportCell
from .conversations import Conversation, conversations
from .exported import Exported
from .inspect_samples import Samples
from .writing import needed, our_version, safe_name, whole_file

AT_ONCE = 2_000  # samples that inspect's own writer may hold in memory
_FLUSHED = 500
_STATES = {"done": "success", "stopped": "success"}  # everything else was cut off


def export_inspect(cells: Sequence[ExportCell], out: Path, at_once: int = AT_ONCE) -> Exported:
    """One log a cell in the folder ``out``, by ``write_eval_log``.

    That function holds every sample until the file is written; so a cell of more than ``at_once`` conversations is
    written through the recorder behind it, ``_FLUSHED`` samples at a time.

    :raises ConfigurationError: the package is not installed, or a file cannot be written.
    """
    log_module = needed("inspect_ai.log", "inspect", "writing logs of Inspect")
    done = Exported()
    for cell in cells:
        file = out / f"{safe_name(cell.name)}.eval"
        log = _log(cell)
        with whole_file(file) as part:
            if cell.ended <= at_once:
                log.samples = list(_samples(cell))
                log_module.write_eval_log(log, str(part), format="eval")
            else:
                anyio.run(_streamed, log, part, cell)
        done.files.append(file)
        done.records += cell.ended
    return done


def _samples(cell: ExportCell) -> Iterator[Any]:
    make: Callable[[Conversation], Any] = Samples(cell).sample
    return (make(one) for one in conversations(cell))


async def _streamed(log: Any, file: Path, cell: ExportCell) -> None:
    """What ``write_eval_log`` does with a list of samples, with a look at memory in between."""
    recorder = imported("inspect_ai.log._recorders.eval").EvalRecorder(str(file.parent))
    condensed = imported("inspect_ai.log._condense").condense_sample
    await recorder.log_init(log.eval, str(file), clean=True)
    await recorder.log_start(log.eval, log.plan)
    for number, sample in enumerate(_samples(cell), 1):
        await recorder.log_sample(log.eval, condensed(sample))
        if number % _FLUSHED == 0:  # its own flush would copy the whole file each time
            await next(iter(recorder.data.values())).write_buffered_samples()
    await recorder.log_finish(log.eval, log.status, log.stats, log.results, None, None)


def _log(cell: ExportCell) -> Any:
    """A cell's log without its samples."""
    made = imported("inspect_ai.log")
    manifest = cell.manifest
    identity = f"{manifest['seed']}/{cell.name}/{cell.dataset}/{cell.began}"
    began, finished = _time(cell.began), _time(cell.finished)
    settings = in_utf8(manifest["settings"])
    spec = made.EvalSpec(
        eval_id=_id("eval", identity),
        run_id=_id("run", identity),
        task_id=_id("task", cell.which.name, cell.dataset),
        created=began,
        task=cell.which.name,
        task_version=str(manifest["versions"].get("viva", "")),
        task_args=settings,
        tags=["viva"],
        dataset=made.EvalDataset(name=cell.dataset, samples=len(cell.tasks), sample_ids=cell.tasks),
        model=cell.model,
        model_roles=_model_roles(cell) or None,
        config=made.EvalConfig(epochs=cell.which.repeats(cell.settings), fail_on_error=False),
        packages={"viva-exam": our_version()},
        metadata=in_utf8({"viva": {"cell": cell.name, "label": cell.label, "seed": cell.seed, "tier": manifest["tier"],
                                   "pack": manifest["pack"], "dataset": manifest["dataset"], "judge": cell.judge}}),
        headline_metric={"score": next(iter(cell.criteria), None), "metric": "mean"},
        scorers=[{"name": name, "options": {}, "metrics": []} for name in cell.criteria],
    )  # fmt: skip
    plan = made.EvalPlan(name=cell.which.name, steps=[made.EvalPlanStep(solver=cell.which.name, params=settings)])
    stats = made.EvalStats(started_at=began, completed_at=finished)
    stats.role_usage = {role: _usage(used) for role, used in cell.usage.items()}
    for role, used in cell.usage.items():
        model = cell.model_of(role)
        if model is not None:
            stats.model_usage[model] = stats.model_usage.get(model, _usage({})) + _usage(used)
    status = _STATES.get(cell.state, "cancelled")
    return made.EvalLog(status=status, eval=spec, plan=plan, results=_results(cell), stats=stats)


def _model_roles(cell: ExportCell) -> dict[str, Any]:
    config = imported("inspect_ai.model").ModelConfig
    return {role.name: config(model=model) for role in cell.roles
            if role.name != cell.compared and (model := cell.model_of(role.name)) is not None}  # fmt: skip


def _results(cell: ExportCell) -> Any:
    """The criteria, each with mean and standard error; the figures of the run's own report are the metadata."""
    made = imported("inspect_ai.log")
    scores = []
    for one in cell.criteria.values():
        figures = {"mean": one.mean.mean, "stderr": one.mean.se} if one.mean is not None else {}
        known = {name: value for name, value in figures.items() if value is not None}
        held = 0 if one.mean is None else one.mean.n
        score = made.EvalScore(name=one.name, scorer=cell.which.name, scored_samples=held)
        score.unscored_samples = one.unscored
        score.metrics = {name: made.EvalMetric(name=name, value=value) for name, value in known.items()}
        scores.append(score)
    finished = cell.ended - cell.failed
    results = made.EvalResults(total_samples=cell.planned, completed_samples=finished, scores=scores)
    results.metadata = {"report": {name: _plain(row) for name, row in cell.figures.items()}}
    return results


def _plain(row: Row) -> dict[str, Any]:
    """A figure without what it has not."""
    return {field: row[field] for field in ("value", "se", "low", "high", "n") if row[field] is not None}


def _usage(used: Any) -> Any:
    sent, said = int(used.get("prompt_tokens") or 0), int(used.get("completion_tokens") or 0)
    usage = imported("inspect_ai.model").ModelUsage(input_tokens=sent, output_tokens=said, total_tokens=sent + said)
    usage.total_cost = used.get("cost")
    return usage


def _time(seconds: float | None) -> str:
    return datetime.fromtimestamp(seconds or 0, UTC).isoformat()


def _id(*parts: str) -> str:
    """An id like those of Inspect: the same parts give the same one."""
    return blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=11).hexdigest()
