"""Kill the export of a real, tiny checkpoint at some of its calls, as ``kill_driver.py`` does with its made-up one.

Run as ``python kill_pipeline.py FOLDER KILLS``.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import onnx  # noqa: F401  # imported once here, not in every child
import onnxruntime  # noqa: F401
from kill_driver import experiment

from edgeprec.api import ExportSettings, export_bundle
from edgeprec.export.quantizer import QuantizerSettings

TEXT = "the cat sat on the mat and ran. " * 60


def make_checkpoint(path: Path) -> Path:
    """Write a checkpoint of random weights."""
    found = spec_from_file_location("checkpoints", Path(__file__).parents[1] / "factories" / "checkpoints.py")
    assert found is not None
    assert found.loader is not None
    factory = sys.modules["checkpoints"] = module_from_spec(found)
    found.loader.exec_module(factory)
    made: Path = factory.make_checkpoint(path, "llama", max_positions=1024)
    return made


def main(folder: Path, kills: int) -> None:
    """Export with the default quantizer and calibration."""
    source = make_checkpoint(folder / "checkpoint")
    text = folder / "text.txt"
    text.write_text(TEXT)
    settings = ExportSettings(quantizer=QuantizerSettings(), calibration=text)

    def export(output: Path) -> None:
        export_bundle(source, output, settings=settings, resume=True)

    def some(calls: list[str]) -> list[list[tuple[int, bool]]]:
        """Return kills spread over the export, every other one in the middle of its call."""
        places = [len(calls) * (2 * index + 1) // (2 * kills) + 1 for index in range(kills)]
        return [[(place, index % 2 == 1)] for index, place in enumerate(places)]

    experiment(export, folder, some)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
