"""The order of cells: every one once, and the weights of local models loaded as rarely as can be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from viva.sweeps.local_models import order_by_weights

NEEDS = st.lists(st.frozensets(st.sampled_from("abcdef"), max_size=3), max_size=12)
ONE_VARYING = st.tuples(
    st.frozensets(st.sampled_from("xyz")), st.lists(st.sampled_from(["", *"abcd"]), min_size=1, max_size=7)
)


def _loads(needs: list[frozenset[str]], order: list[int], room: int) -> int:
    """Loads with room for so many weights, of which the one used least recently goes first."""
    held: list[str] = []
    loads = 0
    for place in order:
        need = sorted(needs[place])
        loads += sum(one not in held for one in need)
        held = ([one for one in held if one not in need] + need)[-max(room, len(need)) :]
    return loads


@given(NEEDS)
def test_every_cell_has_its_turn_once(needs: list[frozenset[str]]) -> None:
    assert sorted(order_by_weights(needs)) == list(range(len(needs)))
    assert order_by_weights(needs) == order_by_weights(needs)


@given(ONE_VARYING)
def test_where_one_model_varies_each_is_loaded_once(case: tuple[frozenset[str], list[str]]) -> None:
    shared, varying = case
    needs = [shared | ({one} if one else frozenset()) for one in varying]
    # Fewer there cannot be. What all share is used by every cell here, and so never the one used least recently.
    assert _loads(needs, order_by_weights(needs), len(shared) + 1) == len(shared) + len(set(varying) - {""})


@given(st.integers(1, 5), st.integers(1, 5))
def test_a_grid_of_two_is_walked_to_and_fro(candidates: int, evaluators: int) -> None:
    needs = [frozenset({f"c{c}", f"e{e}"}) for c in range(candidates) for e in range(evaluators)]
    if candidates > 1 and evaluators > 1:
        assert _loads(needs, order_by_weights(needs), 2) == candidates * evaluators + 1


@given(st.lists(st.just(frozenset[str]()), max_size=6))
def test_without_local_models_the_files_order_stays(needs: list[frozenset[str]]) -> None:
    assert order_by_weights(needs) == list(range(len(needs)))
