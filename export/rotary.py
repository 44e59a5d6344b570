"""The rotary frequencies under the name the exporter uses."""

from edgeprec.rotary import inverse_frequencies

__all__ = ["inverse_frequencies"]
