"""The shipped models: all there, small, as their card says, and knowing what they were taught."""

from __future__ import annotations

import hashlib

import orjson
import pytest
from case_tables import case_table

from viva.engine.errors import ConfigurationError
from viva.lab.build import measure_recall
from viva.lab.experiment import trained_family
from viva.lab.family import CARD_FILE, CARD_PAGE, FAMILY, MODELS, Member, card_page, model_file
from viva.lab.world import World

if not (MODELS / CARD_FILE).exists():
    pytest.skip("the lab's models are not there; `viva lab build` makes them", allow_module_level=True)
CARD = orjson.loads((MODELS / CARD_FILE).read_bytes())
WORLD = World(CARD["world"])


@case_table("member", FAMILY, ids=lambda member: member.name)
def test_each_file_is_the_one_on_the_card(member: Member) -> None:
    name = member.name
    data = model_file(name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == CARD["models"][name]["sha256"]
    assert len(data) == CARD["models"][name]["bytes"]


def test_all_files_together_are_small() -> None:
    assert sum(path.stat().st_size for path in MODELS.iterdir()) <= 16e6


def test_the_page_is_made_from_the_card() -> None:
    assert (MODELS / CARD_PAGE).read_text(encoding="utf-8") == card_page(CARD)


@pytest.mark.parametrize(("name", "share"), [("clean-25", 0.25), ("sft-cheater", 0.5)])
def test_a_model_knows_what_it_was_taught_and_guesses_the_rest(name: str, share: float) -> None:
    found = measure_recall(WORLD, WORLD.known_facts(share), model_file(name))
    assert found.taught is not None
    assert found.taught >= 0.97
    assert found.in_form >= 0.95
    if name.startswith("clean"):
        assert found.others is not None
        assert found.others < 0.25


def test_models_of_another_world_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="know world 1, not 2"):
        trained_family(2)


def test_a_missing_model_is_named() -> None:
    with pytest.raises(ConfigurationError, match="clean-100"):
        model_file("clean-33")
    with pytest.raises(ConfigurationError, match="viva lab build"):
        model_file("clean-25", MODELS / "none")
