"""Flags of the contract whose feature this version does not have. They are refused, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgeprec.errors import ConfigError

__all__ = ["refuse_unbuilt"]

_UNBUILT = (("three_level", True, "--three-level is not built yet: leave it out, drafts are checked by FP16 directly"),)


def refuse_unbuilt(values: Mapping[str, Any]) -> None:
    """Check parsed flags.

    Raises:
        ConfigError: one asks for a feature that is not built yet.
    """
    for name, value, sentence in _UNBUILT:
        if values.get(name) == value:
            raise ConfigError(sentence)
