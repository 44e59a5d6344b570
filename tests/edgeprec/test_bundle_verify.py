"""Verification reads every byte: whatever is wrong with whichever file is listed by name and kind."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest

from edgeprec.bundle import Bundle
from edgeprec.bundle_verify import ProblemKind, VerifyReport, verify_bundle
from edgeprec.errors import BundleError

NAMES = [
    "tokenizer.json",
    "generation.json",
    "calibration.json",
    "target/fp16.safetensors",
    "target/int4.safetensors",
    "target/model.fp32.onnx",
]


def verify(root: Path) -> VerifyReport:
    """Verify a bundle that may be damaged."""
    return verify_bundle(Bundle.read_manifest(root))


def found(report: VerifyReport) -> list[tuple[str, ProblemKind]]:
    """Return path and kind of every problem."""
    return [(problem.path, problem.kind) for problem in report.problems]


def test_whole_bundle(root: Path) -> None:
    """An intact bundle has no problem, and every byte was counted."""
    report = verify(root)
    assert report.is_ok
    report.require()
    assert report.num_files == len(NAMES)
    assert report.size_bytes == sum((root / name).stat().st_size for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_flipped_bit(root: Path, name: str, place: float) -> None:
    """One flipped bit anywhere in any file is found."""
    data = bytearray((root / name).read_bytes())
    data[int(place * (len(data) - 1))] ^= 1
    (root / name).write_bytes(data)
    assert found(verify(root)) == [(name, ProblemKind.DAMAGED)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [0, 5])
def test_truncated(root: Path, name: str, size: int) -> None:
    """A cut file is damaged, and both sizes are told."""
    os.truncate(root / name, size)
    report = verify(root)
    assert found(report) == [(name, ProblemKind.DAMAGED)]
    assert f"{size} bytes, expected" in report.problems[0].detail


@pytest.mark.parametrize("name", NAMES)
def test_missing(root: Path, name: str) -> None:
    """A missing file is told apart from a damaged one."""
    (root / name).unlink()
    assert found(verify(root)) == [(name, ProblemKind.MISSING)]


@pytest.mark.parametrize("name", ["notes.txt", "target/old.bin", "new/folder/x"])
def test_extra(root: Path, name: str) -> None:
    """A file nobody listed is told: a bundle holds what its manifest says and no more."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("x")
    assert found(verify(root)) == [(name, ProblemKind.EXTRA)]


def test_extra_link_to_a_folder(root: Path, tmp_path: Path) -> None:
    """A link to a folder is not followed, and is told."""
    (root / "link").symlink_to(tmp_path)
    assert found(verify(root)) == [("link", ProblemKind.EXTRA)]


def test_link_in_place_of_a_file(root: Path, tmp_path: Path) -> None:
    """Equal bytes behind a link out of the bundle are not the bundle's bytes."""
    (root / "tokenizer.json").rename(tmp_path / "t")
    (root / "tokenizer.json").symlink_to(tmp_path / "t")
    assert found(verify(root)) == [("tokenizer.json", ProblemKind.DAMAGED)]


def test_a_folder_in_place_of_a_file(root: Path) -> None:
    """A folder with a file's name is not that file."""
    (root / "tokenizer.json").unlink()
    (root / "tokenizer.json").mkdir()
    assert found(verify(root)) == [("tokenizer.json", ProblemKind.MISSING)]


def test_whole_file_of_another_model(tmp_path: Path, bundles: ModuleType) -> None:
    """Bytes as listed are not enough: the tensors must be those of the architecture."""
    entry = bundles.make_entry(config=bundles.make_config(num_layers=1))
    wrong = bundles.make_entry(config=bundles.make_config(num_layers=2))
    root = tmp_path / "p"
    with bundles.BundleTransaction(root, resume=False, fingerprint="f") as transaction:
        bundles.write_model(transaction, entry)
        for name in ("tokenizer.json", "generation.json"):
            transaction.write_bytes(name, b"{}")
        transaction.finish(bundles.make_manifest(target=wrong))
    assert found(verify(root)) == [
        ("target/fp16.safetensors", ProblemKind.UNFIT),
        ("target/int4.safetensors", ProblemKind.UNFIT),
    ]


def test_every_problem_is_listed_at_once(root: Path) -> None:
    """A user sees all that is wrong after one pass, in JSON and in the error."""
    (root / "generation.json").unlink()
    (root / "extra").write_text("x")
    os.truncate(root / "tokenizer.json", 1)
    report = verify(root)
    values = report.to_json()
    assert not values["ok"]
    kinds = {problem["path"]: problem["kind"] for problem in values["problems"]}
    assert kinds == {"generation.json": "missing", "extra": "extra", "tokenizer.json": "damaged"}
    with pytest.raises(BundleError, match=r"generation\.json is missing.*tokenizer\.json is damaged.*extra is extra"):
        report.require()


def test_progress_reaches_the_end(root: Path) -> None:
    """Progress counts bytes up to all of them."""
    told: list[tuple[int, int]] = []
    bundle = Bundle.open(root)
    verify_bundle(bundle, progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1] == (bundle.size_bytes, bundle.size_bytes)
