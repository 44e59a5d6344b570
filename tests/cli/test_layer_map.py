"""The map of layers: each token shows the plan that proposed it, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeprec.cli.layer_map import LayerBlock, layer_blocks
from edgeprec.runtime.reply import TokenSource

PLANS = st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=6)


def blocks(script: SimpleNamespace, plans: list[Any], *, source: TokenSource = TokenSource.DRAFT) -> list[LayerBlock]:
    """Return the map of one token for each plan, in a model of three layers."""
    events = [script.event(index, round=index, source=source) for index in range(len(plans))]
    rounds = [script.round(index, draft_plan=tuple(plan)) for index, plan in enumerate(plans)]
    return list(layer_blocks(events, rounds, num_layers=3))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the script holds no state
@given(plans=PLANS)
def test_every_cell_is_covered_once(script: SimpleNamespace, plans: list[list[bool]]) -> None:
    """Blocks put together are the plans: no layer too many, none twice, whatever was merged."""
    cells = [
        (token, row)
        for block in blocks(script, plans)
        for token in range(block.begin, block.end)
        for row in range(block.low, block.high)
    ]
    assert len(cells) == len(set(cells))
    assert set(cells) == {(token, row) for token, plan in enumerate(plans) for row, gate in enumerate(plan) if gate}


def test_neighbours_are_one_block(script: SimpleNamespace) -> None:
    """Ten tokens with one plan are one box in the page, not ten."""
    (block,) = blocks(script, [(True, True, True, True)] * 10)
    assert (block.begin, block.end, block.low, block.high) == (0, 10, 0, 4)
    assert block.title == "tokens 0 to 9: layers 0 to 2 and the head in INT4"


def test_fp16_tokens_have_none(script: SimpleNamespace) -> None:
    """A token FP16 chose itself ran no layer in INT4, whatever was drafted in its round."""
    assert blocks(script, [(True, True, True, True)], source=TokenSource.TARGET) == []


def test_unverified_tokens_have_theirs(script: SimpleNamespace) -> None:
    """In modes that verify nothing the plan of the gear is what ran."""
    (block,) = blocks(script, [(False, True, False, False)], source=TokenSource.UNVERIFIED)
    assert (block.low, block.high, block.title) == (1, 2, "token 0: layer 1 in INT4")


@pytest.mark.parametrize("plan", [(True, True), (True,) * 9])
def test_a_draft_models_layers_are_not_the_targets(script: SimpleNamespace, plan: tuple[bool, ...]) -> None:
    """Its block is marked as another model's and says how many layers that had."""
    (block,) = blocks(script, [plan])
    assert (block.kind, block.low, block.high) == ("int4-model", 0, 4)
    assert f"{len(plan) - 1} of its {len(plan) - 1} layers" in block.title


def test_a_drafter_without_layers_has_none(script: SimpleNamespace) -> None:
    """Lookup runs no model; neither does a token whose round was not recorded."""
    assert blocks(script, [()]) == []
    assert list(layer_blocks([script.event(0, round=7)], [], num_layers=3)) == []
