"""``viva list``: one line for each thing that can be named, and each of the names is accepted where it belongs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from viva.agents.assistants.registry import open_assistant
from viva.agents.prompts import is_shipped_pack
from viva.cli.listing import list_names
from viva.cli.main import app
from viva.data.sources import hub_name, open_source
from viva.engine.backends.base import ModelSpec
from viva.engine.backends.registry import with_absolute_path
from viva.engine.detectors import detector_factories
from viva.engine.errors import ConfigurationError
from viva.scenarios.flexeval.metrics import load_function
from viva.scenarios.kieval.kieval_settings import KievalSettings
from viva.scenarios.registry import get_scenario
from viva.scoring.contamination import Signals

_BASE: dict[str, Any] = {"dataset": "d", "candidate": ["simulated:c"], "interactor": "simulated:i"}


def viva(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["list", *arguments])


@pytest.fixture(scope="module")
def found() -> dict[str, list[dict[str, Any]]]:
    return list_names()


def names(found: dict[str, list[dict[str, Any]]], kind: str) -> list[str]:
    return [one["name"] for one in found[kind]]


def test_every_name_has_one_line(found: dict[str, list[dict[str, Any]]]) -> None:
    for kind, records in found.items():
        if kind == "gguf":  # models on this machine: tests/engine/llama/test_model_names.py
            continue
        assert len({(one["name"], one.get("scenario")) for one in records}) == len(records) > 0
        for one in records:
            assert 3 < len(one["summary"]) < 250, (kind, one["name"])
            assert "\n" not in one["summary"]
            assert ":raises" not in one["summary"]
        summaries = {(one["summary"], one.get("scenario")) for one in records}
        assert len(summaries) == len(records), f"{kind}: two names have one description"


def test_what_is_listed_is_accepted(found: dict[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    assert all(get_scenario(name).name == name for name in names(found, "scenarios"))
    assert all(hub_name(name) == f"{name}-{hub_name(name).split('-')[-1]}" for name in names(found, "datasets"))  # type: ignore[union-attr]
    for form in names(found, "forms"):
        with pytest.raises(ConfigurationError) as caught:  # known, and in need of a file or of a dataset's name
            open_source(f"{form}:{tmp_path / 'none.jsonl'}")
        assert "unknown form" not in str(caught.value)
    assert all(is_shipped_pack(name) for name in names(found, "packs"))
    assert len(detector_factories(names(found, "detectors"))) == len(found["detectors"])
    scores = Signals.from_logprobs("a text", [-1.0, -2.0], [-1.0, -1.0], [0.5, 0.5]).scores()
    assert {name.rstrip("_0123456789") for name in scores} == set(names(found, "contamination"))
    for name in names(found, "assistants"):
        assert open_assistant(name.replace("MODEL", "simulated:m").replace("FOLDER", "folder").replace("FILE", "mine"))
    for kind in names(found, "models"):
        assert ModelSpec.parse(with_absolute_path(f"{kind}:x")).kind == kind
    for name in names(found, "scorers"):
        assert KievalSettings(**_BASE, evaluator="simulated:e", scorer=name).scorer == name  # type: ignore[arg-type]
    assert all(callable(load_function(name)) for name in names(found, "metrics"))


def test_a_kind_alone_and_as_json(found: dict[str, list[dict[str, Any]]]) -> None:
    printed = viva("datasets")
    assert printed.exit_code == 0
    row = next(line for line in printed.stdout.splitlines() if line.strip().startswith("mmlu_pro"))
    assert all(part in row for part in ("12,032", "test", "en", "MIT"))
    assert "Scenarios" not in printed.stdout
    data = json.loads(viva("datasets", "--json").stdout)
    assert data == {"datasets": found["datasets"]}
    mmlu = next(one for one in data["datasets"] if one["name"] == "mmlu")
    assert (mmlu["splits"]["validation"], len(mmlu["subjects"]), mmlu["hub"]["id"]) == (1531, 57, "cais/mmlu")
    whole = viva().stdout
    assert all(title in whole for title in ("Scenarios", "Datasets", "Packs", "Scorers", "Detectors", "Metrics"))


def test_an_unknown_kind_is_said_so() -> None:
    refused = viva("wings")
    assert refused.exit_code == 2
    assert "expected one of: scenarios, datasets, forms, packs" in refused.stderr
