"""Which rails are the total: declared per board, inferred by labels, assumed by a lone input, otherwise none."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeprec.devices.jetson_module import module_of, soc_of
from edgeprec.devices.rail_plans import choose_plan, label_total, rail_plans
from edgeprec.devices.sensor import Scope

AGX_ORIN = ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0", "VDDQ_VDD2_1V8AO")
THOR = ("VDD_GPU", "VDD_CPU_SOC_MSS", "VIN_SYS_5V0", "VIN")
ALL_LABELS = sorted({label for plan in rail_plans() for label in (*plan.total, *plan.parents)} | {"NVVDD", "VDD_SYNC"})


@pytest.mark.parametrize(
    ("module", "labels", "total", "scope"),
    [
        ("p3448-0000", ("POM_5V_IN", "POM_5V_GPU", "POM_5V_CPU"), ("POM_5V_IN",), Scope.MODULE),
        ("p3310-1000", ("VDD_SYS_GPU", "VDD_SYS_SOC", "VDD_IN", "VDD_SYS_CPU"), ("VDD_IN",), Scope.MODULE),
        ("p3489-0888", ("VDD_IN", "VDD_SYS_DDR"), ("VDD_IN",), Scope.MODULE),
        ("p3636-0001", ("VDD_IN", "VDD_CPU_GPU", "VDD_SOC"), ("VDD_IN",), Scope.MODULE),
        ("p3668-0001", ("VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"), ("VDD_IN",), Scope.MODULE),
        (
            "p2888-0004",
            ("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"),
            ("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"),
            Scope.MODULE_COMPUTED,
        ),
        ("p3767-0003", ("VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"), ("VDD_IN",), Scope.MODULE),
        ("p3701-0005", AGX_ORIN, AGX_ORIN[:3], Scope.MODULE_COMPUTED),
        ("p3834-0008", THOR, ("VIN",), Scope.BOARD_INPUT),
        ("p3834-0008", THOR[:3], THOR[:3], Scope.MODULE_COMPUTED),
    ],
)
def test_known_boards_have_a_declared_total(
    module: str, labels: tuple[str, ...], total: tuple[str, ...], scope: Scope
) -> None:
    """Each board's total is what its plan declares, whatever other input-like names there are."""
    chosen = choose_plan(labels, module=module)
    assert (chosen.total, chosen.scope, chosen.is_assumed) == (total, scope, False)
    assert chosen.evidence is not None
    assert module in chosen.evidence


@pytest.mark.parametrize("module", ["p3701-0005", "p2888-0001", "p3834-0008", "p3448-0000", "p3767-0000"])
def test_a_part_of_a_known_board_is_never_its_total(module: str) -> None:
    """Where a rail of the declared total is missing there is no total, and the note names the rail."""
    plans = [plan for plan in rail_plans() if plan.is_for(module)]
    labels = {label for plan in plans for label in (*plan.total, *plan.parents)}
    for size in range(1, len(labels)):
        for some in combinations(sorted(labels), size):
            chosen = choose_plan(some, module=module)
            if chosen.total is None:
                assert "no total" in str(chosen.note)
                assert any(label in str(chosen.note) for label in plans[-1].total)
            else:
                assert chosen.total in [plan.total for plan in plans]
                assert set(chosen.total) <= set(some)


@pytest.mark.parametrize(
    ("labels", "total", "scope"),
    [
        (AGX_ORIN, AGX_ORIN[:3], Scope.MODULE_COMPUTED),
        (THOR, ("VIN",), Scope.BOARD_INPUT),
        (THOR[:3], THOR[:3], Scope.MODULE_COMPUTED),
        (("VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"), ("VDD_IN",), Scope.MODULE),
        (("VDD_SYS_GPU", "VDD_SYS_SOC", "VDD_IN", "VDD_SYS_CPU", "VDD_SYS_DDR"), ("VDD_IN",), Scope.MODULE),
    ],
)
def test_unknown_boards_are_matched_by_labels_and_say_so(
    labels: tuple[str, ...], total: tuple[str, ...], scope: Scope
) -> None:
    """jetson_stats#476, containers: a module that is not in the list is matched by its rails, flagged as inferred."""
    for module in ("p3701-9999", None):
        chosen = choose_plan(labels, module=module)
        assert (chosen.total, chosen.scope, chosen.is_assumed) == (total, scope, True)
        assert "inferred" in str(chosen.evidence)
        assert "inferred" in str(chosen.note)


