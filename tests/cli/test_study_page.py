"""The fidelity page says what was measured: its numbers are the parts', and its pictures exist."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

SCRIPTS = str(Path(__file__).resolve().parents[2] / "scripts")
NAMES = ("study_decoding", "study_page", "study_fidelity")


@pytest.fixture(scope="module")
def study() -> Iterator[dict[str, ModuleType]]:
    """Return the scripts as modules; they find each other as they do when run."""
    sys.path.insert(0, SCRIPTS)
    yield {name: import_module(name) for name in NAMES}
    sys.path.remove(SCRIPTS)
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def studied(
    study: dict[str, ModuleType], make_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Run the whole study on a tiny pair; return its work folder and its output."""
    import edgeprec

    folder = tmp_path_factory.mktemp("study")
    checkpoint = make_checkpoint(folder / "checkpoint", max_positions=1024)
    bundle = edgeprec.export_bundle(checkpoint, folder / "tiny.edgeprec")
    command = ["study", str(bundle), "--work", str(folder / "work"), "-o", str(folder / "docs"), "--tokens", "6"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [*command, "--prompts-per-kind", "1", "--threads", "1"])
        study["study_fidelity"].main()
    return folder / "work", folder / "docs"


def part(work: Path, name: str) -> dict[str, Any]:
    """Return one part's result."""
    values: dict[str, Any] = json.loads((work / f"{name}.json").read_text())
    return values


def test_every_part_is_measured(studied: tuple[Path, Path]) -> None:
    """Three quantizers, two collapses in both orders and the tables of eval, each with its machine."""
    names = {file.stem for file in studied[0].glob("*.json")}
    assert names == {
        *(f"quantizer-{method}" for method in ("rtn", "clip", "gptq")),
        *(
            f"collapse-{method}-{order}-{n}"
            for method in ("rtn", "gptq")
            for order in ("least", "most")
            for n in (1, 2)
        ),
        *("layers", "modes", "drafts"),
    }
    assert all("ONNX Runtime" in part(studied[0], name)["machine"] for name in names)


def test_numbers_on_the_page_are_the_parts(studied: tuple[Path, Path]) -> None:
    """Flip rates, matches and the exact mode's 100 % stand in the tables."""
    work, docs = studied
    text = (docs / "fidelity.md").read_text()
    for order in ("least", "most"):
        row = part(work, f"collapse-rtn-{order}-2")
        cells = f"| rtn | {row['order']} | {row['gated']} | {100 * row['own']['flip_rate']:.1f} % |"
        assert cells in text
    assert {row["token_match"] for row in part(work, "layers")["exact_by_layers"]} == {1.0}
    assert "python scripts/study_fidelity.py" in text
    assert "rotated copy" in text


def test_pictures_are_there(studied: tuple[Path, Path]) -> None:
    """Every picture the page shows lies beside it and is whole."""
    docs = studied[1]
    shown = [
        line.split("](")[1].rstrip(")") for line in (docs / "fidelity.md").read_text().splitlines() if "![" in line
    ]
    assert "pictures/fidelity-collapse.svg" in shown
    for name in shown:
        ElementTree.parse(docs / name)


def test_orders_differ_and_rates_are_rates(studied: tuple[Path, Path]) -> None:
    """Both orders are decoded; each rate lies between 0 and 1, each prefix between 1 and the text's length."""
    rows = [part(studied[0], f"collapse-gptq-{order}-1") for order in ("least", "most")]
    assert [row["order"] for row in rows] == ["least sensitive first", "most sensitive first"]
    for row in rows:
        for cache in ("own", "fresh"):
            assert 0.0 <= row[cache]["flip_rate"] <= 1.0
            assert 1.0 <= row[cache]["prefix_tokens"] <= 6.0


def test_a_measured_part_is_not_measured_again(study: dict[str, ModuleType], studied: tuple[Path, Path]) -> None:
    """The study takes up where it stopped; another part is left alone when one is asked for."""
    work = studied[0]
    arguments = study["study_fidelity"]._arguments
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["study", "absent", "--work", str(work), "--only", "modes"])
        known = study["study_fidelity"].Study(arguments())
        known.part("modes", lambda: pytest.fail("measured again"))
        known.part("another", lambda: pytest.fail("was not asked for"))
    assert set(known.results) == {"modes"}


def test_a_page_from_some_parts_says_what_is_missing(
    study: dict[str, ModuleType], studied: tuple[Path, Path], tmp_path: Path
) -> None:
    """What was not measured is named; no number stands in for it and no picture of it is drawn."""
    names = ("quantizer-rtn", "collapse-rtn-least-1", "collapse-rtn-most-1", "modes")
    study["study_page"].write({name: part(studied[0], name) for name in names}, tmp_path)
    text = (tmp_path / "fidelity.md").read_text()
    assert text.count("Not measured yet") == 4
    assert "gptq" not in text.split("## The cure")[0]
    assert [file.name for file in (tmp_path / "pictures").iterdir()] == ["fidelity-collapse.svg"]
