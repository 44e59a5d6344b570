"""Make docs/fidelity.md: how unverified INT4 decoding falls apart, why, and what verification makes of it.

    python scripts/study_fidelity.py BUNDLE [--work DIR] [--prompts-per-kind 2] [--tokens 48] [-o docs]

Everything is measured on rotated copies of BUNDLE's target, one per quantizer, which lie in the work folder like the
parts' results. A part that is there is not measured again: delete its file to repeat it. Parts, in order:

    quantizer-<q>               forced fidelity with all layers, and all and the head, in INT4
    collapse-<q>-<order>-<n>    decoding with n layers in INT4, the least or the most sensitive first, and nothing
                                verified: flips, match and common prefix, with and without FP16's cache
    layers, modes, drafts       what edgeprec eval measures, on the copy of the best quantizer
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import study_page
from study_decoding import count_flips, decode, expected_prefix

import edgeprec
from edgeprec.api import ExportSettings, export_rotated
from edgeprec.bundle import Bundle
from edgeprec.calibration import Calibration
from edgeprec.config import DraftingConfig
from edgeprec.export.quantizer import METHODS, Method, QuantizerSettings
from edgeprec.precision import Plan
from edgeprec.prompts import load_prompts
from edgeprec.runtime.engine import Engine
from edgeprec.runtime.engine_onnxruntime import OnnxRuntimeEngine
from edgeprec.runtime.evaluation import layers_to_json
from edgeprec.runtime.evaluation_drafts import contestants, measure_drafts
from edgeprec.runtime.evaluation_layers import force_texts, layer_counts, measure_layers
from edgeprec.runtime.evaluation_modes import measure_modes
from edgeprec.runtime.evaluation_texts import EvaluationText, choose_prompts, write_texts
from edgeprec.runtime.session import Session
from edgeprec.runtime.token_match import TokenMatch, match_tokens

BEST: Method = "gptq"  # its calibration orders the layers of all copies: they are one model
COLLAPSING: tuple[Method, ...] = ("rtn", BEST)
CONTEXT_TOKENS = 1024
DRAFT_LENGTHS = tuple(range(1, 9))


def main() -> None:
    """Measure what is missing, then write the page."""
    arguments = _arguments()
    study = Study(arguments)
    if arguments.page:
        study.only = "page"  # no part has this name
    for method in METHODS:
        study.part(f"quantizer-{method}", lambda method=method: study.quantizer(method))
    for method in COLLAPSING:
        for order, count in study.collapse_rows():
            name = f"collapse-{method}-{order}-{count}"
            study.part(name, lambda method=method, order=order, count=count: study.collapse(method, order, count))
    for name in ("layers", "modes", "drafts"):
        study.part(name, lambda name=name: study.evaluation(name))
    if arguments.page or arguments.only is None:
        study_page.write(study.results, arguments.output)


class Study:
    """The parts measured so far, and how to measure the others."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.bundle: Path = arguments.bundle
        self.work: Path = arguments.work
        self.only: str | None = arguments.only
        self.threads: int = arguments.threads
        self.prompts = choose_prompts(load_prompts("short"), per_kind=arguments.prompts_per_kind)
        self.tokens: int = arguments.tokens
        self.results: dict[str, Any] = {}
        self.work.mkdir(parents=True, exist_ok=True)

    def part(self, name: str, measure: Callable[[], dict[str, Any]]) -> None:
        """Take a part from the work folder, or measure it and leave it there."""
        file = self.work / f"{name}.json"
        if not file.exists():
            if self.only not in (None, name):
                return
            print(f"measuring {name}", flush=True)
            file.write_text(json.dumps(measure() | {"machine": _machine()}, indent=1) + "\n")
        self.results[name] = json.loads(file.read_text())

    def copy(self, method: Method) -> Path:
        """Return the rotated copy of one quantizer; the best one's is calibrated."""
        quantizer = QuantizerSettings(method=method)
        settings = ExportSettings(quantizer=quantizer, is_calibrated=method == BEST)
        return export_rotated(self.bundle, self.work / f"rotated-{method}.edgeprec", settings=settings)

    def quantizer(self, method: Method) -> dict[str, Any]:
        """Measure forced fidelity with everything in INT4."""
        copy = self.copy(method)
        with self._session(copy) as session:
            layers = session.info.num_layers
            texts = write_texts(session, self.prompts, reply_tokens=self.tokens, progress=_silent)
            rows = force_texts(session, texts, (layers, None), progress=_silent)
        entry = Bundle.open(copy).target.entry.int4
        return {
            "bits_per_weight": entry.bits_per_weight,
            "group_size": entry.group_size,
            "rows": [
                {
                    "int4_head": has_head,
                    "reply": {"tokens": sum(reply.tokens), "top1": reply.top1, "kl_bits": reply.kl_bits}
                    | {"top1_low_entropy": reply.top1_low_entropy},
                    "prompt": {"tokens": sum(prompt.tokens), "top1": prompt.top1, "kl_bits": prompt.kl_bits}
                    | {"top1_low_entropy": prompt.top1_low_entropy},
                }
                for has_head, (prompt, reply) in zip((False, True), rows, strict=True)
            ],
        }

    def collapse_rows(self) -> Iterator[tuple[str, int]]:
        """Yield every order and number of layers to decode with."""
        counts = layer_counts(Bundle.open(self.bundle).target.architecture.num_layers)
        yield from (("least", count) for count in counts)
        yield from (("most", count) for count in counts if count <= 2)

    def collapse(self, method: Method, order: str, count: int) -> dict[str, Any]:
        """Decode with ``count`` layers in INT4, the least or the most sensitive ones."""
        layers = _layer_order(self.copy(BEST))
        chosen = layers[:count] if order == "most" else layers[::-1][:count]
        with self._session(self.copy(method)) as session:
            texts = write_texts(session, self.prompts, reply_tokens=self.tokens, progress=_silent)
        model = Bundle.open(self.copy(method)).target
        engine = OnnxRuntimeEngine.open(
            model.graph_path("fp32"), model.architecture, context_tokens=CONTEXT_TOKENS, threads=self.threads
        )
        row = _collapse_row(engine, texts, Plan.with_int4_layers(chosen, num_layers=len(layers)))
        engine.close()
        facts = {"prompts": len(texts), "tokens": sum(len(text.reply) for text in texts)}
        return {"order": f"{order} sensitive first", "gated": count} | facts | row

    def evaluation(self, name: str) -> dict[str, Any]:
        """Measure one table of ``edgeprec eval`` on the best quantizer's copy."""
        copy = self.copy(BEST)
        with self._session(copy) as session:
            texts = write_texts(session, self.prompts, reply_tokens=self.tokens, progress=_silent)
            found = _TABLES[name](session, texts)
        facts = {"prompts": len(texts), "reply_tokens": sum(len(text.reply) for text in texts)}
        int4 = Bundle.open(copy).target.entry.int4
        return found | facts | {"quantizer": int4.quantizer, "bits_per_weight": int4.bits_per_weight}

    def _session(self, copy: Path) -> Session:
        return edgeprec.load(copy, sensor="none", threads=self.threads, context_tokens=CONTEXT_TOKENS)


