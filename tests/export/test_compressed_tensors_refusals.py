"""What the hand-off in compressed-tensors refuses, and that a failed one leaves nothing behind."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgeprec.api import export_compressed_tensors
from edgeprec.errors import ConfigError, EdgePrecError
from edgeprec.export import compressed_tensors as export_module
from edgeprec.export import disk
from edgeprec.export.checkpoint import open_checkpoint
from edgeprec.export.compressed_tensors_layout import require_packable
from edgeprec.export.progress import ProgressEvent
from edgeprec.export.quantizer import QuantizerSettings
from edgeprec.export.settings import ExportSettings

WIDTHS = {"hidden_size": 64, "intermediate_size": 96}
RTN = ExportSettings(quantizer=QuantizerSettings(method="rtn"))


@pytest.mark.parametrize(
    ("widths", "quantizer", "expected"),
    [
        ({"hidden_size": 64, "intermediate_size": 96}, {"group_size": 64},
         r"linear down has 96 inputs, which is no multiple of the group of 64.*use --group-size 32"),
        ({"hidden_size": 48, "intermediate_size": 88}, {}, r"linear qkv has 48 inputs.*leave --format out"),
        ({"hidden_size": 64, "intermediate_size": 64, "num_kv_heads": 1, "num_heads": 2, "head_dim": 36}, {},
         r"linear o has 72 inputs"),
        ({"hidden_size": 64, "intermediate_size": 64, "num_kv_heads": 1, "num_heads": 16, "head_dim": 4},
         {"is_symmetric": False}, r"linear k has 4 outputs, which is no multiple of 8.*--symmetric"),
    ],
)  # fmt: skip
def test_what_the_format_cannot_hold_is_refused(
    checkpoints: ModuleType, tmp_path: Path, widths: dict[str, int], quantizer: dict[str, Any], expected: str
) -> None:
    """One sentence names the linear and what to do, before any work."""
    source = checkpoints.make_checkpoint(tmp_path / "source", "llama", **widths)
    chosen = ExportSettings(quantizer=QuantizerSettings(**{"method": "rtn", **quantizer}))
    with pytest.raises(ConfigError, match=expected):
        export_compressed_tensors(source, tmp_path / "output", settings=chosen)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_a_bias_the_family_has_not_is_refused(checkpoints: ModuleType, tmp_path: Path) -> None:
    """config.json cannot say it, so readers would leave the bias out."""
    config = open_checkpoint(str(checkpoints.make_checkpoint(tmp_path / "source", "llama", **WIDTHS))).config
    with pytest.raises(ConfigError, match="this llama model has a bias on q, k and v"):
        export_module.require_family(replace(config, has_qkv_bias=True))
    require_packable(config, RTN.quantizer)


@pytest.mark.parametrize("what", ["folder", "file", "link"])
def test_nothing_is_overwritten(checkpoints: ModuleType, tmp_path: Path, what: str) -> None:
    """What lies at the output stays, even an empty folder or a link to nothing."""
    source = checkpoints.make_checkpoint(tmp_path / "source", "llama", **WIDTHS)
    output = tmp_path / "output"
    make = {"folder": output.mkdir, "file": output.touch, "link": lambda: output.symlink_to("nowhere")}
    make[what]()
    with pytest.raises(ConfigError, match="already exists"):
        export_compressed_tensors(source, output, settings=RTN)
    assert output.lstat()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["output", "source"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "no room")])
def test_an_interruption_leaves_nothing(checkpoints: ModuleType, tmp_path: Path, error: BaseException) -> None:
    """Half a checkpoint is never there, and neither is what it was made in."""
    source = checkpoints.make_checkpoint(tmp_path / "source", "llama", **WIDTHS)

    def stop_late(event: ProgressEvent) -> None:
        if event.done == event.total:
            raise error

    with pytest.raises((KeyboardInterrupt, EdgePrecError), match=r"^$|No space left on device; nothing was kept"):
        export_compressed_tensors(source, tmp_path / "output", settings=RTN, progress=stop_late)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_a_full_disk_is_known_before_work(
    checkpoints: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size is known from the shapes, so an export that cannot fit does not begin."""
    source = checkpoints.make_checkpoint(tmp_path / "source", "llama", **WIDTHS)
    monkeypatch.setattr(disk, "free_bytes", lambda folder: 1000)
    with pytest.raises(EdgePrecError, match=r"the checkpoint takes [\d,]+ bytes and .* has 1,000 free"):
        export_compressed_tensors(source, tmp_path / "output", settings=RTN)
