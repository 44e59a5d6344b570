"""What the fidelity study measures: parts by name, each by itself, on copies and texts that lie in a work folder."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from study_decoding import count_flips, decode, expected_prefix
from study_texts import first_of_each_kind, load_texts, store_texts, write_json

import edgeprec
from edgeprec.api import ExportSettings, export_rotated
from edgeprec.bundle import Bundle, BundleModel
from edgeprec.calibration import Calibration
from edgeprec.config import DraftingConfig
from edgeprec.export.progress import Progress
from edgeprec.export.quantizer import METHODS, Method, QuantizerSettings
from edgeprec.precision import Plan
from edgeprec.prompts import load_prompts
from edgeprec.runtime.engine import Engine
from edgeprec.runtime.engine_onnxruntime import OnnxRuntimeEngine
from edgeprec.runtime.evaluation import layers_to_json
from edgeprec.runtime.evaluation_drafts import contestants, measure_drafts
from edgeprec.runtime.evaluation_layers import force_texts, layer_counts, measure_layers
from edgeprec.runtime.evaluation_modes import measure_modes
from edgeprec.runtime.evaluation_texts import EvaluationText, fitting_prompts, write_texts
from edgeprec.runtime.session import Session
from edgeprec.runtime.token_match import TokenMatch, match_tokens

__all__ = ["BEST", "Study"]

BEST: Method = "gptq"  # its calibration orders the layers of all copies: they are one model
COLLAPSING: tuple[Method, ...] = ("rtn", BEST)
CONTEXT_TOKENS = 1024
DRAFT_LENGTHS = tuple(range(1, 9))
ROTATED, BUNDLE = "rotated", "bundle"

Values = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Where everything lies and how much is measured."""

    bundle: Path
    work: Path
    threads: int
    prompts_per_kind: int
    tokens: int

    def parts(self) -> dict[str, Callable[[], Values]]:
        """Return every part with how it is measured, the longest first."""
        found: dict[str, Callable[[], Values]] = {
            name: partial(self._evaluation, name) for name in ("layers", "drafts", "modes")
        }
        found |= {f"bundle-{name}": partial(self._as_it_is, name) for name in ("drafts", "modes", "forced")}
        for method in COLLAPSING:
            for order, count in self._collapse_rows():
                found[f"collapse-{method}-{order}-{count}"] = partial(self._collapse, method, order, count)
        return found | {f"quantizer-{method}": partial(self._forced, self.copy(method)) for method in METHODS}

    @property
    def text_names(self) -> tuple[str, ...]:
        """Return the models that answer the prompts: the copies' FP16 variants are one."""
        return (ROTATED, BUNDLE)

    def facts(self) -> Values:
        """Return what parts of one study have in common."""
        return {
            "export_fingerprint": Bundle.open(self.bundle).manifest.export_fingerprint,
            "prompts_per_kind": self.prompts_per_kind,
            "tokens": self.tokens,
        }

    def copy(self, method: Method) -> Path:
        """Return where the rotated copy of one quantizer lies."""
        return self.work / f"rotated-{method}.edgeprec"

    def make_copy(self, method: Method, progress: Progress) -> None:
        """Make a copy, take up one that is half made, or find it there; the best one's is calibrated."""
        settings = ExportSettings(quantizer=QuantizerSettings(method=method), is_calibrated=method == BEST)
        export_rotated(self.bundle, self.copy(method), settings=settings, progress=progress)

    def part_file(self, name: str) -> Path:
        """Return where a part's result lies once it is measured."""
        return self.work / "parts" / f"{name}.json"

    def text_file(self, name: str) -> Path:
        """Return where the replies of one model lie once they are written."""
        return self.work / "texts" / f"{name}.json"

    def measure(self, name: str) -> None:
        """Measure one part, or let FP16 write the texts ``texts-NAME``, and leave the result in the work folder.

        Raises:
            KeyError: there is no such part.
        """
        if name.startswith("texts-"):
            self._write_texts(name.removeprefix("texts-"))
        else:
            write_json(self.part_file(name), self.parts()[name]() | {"machine": _machine()})

    def results(self) -> Values:
        """Return the parts that are measured, by name."""
        files = {name: self.part_file(name) for name in self.parts()}
        return {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}

    def _write_texts(self, name: str) -> None:
        with self._session(self.copy(BEST) if name == ROTATED else self.bundle) as session:
            prompts = fitting_prompts(session, load_prompts("short"), reply_tokens=self.tokens)
            store_texts(self.text_file(name), write_texts(session, prompts, reply_tokens=self.tokens, progress=_silent))

    def _texts(self, name: str) -> tuple[EvaluationText, ...]:
        return first_of_each_kind(load_texts(self.text_file(name)), self.prompts_per_kind)

    def _forced(self, pair: Path) -> Values:
        """Measure forced fidelity with everything in INT4."""
        texts = self._texts(BUNDLE if pair == self.bundle else ROTATED)
        with self._session(pair) as session:
            rows = force_texts(session, texts, (session.info.num_layers, None), progress=_silent)
        judged = ("tokens", "top1", "top1_low_entropy", "kl_bits")
        return _int4_facts(pair) | {
            "rows": [
                {"int4_head": has_head}
                | {
                    name: dict(
                        zip(judged, (sum(text.tokens), text.top1, text.top1_low_entropy, text.kl_bits), strict=True)
                    )
                    for name, text in (("prompt", prompt), ("reply", reply))
                }
                for has_head, (prompt, reply) in zip((False, True), rows, strict=True)
            ],
        }

    def _collapse_rows(self) -> Iterator[tuple[str, int]]:
        """Yield every order and number of layers to decode with."""
        counts = layer_counts(Bundle.open(self.bundle).target.architecture.num_layers)
        yield from (("least", count) for count in counts)
        yield from (("most", count) for count in counts if count <= 2)

    def _collapse(self, method: Method, order: str, count: int) -> Values:
        """Decode with ``count`` layers in INT4, the least or the most sensitive ones."""
        layers = _layer_order(self.copy(BEST))
        chosen = layers[:count] if order == "most" else layers[::-1][:count]
        texts = self._texts(ROTATED)
        model = Bundle.open(self.copy(method)).target
        engine = OnnxRuntimeEngine.open(
            model.graph_path("fp32"), model.architecture, context_tokens=CONTEXT_TOKENS, threads=self.threads
        )
        row = _collapse_row(engine, texts, Plan.with_int4_layers(chosen, num_layers=len(layers)))
        engine.close()
        facts = {"prompts": len(texts), "tokens": sum(len(text.reply) for text in texts)}
        return {"order": f"{order} sensitive first", "gated": count} | facts | row

    def _evaluation(self, name: str) -> Values:
        """Measure one table of ``edgeprec eval`` on the best quantizer's copy."""
        return self._table(name, self.copy(BEST), load_texts(self.text_file(ROTATED)))

    def _as_it_is(self, name: str) -> Values:
        """Measure the bundle itself, its draft model too where it has one."""
        if name == "forced":
            return self._forced(self.bundle)
        return self._table(name, self.bundle, load_texts(self.text_file(BUNDLE)))

    def _table(self, name: str, pair: Path, texts: Sequence[EvaluationText]) -> Values:
        """Measure one table; modes on all texts, as a share of lost tokens near 1 % needs them."""
        judged = texts if name == "modes" else first_of_each_kind(texts, self.prompts_per_kind)
        has_model = isinstance(Bundle.open(pair).draft, BundleModel)
        with self._session(pair) as session:
            found = _TABLES[name](session, judged, has_model)
        facts = {"prompts": len(judged), "reply_tokens": sum(len(text.reply) for text in judged)}
        return found | facts | _int4_facts(pair)

    def _session(self, pair: Path) -> Session:
        return edgeprec.load(pair, sensor="none", threads=self.threads, context_tokens=CONTEXT_TOKENS)


