"""The packages pyproject.toml lists are the packages there are; setuptools drops an unlisted one without a word."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAPPED = ("devices", "export", "kernels", "runtime")


@pytest.fixture(scope="module")
def setuptools_table() -> dict[str, Any]:
    """Return the table ``[tool.setuptools]``."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def packages_below(folder: Path, name: str) -> set[str]:
    """Return the dotted names of ``folder`` and of the packages in it, links not followed."""
    found = {name}
    for child in folder.iterdir():
        if child.is_dir() and not child.is_symlink() and (child / "__init__.py").exists():
            found |= packages_below(child, f"{name}.{child.name}")
    return found


def test_every_package_folder_is_listed(setuptools_table: dict[str, Any]) -> None:
    """A new subpackage that nobody added to the list would be missing from the wheel."""
    found = packages_below(ROOT / "edgeprec", "edgeprec")
    for name in MAPPED:
        found |= packages_below(ROOT / name, f"edgeprec.{name}")
    assert set(setuptools_table["packages"]) == found


def test_top_level_folders_are_mapped_and_linked(setuptools_table: dict[str, Any]) -> None:
    """Builds use the map, a checkout uses the links: both must name the same folder."""
    assert setuptools_table["package-dir"] == {f"edgeprec.{name}": name for name in MAPPED}
    for name in MAPPED:
        link = ROOT / "edgeprec" / name
        assert link.is_symlink(), f"{link} is no link"
        assert link.readlink() == Path("..") / name


def test_no_package_takes_a_top_level_name(setuptools_table: dict[str, Any]) -> None:
    """``kernels``, ``export`` and ``runtime`` are other projects' names: only ``edgeprec`` may be installed."""
    assert {name.partition(".")[0] for name in setuptools_table["packages"]} == {"edgeprec"}


@pytest.mark.parametrize("name", MAPPED)
def test_mapped_package_is_imported_once(name: str) -> None:
    """A second copy under a bare name would have its own classes, and isinstance would fail."""
    module = __import__(f"edgeprec.{name}", fromlist=["__name__"])
    assert module.__name__ == f"edgeprec.{name}"
    assert Path(str(module.__file__)).resolve() == ROOT / name / "__init__.py"


def test_every_data_file_is_covered_by_a_pattern(setuptools_table: dict[str, Any]) -> None:
    """A data file that no pattern names is left out of the wheel."""
    patterns: dict[str, list[str]] = setuptools_table["package-data"]
    folders = {name: setuptools_table["package-dir"].get(name, name.replace(".", "/")) for name in patterns}
    for package in setuptools_table["packages"]:
        folder = ROOT / folders.get(package, package.replace(".", "/"))
        for file in folder.iterdir():
            if file.is_file() and file.suffix not in {".py", ".pyc"}:
                assert any(file.match(pattern) for pattern in patterns.get(package, [])), file
