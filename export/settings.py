"""The settings of an export, and the text it is calibrated on."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from edgeprec.errors import ConfigError
from edgeprec.export.quantizer import QuantizerSettings

__all__ = ["ExportSettings"]

_PACKAGED_TEXT = "calibration_text.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """What decides a bundle's bytes besides its sources. ``calibration`` None = the text that ships with EdgePrec.

    ``is_calibrated`` says whether the pair is run on that text to draw its thresholds, which loads the whole model;
    None = unless the quantizer is ``rtn``, the one that needs no activations and the least memory.
    """

    quantizer: QuantizerSettings = field(default_factory=QuantizerSettings)
    calibration: Path | None = None
    is_calibrated: bool | None = None

    @property
    def measures_thresholds(self) -> bool:
        """Whether the bundle gets a ``calibration.json``."""
        return self.quantizer.method != "rtn" if self.is_calibrated is None else self.is_calibrated

    @property
    def reads_text(self) -> bool:
        """Whether the calibration text plays any part."""
        return self.measures_thresholds or self.quantizer.method != "rtn"

    def read_text(self) -> str:
        """Return the calibration text.

        Raises:
            ConfigError: the file cannot be read or is not UTF-8.
        """
        if self.calibration is None:
            return resources.files("edgeprec.export").joinpath(_PACKAGED_TEXT).read_text(encoding="utf-8")
        try:
            return self.calibration.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"calibration text {self.calibration} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"calibration text {self.calibration} is not UTF-8 at byte {error.start}: convert it first"
            ) from error

    @property
    def text_name(self) -> str:
        """Return the name of the calibration text, without its folder."""
        return "packaged" if self.calibration is None else self.calibration.name