def _layers(session: Session, texts: Sequence[EvaluationText], _has_model: bool) -> Values:
    return layers_to_json(measure_layers(session, texts, progress=_say))


def _modes(session: Session, texts: Sequence[EvaluationText], _has_model: bool) -> Values:
    epsilon = DraftingConfig().epsilon
    found = measure_modes(session, texts, epsilon=epsilon, progress=_say)
    return {"modes": found.to_json(), "epsilon": epsilon, "bounded_note": found.bounded_note}


def _drafts(session: Session, texts: Sequence[EvaluationText], has_model: bool) -> Values:
    entrants = contestants(has_model=has_model, lengths=DRAFT_LENGTHS)
    found = measure_drafts(session, texts, entrants, progress=_say)
    return found.to_json() | {"differing_tokens": found.differing_tokens}


_TABLES = {"layers": _layers, "modes": _modes, "drafts": _drafts}


def _collapse_row(engine: Engine, texts: Sequence[EvaluationText], plan: Plan) -> Values:
    """Return match, prefix and flips with the layers' own cache and with FP16's."""
    values: Values = {"judged": sum(len(text.reply) - 1 for text in texts)}
    for name, rewrites in (("own", False), ("fresh", True)):
        match, flips = TokenMatch(), 0
        for text in texts:
            count = len(text.reply)
            tokens = decode(engine, text.prompt, count=count, plan=plan, rewrites_cache=rewrites)
            match += match_tokens(tokens, text.reply)
            flips += count_flips(engine, text.prompt, text.reply, plan=plan, rewrites_cache=rewrites)
        rate = flips / values["judged"]
        expected = sum(expected_prefix(rate, len(text.reply)) for text in texts) / len(texts)
        beyond = match.tokens - match.prefix
        values[name] = {
            "match": match.share,
            "prefix_tokens": match.mean_prefix_tokens,
            "match_after_first_difference": (match.same - match.prefix) / beyond if beyond else None,
            "flip_rate": rate,
            "expected_prefix_tokens": expected,
        }
    return values


def _int4_facts(pair: Path) -> Values:
    int4 = Bundle.open(pair).target.entry.int4
    return {
        "quantizer": int4.quantizer,
        "bits_per_weight": int4.bits_per_weight,
        "group_size": int4.group_size,
    }


def _layer_order(copy: Path) -> tuple[int, ...]:
    path = Bundle.open(copy).calibration_path
    assert path is not None, "the best quantizer's copy is calibrated"
    return Calibration.from_json(json.loads(path.read_text())).layer_order


def _machine() -> str:
    import onnxruntime

    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {model}, Python {platform.python_version()}, ONNX Runtime {onnxruntime.__version__}"


def _silent(stage: str, done: int, total: int) -> None:
    """Take progress and say nothing."""


def _say(stage: str, done: int, total: int) -> None:
    print(f"{stage} {done}/{total}", flush=True)
