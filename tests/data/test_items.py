"""Items: how a prompt shows them, and that their ids follow the KIEval authors' formula."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from viva.data.items import Item, choice_letter, content_id

texts = st.text(max_size=12)
extras = st.none() | st.fixed_dictionaries({"id": st.text(max_size=8) | st.integers()})


def naive_id(question: str, choices: list[str], answer: int, extra: Mapping[str, Any] | None) -> str:
    """The formula of the protocol, written down once more."""
    data = question + "$choices$" + ";".join(choices) + "$ans$" + str(answer) + "$perm$None$ex$" + json.dumps(extra)
    return base64.urlsafe_b64encode(hashlib.md5(data.encode("utf-8")).digest()).decode("ascii").replace("=", "")


def test_an_item_shows_its_choices_with_letters() -> None:
    item = Item("1", "Which of these rises?", ["cold air", "warm air", "lead"], 1, "physics")
    assert item.labelled_choices() == "A. cold air\nB. warm air\nC. lead"
    assert item.labelled_answer() == "B. warm air"
    assert [choice_letter(index) for index in (0, 4, 25)] == ["A", "E", "Z"]


def test_an_items_record_is_plain_data() -> None:
    item = Item("编号", "水往哪里流？", ["高处", "低处"], 1)
    assert Item(**json.loads(json.dumps(item.to_record()))) == item


@settings(deadline=None)
@given(texts, st.lists(texts, min_size=1, max_size=5), st.integers(0, 4), extras)
def test_an_id_is_the_hash_of_the_content(
    question: str, choices: list[str], answer: int, extra: dict[str, Any] | None
) -> None:
    found = content_id(question, choices, answer, extra)
    assert found == naive_id(question, choices, answer, extra)
    assert len(found) == 22
    assert set(found) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