def _layers(session: Session, texts: Sequence[EvaluationText]) -> dict[str, Any]:
    return layers_to_json(measure_layers(session, texts, progress=_say))


def _modes(session: Session, texts: Sequence[EvaluationText]) -> dict[str, Any]:
    epsilon = DraftingConfig().epsilon
    return {"modes": measure_modes(session, texts, epsilon=epsilon, progress=_say).to_json(), "epsilon": epsilon}


def _drafts(session: Session, texts: Sequence[EvaluationText]) -> dict[str, Any]:
    entrants = contestants(has_model=False, lengths=DRAFT_LENGTHS)
    found = measure_drafts(session, texts, entrants, progress=_say)
    return found.to_json() | {"differing_tokens": found.differing_tokens}


_TABLES = {"layers": _layers, "modes": _modes, "drafts": _drafts}


def _collapse_row(engine: Engine, texts: Sequence[EvaluationText], plan: Plan) -> dict[str, Any]:
    """Return match, prefix and flips with the layers' own cache and with FP16's."""
    values: dict[str, Any] = {"judged": sum(len(text.reply) - 1 for text in texts)}
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


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--work", type=Path, default=Path("fidelity-study"), help="where copies and parts lie")
    parser.add_argument("--only", help="measure this part and write no page")
    parser.add_argument("--page", action="store_true", help="write the page from the parts there are, measure nothing")
    parser.add_argument("--prompts-per-kind", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=48, help="length of a reply at most")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
