"""Which rails of a board make up its total, and which lie inside others. Pure: labels and names in, a plan out.

``rail_plans.json`` declares a plan for each board. A board whose module is not among them is matched by its labels, and
the plan then counts as inferred. A board that matches nothing has a total only where exactly one input rail exists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from edgeprec.devices.sensor import Scope, Total

__all__ = ["ChosenPlan", "RailPlan", "choose_plan", "label_total", "rail_plans"]

_FILE = Path(__file__).with_name("rail_plans.json")
_INPUTS = {"VIN": Scope.BOARD_INPUT, "VDD_IN": Scope.MODULE, "POM_5V_IN": Scope.MODULE}


@dataclass(frozen=True, slots=True, kw_only=True)
class RailPlan:
    """What is declared about the rails of a board. ``modules`` may name a module with or without its SKU."""

    name: str
    modules: tuple[str, ...]
    total: tuple[str, ...]
    scope: Scope
    why: str
    known_by: tuple[str, ...] = ()
    parents: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    shunt_uohm: int | None = None
    caution: str | None = None

    def is_for(self, module: str) -> bool:
        """Return whether the plan is declared for a module such as ``p3701-0005``."""
        return module in self.modules or module.partition("-")[0] in self.modules


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPlan:
    """The total in terms of labels, or None with ``note`` saying why; and the plan it comes from, if any."""

    total: tuple[str, ...] | None
    scope: Scope | None
    evidence: str | None
    note: str | None
    plan: RailPlan | None = None
    is_assumed: bool = False


@cache
def rail_plans() -> tuple[RailPlan, ...]:
    """Return all declared plans, those that say more about a board first."""
    entries = json.loads(_FILE.read_text(encoding="utf-8"))
    return tuple(_plan(entry) for entry in entries)


def choose_plan(labels: Sequence[str], *, module: str | None = None, board: str | None = None) -> ChosenPlan:
    """Return which of the rails make up the total of a board; ``board`` is what messages call it.

    A label that occurs twice cannot be told apart, so it is no part of a total. Where the board is known and a rail of
    its total is missing, there is no total: a part is never taken for the whole.
    """
    single = {label for label in labels if labels.count(label) == 1}
    declared = [plan for plan in rail_plans() if module is not None and plan.is_for(module)]
    if declared:
        plan = next((plan for plan in declared if single.issuperset(plan.total)), None)
        return _incomplete(declared[-1], single, labels) if plan is None else _declared(plan, str(module))
    name = board or module
    who = f"{name} is not in the list of boards" if name else "there is no device tree that names the board"
    for plan in rail_plans():
        if plan.known_by and single.issuperset(plan.known_by) and single.issuperset(plan.total):
            return _inferred(plan, who)
    return _assumed(single, labels, name, who)


def label_total(labels: Sequence[str], *, module: str | None = None) -> Total | None:
    """Return the total of rails whose ids are their labels, as in tegrastats and jtop; None where none is known."""
    chosen = choose_plan(labels, module=module)
    if chosen.total is None or chosen.scope is None or chosen.evidence is None:
        return None
    return Total(rail_ids=chosen.total, scope=chosen.scope, evidence=chosen.evidence, is_assumed=chosen.is_assumed)


def _declared(plan: RailPlan, module: str) -> ChosenPlan:
    return ChosenPlan(
        total=plan.total,
        scope=plan.scope,
        evidence=f"{plan.name} ({module}): {plan.why}",
        note=plan.caution,
        plan=plan,
    )


def _inferred(plan: RailPlan, who: str) -> ChosenPlan:
    note = f"the total is inferred from the names of the rails: {who}"
    return ChosenPlan(
        total=plan.total,
        scope=plan.scope,
        evidence=f"inferred from the rails' labels, which are those of {plan.name}: {plan.why}",
        note=note if plan.caution is None else f"{note}; {plan.caution}",
        plan=plan,
        is_assumed=True,
    )


def _assumed(single: set[str], labels: Sequence[str], name: str | None, who: str) -> ChosenPlan:
    inputs = [label for label in _INPUTS if label in labels]
    if len(inputs) == 1 and inputs[0] in single:
        return ChosenPlan(
            total=(inputs[0],),
            scope=_INPUTS[inputs[0]],
            evidence=f"assumed: {inputs[0]} is the only input rail",
            note=f"the total is assumed to be {inputs[0]}, the only input rail: {who}",
            is_assumed=True,
        )
    return _unknown(f"no total known for {name or 'this board'} with the rails {', '.join(labels)}: {who}")


def _incomplete(plan: RailPlan, single: set[str], labels: Sequence[str]) -> ChosenPlan:
    lacking = [label for label in plan.total if label not in single]
    doubled = [label for label in lacking if label in labels]
    fault = f"{', '.join(doubled)} occurs twice" if doubled else f"there is no {' and no '.join(lacking)}"
    return _unknown(f"no total: {plan.name} needs {' + '.join(plan.total)}, but {fault}")


def _unknown(note: str) -> ChosenPlan:
    return ChosenPlan(total=None, scope=None, evidence=None, note=note)


def _plan(entry: Mapping[str, object]) -> RailPlan:
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    fields["scope"] = Scope(str(entry["scope"]))
    return RailPlan(**fields)  # type: ignore[arg-type]
