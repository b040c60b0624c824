"""Say which results are older than the code that they measure (``make bench-check``); the exit code is 1 if any is.

A result names the commit that it was measured at. It is older if a later commit changed a file of the bench or of the
folders that ``MEASURED`` lists for it. A result without a commit counts as measured at the commit that last changed its
file. A bench of ``NEEDS_GPU`` may have no result, and is listed as such.
"""

from __future__ import annotations

import json
import sys

import table

ENGINE = "engine scenarios/kieval agents"
MEASURED = {
    "adaptive": "scoring/item_bank.py scoring/adaptive_exam.py scoring/confidence_sequences.py",
    "adaptive_lab": "scoring/item_bank.py scoring/adaptive_exam.py scoring/exam_course.py scoring/correlation.py "
    "scenarios/kieval/study/exam_verdicts.py lab/models lab/court",
    "audit": "scenarios/audit scoring/comparison.py",
    "batches": "engine/backends/batches.py engine/backends/batch_api.py",
    "certified": "scoring/certificate.py scoring/prediction_powered.py scoring/confidence_sequences.py",
    "claims": "benches/simulated_studies.py reports scenarios/kieval/study scenarios/lalaeval/candidate_grades.py "
    "scenarios/default_aggregate.py sweeps scoring",
    "court": "scoring/evidence/constat.py scoring/evidence/combination.py",
    "court_lab": "scoring/evidence lab/court",
    "court_nulls": "scoring/evidence/permutation.py scoring/evidence/exchangeability.py "
    "scoring/evidence/option_order.py scoring/evidence/context_gain.py scoring/evidence/guessing.py "
    "scoring/evidence/peakedness.py",
    "dialogs": "engine scenarios/functionchat agents",
    "exam_kills": "engine orchestration/exams.py scenarios/exam_report.py scoring/exam_course.py "
    "scoring/adaptive_exam.py",
    "exchange": "exchange",
    "faults": "engine",
    "fusion": "scenarios/fusion agents/assistants",
    "gpu": "benches/gpu benches/llama_programs.py engine/backends/llama",
    "grading": "web/grading web/page_server.py web/sessions.py web/markdown.py grading scoring/graders.py",
    "interview_rounds": "scenarios/kieval/score.py",
    "jury": "scoring/votes.py scoring/panels.py scoring/comparison.py",
    "judgement": "scoring/load_verdicts.py scoring/load_drift.py",
    "limits": "engine/limits.py engine/adaptive_limit.py engine/backends/retry.py",
    "load": "loadtest scoring/load_schedule.py scoring/load_latency.py",
    "local_judges": "loadtest engine/backends/llama",
    "overhead": ENGINE,
    "pairwise": "scoring/pairwise_rank.py",
    "plan": "sweeps",
    "probe": "scenarios/probes scenarios/choice_questions.py engine/backends/llama",
    "qualify": "scenarios/kieval/qualification scenarios/kieval/verdicts.py scoring/contamination.py",
    "report": "reports scenarios/kieval scoring web/report",
    "rollout": "engine/backends/llama",
    "serve": "web/openai web/application.py engine/backends/llama",
    "soak": ENGINE,
    "store": "engine reports/studies",
    "suites": "scenarios/flexeval",
    "view": "web/view engine/journal_reader.py",
}
NEEDS_GPU = {"gpu"}  # may have no result yet: nothing but a card can measure it


def main() -> int:
    """Print one row for each result and return the exit code."""
    rows, older = [], 0
    for path in sorted(table.RESULTS.glob("*.json")):
        bench = path.stem
        result = json.loads(path.read_text())
        commit = result.get("commit", "").rstrip("+") or table.git("log", "-1", "--format=%h", "--", str(path))
        date = result.get("date") or table.git("log", "-1", "--format=%cs", "--", str(path))
        places = [f"benches/{bench}.py", *MEASURED.get(bench, "").split()]
        here = [str(table.RESULTS.parents[1] / name) for name in places]
        known = bool(commit) and table.git("cat-file", "-t", commit) == "commit"
        since = len(table.git("log", "--format=%h", f"{commit}..HEAD", "--", *here).split()) if known else 0
        verdict = "commit not found" if not known else f"older: {since} commits since" if since else "current"
        if bench not in MEASURED:
            verdict = "no entry in MEASURED"
        older += verdict != "current"
        rows.append([bench, commit, date, verdict])
    for bench in sorted(MEASURED.keys() - {row[0] for row in rows}):
        older += bench not in NEEDS_GPU
        rows.append([bench, "–", "–", "not measured yet: needs a GPU" if bench in NEEDS_GPU else "not measured"])
    table.show("results and the code that they measure", ["bench", "commit", "date", ""], rows)
    return int(older > 0)


if __name__ == "__main__":
    sys.exit(main())