@pytest.mark.parametrize("label", ["VIN", "VDD_IN", "POM_5V_IN"])
def test_a_lone_input_rail_is_assumed_to_be_the_total(label: str) -> None:
    """An unknown board with exactly one input rail has an assumed total; with two there is none."""
    chosen = choose_plan((label, "NVVDD"))
    assert (chosen.total, chosen.is_assumed) == ((label,), True)
    assert "assumed" in str(chosen.note)
    assert choose_plan(("VIN", "VDD_IN", "POM_5V_IN", "NVVDD")).total is None


@pytest.mark.parametrize(
    "labels",
    [(), ("NVVDD",), ("VDDQ_VDD2_1V8AO",), ("VIN_SYS_5V0",), ("VDD_GPU_SOC", "VIN_SYS_5V0"), ("VDD_IN", "VDD_IN")],
)
def test_other_boards_have_no_total(labels: tuple[str, ...]) -> None:
    """A rail with IN in its name is no total, nor is a label that occurs twice."""
    chosen = choose_plan(labels, board="vendor,thing")
    assert chosen.total is None
    assert "no total known for vendor,thing" in str(chosen.note)


def test_a_doubled_rail_of_a_known_board_takes_the_total_away() -> None:
    """Two rails of one label cannot be told apart, so no total is claimed."""
    chosen = choose_plan(("VDD_IN", "VDD_IN", "VDD_SOC"), module="p3767-0000")
    assert chosen.total is None
    assert "occurs twice" in str(chosen.note)


@given(st.lists(st.sampled_from(ALL_LABELS), max_size=8), st.sampled_from([None, "p3701-0005", "p3834", "p9999-0000"]))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_rails_give_a_total_of_their_own_or_a_note(labels: list[str], module: str | None) -> None:
    """Whatever the rails, a total consists of rails that are there once, and no total comes with a reason."""
    chosen = choose_plan(labels, module=module)
    if chosen.total is None:
        assert chosen.note
    else:
        assert all(labels.count(label) == 1 for label in chosen.total)
        assert chosen.evidence
        assert chosen.scope is not None


def test_plans_are_consistent() -> None:
    """A parent is a rail of the same plan's total, no rail of a total has a parent, and a plan is reachable."""
    for plan in rail_plans():
        assert set(plan.parents.values()) <= set(plan.total), plan.name
        assert not set(plan.parents) & set(plan.total), plan.name
        assert plan.modules or plan.known_by, plan.name


def test_a_shared_rail_is_named_as_shared() -> None:
    """zeus#226: VDD_CPU_GPU_CV is filed neither under CPU nor under GPU."""
    chosen = choose_plan(("VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"), module="p3767-0000")
    assert chosen.plan is not None
    assert "CPU, GPU and CV together" in chosen.plan.notes["VDD_CPU_GPU_CV"]


def test_label_totals_serve_sources_without_addresses() -> None:
    """tegrastats and jtop know labels only: the ids of the total are the labels."""
    total = label_total(THOR, module="p3834-0008")
    assert total is not None
    assert (total.rail_ids, total.scope) == (("VIN",), Scope.BOARD_INPUT)
    assert label_total(("NVVDD",)) is None


@pytest.mark.parametrize(
    ("compatible", "board_ids", "part", "soc"),
    [
        (("nvidia,p4071-0000+p3834-0008", "nvidia,p3834-0008", "nvidia,tegra264"), None, "p3834-0008", "tegra264"),
        (("nvidia,p3768-0000+p3767-0005", "nvidia,p3767-0005", "nvidia,tegra234"), None, "p3767-0005", "tegra234"),
        (("nvidia,p3449-0000-b00+p3448-0000-b00", "nvidia,tegra210"), "3448:0000", "p3448-0000", "tegra210"),
        (("nvidia,p2972-0000", "nvidia,tegra194"), "2888:0001:E", "p2888-0001", "tegra194"),
        (("nvidia,p2972-0000", "nvidia,tegra194"), None, "p2972-0000", "tegra194"),
        (("nvidia,p3737-0000+p3701-9999", "nvidia,tegra234", "nvidia,tegra23x"), None, "p3701-9999", "tegra234"),
        (("nvidia,tegra23x",), None, None, "tegra23x"),
        (("raspberrypi,4-model-b", "brcm,bcm2711"), None, None, None),
        ((), None, None, None),
        (("nvidia,p3834",), "rubbish", "p3834", None),
    ],
)
def test_part_numbers_come_from_the_device_tree(
    compatible: tuple[str, ...], board_ids: str | None, part: str | None, soc: str | None
) -> None:
    """The module behind the plus sign counts, then the board ids, then a part that stands alone."""
    assert module_of(compatible, board_ids) == part
    assert soc_of(compatible) == soc
