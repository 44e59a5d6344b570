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
NAMES = ("study_decoding", "study_texts", "study_jobs", "study_page", "study_parts", "study_fidelity")
IN_PROCESSES = ("modes", "bundle-drafts", "collapse-rtn-most-1")


@pytest.fixture(scope="module")
def study() -> Iterator[dict[str, ModuleType]]:
    """Return the scripts as modules; they find each other as they do when run."""
    sys.path.insert(0, SCRIPTS)
    yield {name: import_module(name) for name in NAMES}
    sys.path.remove(SCRIPTS)
    for name in NAMES:
        sys.modules.pop(name, None)


def run_study(study: dict[str, ModuleType], folder: Path, *more: str) -> int:
    """Run the command on the tiny pair of ``folder`` and return its exit code."""
    command = ["study", str(folder / "tiny.edgeprec"), "--work", str(folder / "work"), "-o", str(folder / "docs")]
    size = ["--tokens", "6", "--prompts-per-kind", "1", "--threads", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [*command, *size, *more])
        code: int = study["study_fidelity"].main()
    return code


@pytest.fixture(scope="module")
def studied(
    study: dict[str, ModuleType], make_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Run the whole study on a tiny pair; return its parts' folder and its output.

    The first run is out of time before any part. Most parts are then measured in this process, which is faster.
    """
    import edgeprec

    folder = tmp_path_factory.mktemp("study")
    checkpoint = make_checkpoint(folder / "checkpoint", max_positions=1024)
    bundle = edgeprec.export_bundle(checkpoint, folder / "tiny.edgeprec")
    parts = study["study_parts"].Study(bundle=bundle, work=folder / "work", threads=1, prompts_per_kind=1, tokens=6)
    for method in ("rtn", "clip", "gptq"):
        parts.make_copy(method, lambda event: None)
    assert run_study(study, folder, "--limit-s", "0") == 1
    assert not (folder / "docs").exists()
    for name in ("texts-rotated", "texts-bundle", *(name for name in parts.parts() if name not in IN_PROCESSES)):
        assert run_study(study, folder, "--only", name) == 0
    assert run_study(study, folder, "--jobs", "2", "--limit-s", "300") == 0
    return folder / "work" / "parts", folder / "docs"


def part(work: Path, name: str) -> dict[str, Any]:
    """Return one part's result."""
    values: dict[str, Any] = json.loads((work / f"{name}.json").read_text())
    return values


def test_every_part_is_measured(studied: tuple[Path, Path]) -> None:
    """Three quantizers, two collapses in both orders, the tables of eval and the bundle's, each with its machine."""
    names = {file.stem for file in studied[0].glob("*.json")}
    assert names == {
        *(f"quantizer-{method}" for method in ("rtn", "clip", "gptq")),
        *(
            f"collapse-{method}-{order}-{n}"
            for method in ("rtn", "gptq")
            for order in ("least", "most")
            for n in (1, 2)
        ),
        *("layers", "modes", "drafts", "bundle-forced", "bundle-modes", "bundle-drafts"),
    }
    assert all("ONNX Runtime" in part(studied[0], name)["machine"] for name in names)


def test_numbers_on_the_page_are_the_parts(studied: tuple[Path, Path]) -> None:
    """Flip rates, matches and the exact mode's 100 % stand in the tables."""
    work, docs = studied
    text = (docs / "fidelity.md").read_text()
    assert "`python scripts/study_fidelity.py BUNDLE --prompts-per-kind 1 --tokens 6`" in text
    for order in ("least", "most"):
        row = part(work, f"collapse-rtn-{order}-2")
        cells = f"| rtn | {row['order']} | {row['gated']} | {100 * row['own']['flip_rate']:.1f} % |"
        assert cells in text
    assert {row["token_match"] for row in part(work, "layers")["exact_by_layers"]} == {1.0}
    assert "python scripts/study_fidelity.py" in text
    assert "rotated copy" in text
    assert "Not measured yet" not in text
    as_is = text.split("## The bundle as it is")[1]
    forced = part(work, "bundle-forced")
    top1 = forced["rows"][1]["reply"]["top1"]
    assert f"| gptq | {forced['bits_per_weight']:.2f} | INT4 | {100 * top1:.1f} % |" in as_is
    assert "| `bounded`, epsilon 0.01 |" in as_is


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


def test_parts_that_are_there_are_not_measured_again(
    study: dict[str, ModuleType], studied: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Only what was missing ran in processes; a run with nothing to do leaves all files alone."""
    work = studied[0].parent
    assert {file.stem for file in (work / "logs").glob("*.log")} == set(IN_PROCESSES)
    before = {file: file.stat().st_mtime_ns for file in work.rglob("*.json")}
    assert run_study(study, work.parent, "--limit-s", "300") == 0
    assert {file: file.stat().st_mtime_ns for file in work.rglob("*.json")} == before
    assert "[1/" not in capsys.readouterr().out


def test_a_part_that_fails_is_named_and_the_others_go_on(
    study: dict[str, ModuleType], studied: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 1, the sentence has the part's name and log, and the next run measures it again."""
    parts = studied[0]
    texts = parts.parent / "texts" / "bundle.json"
    whole = texts.read_text()
    kept = {name: (parts / f"{name}.json").read_bytes() for name in ("bundle-forced", "quantizer-rtn")}
    try:
        for name in kept:
            (parts / f"{name}.json").unlink()
        texts.write_text("[")
        assert run_study(study, parts.parents[1]) == 1
        said = capsys.readouterr()
        assert "failed: bundle-forced, see" in said.err
        assert "bundle-forced: FAILED after" in said.out
        assert (parts / "quantizer-rtn.json").exists()
        assert not (parts / "bundle-forced.json").exists()
    finally:
        texts.write_text(whole)
        for name, content in kept.items():
            (parts / f"{name}.json").write_bytes(content)


def test_a_work_folder_of_another_size_is_refused(
    study: dict[str, ModuleType], studied: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Parts with replies of 6 tokens do not mix with parts of 7."""
    assert run_study(study, studied[0].parents[1], "--tokens", "7") == 1
    assert "holds a study with tokens 6, expected 7" in capsys.readouterr().err


def test_a_page_from_some_parts_says_what_is_missing(
    study: dict[str, ModuleType], studied: tuple[Path, Path], tmp_path: Path
) -> None:
    """What was not measured is named; no number stands in for it and no picture of it is drawn."""
    names = ("quantizer-rtn", "collapse-rtn-least-1", "collapse-rtn-most-1", "modes")
    study["study_page"].write({name: part(studied[0], name) for name in names}, tmp_path)
    text = (tmp_path / "fidelity.md").read_text()
    assert text.count("Not measured yet") == 8
    assert "gptq" not in text.split("## The cure")[0]
    assert [file.name for file in (tmp_path / "pictures").iterdir()] == ["fidelity-collapse.svg"]
