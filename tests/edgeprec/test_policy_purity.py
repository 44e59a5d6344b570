"""Policy is pure: it takes values and returns values."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

_POLICY = (
    "acceptance",
    "bounded",
    "calibration",
    "controller",
    "costs",
    "decision",
    "drafting",
    "entropy",
    "gears",
    "governor",
    "guard",
    "levels",
    "route_choice",
    "speculation",
    "stop_rules",
    "thresholds",
)
_ALLOWED = {"__future__", "bisect", "collections", "dataclasses", "edgeprec", "enum", "math", "numpy", "typing"}


def _path(module: str) -> Path:
    spec = importlib.util.find_spec(f"edgeprec.{module}")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


@pytest.mark.parametrize("module", _POLICY)
def test_policy_imports_no_clock_device_random_state_or_log(module: str) -> None:
    """A policy module imports mathematics and its own package, nothing that acts on the world."""
    tree = ast.parse(_path(module).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} <= _ALLOWED
    used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not {name for name in used if name.startswith("np.random")}


@pytest.mark.parametrize("module", _POLICY)
def test_policy_keeps_no_module_state(module: str) -> None:
    """Module level holds constants only: no list, dict or set that a sequence could leave something in."""
    tree = ast.parse(_path(module).read_text(encoding="utf-8"))
    values = [node.value for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) and node.value]
    names = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)]
    mutable = [v for v, n in zip(values, names, strict=False) if isinstance(v, ast.Dict | ast.Set | ast.List)]
    assert all("__all__" in n for v, n in zip(values, names, strict=False) if v in mutable)
