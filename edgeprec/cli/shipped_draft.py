"""The demo's distilled draft, where this version ships one: a folder made by ``scripts/train_demo_draft``."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from edgeprec.bundle import Bundle
from edgeprec.errors import BundleError
from edgeprec.file_digest import file_sha256

__all__ = ["DRAFT_FOLDER", "describe_drafts", "is_made_with", "shipped_draft"]

DRAFT_FOLDER = "demo_draft"
_WEIGHTS = "model.safetensors"


def shipped_draft() -> Path | None:
    """Return the folder of the demo's draft, None where none is shipped."""
    folder = Path(str(files("edgeprec.cli"))) / DRAFT_FOLDER
    return folder if (folder / _WEIGHTS).is_file() else None


def is_made_with(bundle: Path, draft: Path | None) -> bool:
    """Return whether a demo bundle in the cache was exported with this draft, None = without a draft model.

    A folder that is no bundle counts as made: opening it says what is wrong.
    """
    try:
        sources = Bundle.read_manifest(bundle).manifest.sources
    except BundleError:
        return True
    made_with = sources.get(f"draft/{_WEIGHTS}")
    if draft is None or made_with is None:
        return draft is None and made_with is None
    return made_with.sha256 == file_sha256(draft / _WEIGHTS)


def describe_drafts(draft: Path | None) -> str:
    """Return who drafts in the demo, in a sentence."""
    if draft is None:
        return "Drafts come from the model's own INT4 variant: no distilled draft ships with this version."
    return "Drafts come from a distilled draft that ships with EdgePrec and shares the model's embedding and head."
