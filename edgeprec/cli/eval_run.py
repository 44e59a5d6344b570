"""One run of ``edgeprec eval``: tables come one after the other, and each is kept as soon as it is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgeprec.bundle import Bundle
    from edgeprec.runtime.evaluation import Evaluation
    from edgeprec.runtime.evaluation_settings import EvaluationSettings
    from edgeprec.runtime.session import Session

__all__ = ["EvaluationRun"]


@dataclass(slots=True, kw_only=True)
class EvaluationRun:
    """What is measured, and ``found``: what ``eval --json`` prints, empty until there is a table.

    ``known`` is what an interrupted run found; its finished tables are not measured again. ``folder`` None = no files.
    """

    bundle: Bundle
    settings: EvaluationSettings
    folder: Path | None
    is_quiet: bool
    known: dict[str, Any] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        """Return what decides the result beside the machine."""
        manifest, int4 = self.bundle.manifest, self.bundle.target.entry.int4
        size = {name: value for name, value in asdict(self.settings).items() if name != "tables"}
        return {
            "bundle": manifest.name,
            "export_fingerprint": manifest.export_fingerprint,
            "rotated": any(name.startswith("rotated-") for name in manifest.sources),
            "quantizer": int4.quantizer,
            "group_size": int4.group_size,
            "bits_per_weight": int4.bits_per_weight,
            "settings": size | {"draft_lengths": list(self.settings.draft_lengths)},
        }

    def measure(self, open_session: Callable[[], AbstractContextManager[Session]]) -> None:
        """Measure what is asked for and not known, and keep each table in ``found`` and in the folder.

        Raises:
            ConfigError: no prompt fits into the context.
            KeyboardInterrupt: Ctrl-C; ``found`` and the folder hold the tables measured until then.
        """
        from edgeprec.bundle import BundleModel
        from edgeprec.cli.eval_progress import evaluation_bar
        from edgeprec.prompts import load_prompts
        from edgeprec.runtime.evaluation import evaluate

        left = tuple(table for table in self.settings.tables if table not in self.known.get("tables", ()))
        if not left:
            self.found = self.known
            return
        began_ns = time.monotonic_ns()
        with open_session() as session, evaluation_bar(is_quiet=self.is_quiet) as show:
            engine = f"{session.info.name} on {session.info.device}"

            def keep(found: Evaluation) -> None:
                self._keep(found, engine=engine, seconds=(time.monotonic_ns() - began_ns) * 1e-9)

            evaluate(
                session,
                load_prompts("short"),
                settings=replace(self.settings, tables=left),
                has_draft_model=isinstance(self.bundle.draft, BundleModel),
                progress=show,
                on_table=keep,
            )

    def _keep(self, evaluation: Evaluation, *, engine: str, seconds: float) -> None:
        from edgeprec.cli.eval_files import write_evaluation

        new = evaluation.to_json()
        tables = [*self.known.get("tables", ()), *new.pop("tables")]
        notes = dict.fromkeys((*self.known.get("notes", ()), *new.pop("notes")))
        self.found = {
            **self.known,
            **self.facts,
            "engine": engine,
            "seconds": self.known.get("seconds", 0.0) + seconds,
            "complete": all(table in tables for table in self.settings.tables),
            "tables": tables,
            **new,
            "notes": list(notes),
        }
        if self.folder is not None:
            write_evaluation(self.folder, self.found)
