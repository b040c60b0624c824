"""Judges with assistants over real examples and made ones: modes, gaps, repairs, expected scores, forks, kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from command import viva as viva_command
from scipy.stats import spearmanr
from scripted import scripted_models
from small_fusion import judged, make_files
from tiny_gguf import make_model
from viva_process import ended, started

import viva
from viva.engine.clock import VirtualClock
from viva.engine.errors import ConfigurationError
from viva.engine.permissions import Client, NotPermitted, Permissions, bound_permissions
from viva.engine.run_folder import RunFolder
from viva.engine.seeds import derive
from viva.orchestration.launch import recorded_results, resumed_run
from viva.reports.studies.study import Study, study_tables

DATA = Path(os.environ.get("VIVA_DATA") or Path(__file__).parents[3] / ".." / "shared" / "data").resolve()
TOPICAL = DATA / "topicalchat" / "unieval_predictions.json"
MODES: dict[str, dict[str, Any]] = {"direct": {}, "noplan": {}, "plan": {"plan": "plan.yaml"}}


def _prompts(run: viva.Run, key: str) -> list[Any]:
    async def main() -> Any:
        return await run.transcript(key)

    talk = VirtualClock().run(main)
    assert talk.problem is None
    return [speech.prompt["messages"] for speech in talk.speeches if speech.prompt and "messages" in speech.prompt]


def test_assistants_of_known_noise_help_a_noisy_judge_and_a_plan_tells_which(tmp_path: Path) -> None:
    files = make_files(tmp_path, 40)
    judges = [f"simulated:j{place}?noise=0.4" for place in range(2)]
    assistants = [f"{tmp_path / 'mine.py'}#{name}" for name in ("good", "noise")]
    mean = {}
    for mode in MODES:
        plan = {"plan": str(tmp_path / "plan.yaml")}
        run = judged(tmp_path / mode, judges, mode=mode, assistant=assistants, predictions=2, **plan, **files)
        agreement = [one["agreement"] for one in run.report()["candidates"].values()]
        assert list(agreement[0]) == ["depth"]  # nobody rated the style
        sources = [one["depth"]["sources"] for one in agreement]
        mean[mode] = sum(one["judge"]["items"]["spearman"]["value"] for one in sources) / len(judges)
        for one in sources:
            both = {name: found["items"]["spearman"]["value"] for name, found in one.items()}
            assert both["good"] == both["LLMSel(AE)"] > both["AVG(AE)"]
            assert both["CorrW(AE)"] > both["AVG(AE)"]
        assert agreement[0]["depth"]["weights"]["good"] > 0.7
        _check_agreement_with_assistants(run, mode)
    assert mean["direct"] + 0.1 < mean["plan"]
    assert mean["noplan"] < mean["plan"]


def _check_agreement_with_assistants(run: viva.Run, mode: str) -> None:
    """Tables 5 to 8 of the paper: the judge's scores beside each assistant's numbers, from the results alone."""
    found = run.report()["candidates"]["j0"]["assistant_agreement"]
    assert list(found) == ["depth", "style"]  # rated by people or not
    results = [one.value for one in run.results() if one.key.startswith("j0/")]
    for place, name in enumerate(("good", "noise")):
        pairs = [(one["scores"]["depth"]["mean"], one["assistants"][place]["value"]) for one in results]
        by_hand = spearmanr(*zip(*pairs, strict=True)).statistic
        assert found["depth"][name]["items"]["spearman"]["value"] == pytest.approx(by_hand, abs=1e-6)
        assert found["depth"][name]["in_plan"] is (name == "good")
    good, noise = (found["depth"][name]["items"]["spearman"]["value"] for name in ("good", "noise"))
    assert good > noise + 0.2
    tables = study_tables(Study([run.path]).report())
    [rows] = [rows for title, _, rows in tables if title.startswith("Agreement with the assistants: Spearman")]
    assert [row[-2].endswith("*") for row in rows if row[-3] == "good"] == [True, True]
    assert not any(cell.endswith("*") for row in rows if row[-3] == "noise" for cell in row)


def test_the_time_of_an_example_is_that_of_its_slowest_assistant_and_prediction(tmp_path: Path) -> None:
    assistants = ["a=judge:simulated:a?latency=0.5&sigma=0", "b=judge:simulated:b?latency=0.25&sigma=0"]
    judges = ["simulated:j?latency=2&sigma=0", "simulated:broken?latency=2&sigma=0&malformed=1"]
    run = judged(
        tmp_path / "run", judges, mode="noplan", assistant=assistants, predictions=3, **make_files(tmp_path, 4)
    )
    assert "timing" not in run.report(), "reports with equal answers are equal"
    results = recorded_results(RunFolder.open(run.path))
    results.add_times()
    timing = results.report()["timing"]
    assert timing["j"] == {
        "assistants": {"mean": 0.5, "median": 0.5, "n": 4},
        "judge": {"mean": 2.0, "median": 2.0, "n": 4},
    }
    assert timing["broken"]["judge"]["mean"] == 4.0  # each prediction is requested twice
    done = viva_command("report", run.path, "--times")
    assert done.returncode == 0, done.stderr
    assert ["j", "judge", "2.000", "2.000", "4"] in [line.split() for line in done.stdout.splitlines()]


def test_the_interval_of_a_mean_score_stays_within_the_criterions_range(tmp_path: Path) -> None:
    files = make_files(tmp_path, 3)
    script = {("judge", 0): _answer(5, 0)}  # in each of the examples
    with scripted_models(script):
        run = judged(tmp_path / "run", ["scripted:j"], mode="direct", predictions=1, **files)
    criteria = run.report()["candidates"]["j"]["criteria"]
    assert (criteria["depth"]["mean"], criteria["style"]["mean"]) == (5.0, 0.0)
    assert 1 < criteria["depth"]["low"] < 5 == criteria["depth"]["high"]  # three examples do not say that all are a 5
    assert criteria["style"]["low"] == 0 < criteria["style"]["high"] < 1


def test_each_mode_tells_the_judge_what_it_should(tmp_path: Path) -> None:
    files = make_files(tmp_path, 3)
    plan = str(tmp_path / "plan.yaml")
    asked = [f"{tmp_path / 'mine.py'}#good", f"{tmp_path / 'mine.py'}#noise", "bleu", "chrf@good"]
    for mode in MODES:
        run = judged(tmp_path / mode, ["simulated:j"], mode=mode, assistant=asked, predictions=2, plan=plan, **files)
        first, second = _prompts(run, "j/e1")
        assert first == second  # two predictions of one prompt, by seeds of their own
        system, question = (message["content"] for message in first)
        assert "depth (any number from 1 to 5): Does it go below" in system
        assert ("bleu: BLEU, the response with question; from 0 to 1" in system) is (mode != "direct")
        assert ("- bleu: 0." in question) is (mode != "direct")
        assert ("Trust good for depth" in system) is (mode == "plan")
        assert "Question:\nWhat is the use of thing 1?" in question
        [result] = [one.value for one in run.results() if one.key == "j/e1"]
        assert [one["name"] for one in result["assistants"]] == ["good", "noise", "bleu", "chrf@good"]
        assert result["scores"]["depth"]["n"] == 2
        assert result["scores"]["depth"]["sd"] > 0
        assert run.manifest["plan"]["text"] == (tmp_path / "plan.yaml").read_text()


def test_a_gap_is_told_to_the_judge_and_counted(tmp_path: Path) -> None:
    files = make_files(tmp_path, 3)
    rows = [json.loads(line) for line in (tmp_path / "examples.jsonl").read_text().splitlines()]
    rows[1]["good"] = "rather good"
    del rows[2]["good"]
    (tmp_path / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [f"{tmp_path / 'mine.py'}#good", "bleu@good"]
    run = judged(tmp_path / "run", ["simulated:j"], mode="noplan", assistant=asked, **files)
    question = _prompts(run, "j/e1")[0][1]["content"]
    assert "- good: no number (ValueError: could not convert string to float: 'rather good')" in question
    report = run.report()["candidates"]["j"]
    assert report["gaps"]["bleu@good"] == {"the example has no text 'good'": 1}
    assert sum(report["gaps"]["good"].values()) == 2
    assert report["criteria"]["depth"]["n"] == 3


def _answer(depth: Any, style: Any) -> dict[str, Any]:
    said = {"depth": {"explanation": "It digs.", "score": depth}, "style": {"explanation": "Plain.", "score": style}}
    return {"text": orjson.dumps(said).decode()}


def test_what_cannot_be_read_is_asked_for_again_and_the_rest_stays_unscored(tmp_path: Path) -> None:
    files = make_files(tmp_path, 1)
    script = {
        ("prediction 1: judge", 0): _answer(4.5, 0.25),
        ("prediction 2: judge", 1): _answer(9, 0.75),  # beyond the range: the second try is as bad
        ("prediction 2: judge", 2): _answer(7, 0.5),
        ("prediction 3: judge", 2): {"text": "I would say four."},
        ("prediction 3: judge", 3): _answer("3.5", 1),
    }
    with scripted_models(script) as requests:
        run = judged(tmp_path / "run", ["scripted:j"], mode="direct", predictions=3, **files)
    [result] = [one.value for one in run.results()]
    assert result["scores"]["depth"] == {"mean": 4.0, "sd": pytest.approx(0.5**0.5), "n": 2}
    assert result["scores"]["style"]["mean"] == pytest.approx((0.25 + 0.5 + 1) / 3)
    assert result["repaired"] == 3
    assert result["explanations"] == {"depth": "It digs.", "style": "Plain."}
    assert "depth: the score is '9', expected a number from 1 to 5" in requests[3].messages[-1].content
    # First answers stand where those of versions without branches stand, so that their runs go on.
    key, seed = requests[0].conversation, RunFolder.open(tmp_path / "run").manifest["seed"]
    assert [one.seed for one in requests if len(one.messages) == 2] == [derive(seed, key, "judge", n) for n in range(3)]
    assert len({request.seed for request in requests}) == 5


def test_expected_scores_are_those_of_the_models_probabilities(tmp_path: Path) -> None:
    files = make_files(tmp_path, 1)
    script = {
        ("prediction 1: judge", 0): {**_answer(4, 1), "expected": [3.625, 0.75]},
        ("prediction 2: judge", 1): _answer(4, 1),
    }
    with scripted_models(script) as requests:
        run = judged(tmp_path / "run", ["scripted:j"], mode="direct", predictions=2, scores="expected", **files)
    [result] = [one.value for one in run.results()]
    assert result["scores"]["depth"]["mean"] == (3.625 + 4) / 2
    assert result["weighted"] == 1
    schema = requests[0].sampling.schema
    assert schema is not None
    assert schema["properties"]["depth"]["properties"]["score"] == {"type": "integer", "enum": [1, 2, 3, 4, 5]}


def test_a_planner_writes_the_plan_once_and_the_run_keeps_it(tmp_path: Path) -> None:
    files = make_files(tmp_path, 5)
    plan = tmp_path / "written.yaml"
    settings = {"mode": "plan", "assistant": ["bleu", "chrf"], "plan": str(plan), "planner": "simulated:p", **files}
    run = judged(tmp_path / "one", ["simulated:j"], **settings)
    written = plan.read_text()
    assert run.manifest["plan"]["text"] == written
    assert "- bleu" in written
    plan.write_text(written.replace("Read everything", "Skim everything"))
    other = judged(tmp_path / "two", ["simulated:j"], **settings)
    assert other.manifest["plan"]["text"] == plan.read_text()  # not written anew
    shutil.move(plan, tmp_path / "gone.yaml")
    # The first run's plan, though its file is no more; a fork is judged by it too.
    assert "Read everything" in _prompts(viva.load(tmp_path / "one"), "j/e1")[0][0]["content"]
    clock = VirtualClock()
    forked = clock.run(lambda: viva.fork(tmp_path / "one", judge="simulated:k", out=tmp_path / "f", clock=clock))
    assert forked.manifest["plan"] == run.manifest["plan"]
    # Judges are what is compared, so a study of both runs has them side by side.
    tables = study_tables(Study([tmp_path / "one", tmp_path / "f"]).report())
    agreement = next(rows for title, _, rows in tables if title == "Agreement with human ratings: Spearman by example")
    assert {(row[0], row[1]) for row in agreement} == {("one", "j"), ("f", "k")}
    assert _prompts(forked, "k/e1")[0] == _prompts(run, "j/e1")[0]


def test_a_client_has_no_planner_write_a_file(tmp_path: Path) -> None:
    plan = tmp_path / "written.yaml"
    settings = {"mode": "plan", "assistant": ["bleu"], "plan": str(plan), "planner": "simulated:p"}
    client = Permissions(client=Client(Permissions(), folders=(tmp_path,)))
    with bound_permissions(client), pytest.raises(NotPermitted, match="which a client must not request"):
        judged(tmp_path / "run", ["simulated:j"], **settings, **make_files(tmp_path, 5))
    assert not plan.exists()


@pytest.mark.skipif(not TOPICAL.is_file(), reason=f"{TOPICAL} is not there")
def test_killed_over_topicalchat_with_real_assistants_and_resumed_the_report_is_the_same(tmp_path: Path) -> None:
    model = make_model(tmp_path / "tiny.gguf", seed=5, layers=1, width=32)
    plan = tmp_path / "plan.yaml"
    plan.write_text("text: Use both.\nuse: {naturalness: [lm], groundedness: [bleu]}\n")
    settings = {
        "task": "dialogue",
        "data": str(TOPICAL),
        "n": 4,
        "predictions": 2,
        "plan": str(plan),
        "assistant": ["bleu", f"lm=logprob:llama:{model}?lanes=2&threads=1&ctx=4096"],
    }
    judge = "simulated:j?latency=0.2&sigma=0&malformed=0.3"
    whole = judged(tmp_path / "whole", [judge], **settings)
    config, cut = tmp_path / "settings.yaml", tmp_path / "cut"
    config.write_text(yaml.safe_dump({**settings, "judge": [judge], "seed": whole.manifest["seed"]}))
    process = started("run", "fusion", "--config", config, "--concurrency", "1", "--out", cut)
    recorded = 0
    while recorded < 7 and process.poll() is None:
        with (
            suppress(sqlite3.OperationalError),
            closing(sqlite3.connect(f"file:{cut / 'journal.sqlite'}?mode=ro", uri=True)) as journal,
        ):
            [recorded] = journal.execute("select count(*) from calls").fetchone()
    process.kill()
    assert ended(process)[0] == -signal.SIGKILL
    clock = VirtualClock()
    resumed = clock.run(lambda: viva.resume(cut, clock=clock))
    reports = [one.report() for one in (resumed, whole)]
    assert orjson.dumps(reports[0]) == orjson.dumps(reports[1])
    assert [one.value for one in resumed.results()] == [one.value for one in whole.results()]
    sources = whole.report()["candidates"]["j"]["agreement"]["naturalness"]["sources"]
    assert sources["lm"]["items"]["n"] == 4
    assert sources.keys() >= {"LLMSel(AE)", "CorrW(AE)", "AVG(AE, judge)"}
    forked = clock.run(lambda: viva.fork(tmp_path / "whole", judge="simulated:k", out=tmp_path / "fork", clock=clock))
    assert forked.manifest["plan"] == whole.manifest["plan"]
    assert forked.report()["candidates"]["k"]["agreement"]["naturalness"]["sources"]["lm"] == sources["lm"]


def test_what_a_run_stands_on_may_not_change(tmp_path: Path) -> None:
    files = make_files(tmp_path, 2)
    asked = [f"{tmp_path / 'mine.py'}#good"]
    judged(tmp_path / "run", ["simulated:j"], mode="noplan", assistant=asked, **files)
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text() + "\n# changed\n")
    sys.modules.pop(next(name for name in sys.modules if name.startswith("viva_file_mine_")), None)
    with pytest.raises(ConfigurationError, match="changed since the run began: assistants"):
        resumed_run(tmp_path / "run")
