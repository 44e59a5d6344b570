"""A session over fake engines, put together the way each test needs it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgeprec.calibration import AgreementGrid, Calibration
from edgeprec.gears import Gear
from edgeprec.runtime.passes import WeightBits
from edgeprec.runtime.reply import RoundRecord
from edgeprec.runtime.session import Session

GRID_CELLS = 32


def load_sibling(name: str, full_name: str | None = None) -> ModuleType:
    """Import a file by its place seen from this folder, once; it is in no package."""
    full_name = full_name or f"edgeprec_tests_runtime_{name}"
    if full_name not in sys.modules:
        found = spec_from_file_location(full_name, Path(__file__).parent / f"{name}.py")
        assert found is not None
        assert found.loader is not None
        sys.modules[full_name] = module_from_spec(found)
        found.loader.exec_module(sys.modules[full_name])
    return sys.modules[full_name]


@pytest.fixture(scope="session")
def checkpoints() -> ModuleType:
    """Return the factory of tiny Hugging Face checkpoints."""
    return load_sibling("../factories/checkpoints", "edgeprec_factories_checkpoints")


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """Return the module of fake engines."""
    return load_sibling("fake_engine")


@pytest.fixture(scope="session")
def fake_text() -> ModuleType:
    """Return the module of the tokenizer of letters."""
    return load_sibling("fake_text")


@pytest.fixture(scope="session")
def drawn() -> ModuleType:
    """Return the module of settings that hypothesis draws."""
    return load_sibling("drawn_settings")


@pytest.fixture(scope="session")
def gpu_models() -> ModuleType:
    """Return the module of random models on the GPU."""
    return load_sibling("gpu_models")


@dataclass
class Rig:
    """A session and what it stands on."""

    session: Session
    model: Any
    target: Any
    draft: Any
    clock: Any

    def expected(self, prompt: str, count: int) -> list[int]:
        """Return the tokens of plain greedy FP16 decoding from the toy itself; the end token ends nothing."""
        return self.model.decode(self.session.tokenizer.encode(prompt), count)


@pytest.fixture(scope="session")
def make_rig(fake: ModuleType, fake_text: ModuleType) -> Callable[..., Rig]:
    """Return ``make(agreement=..., draft=agreement of a draft model or None, **changes)``.

    ``changes`` are ``model``, fields of the target's engine, ``session``: arguments of ``Session``, and ``kind``: the
    class of both engines.
    """

    def make(
        agreement: str = "always",
        *,
        draft: str | None = None,
        model: dict[str, Any] | None = None,
        draft_engine: dict[str, Any] | None = None,
        session: dict[str, Any] | None = None,
        kind: str = "FakeEngine",
        **engine: Any,
    ) -> Rig:
        clock = fake.Ticks()
        toy = fake.ToyModel(**(model or {}))
        make_engine = getattr(fake, kind)
        target = make_engine(toy, agreement, clock=clock, **engine)
        drafter = None
        if draft is not None:
            common = {"context_tokens": target.context_tokens, "num_layers": 2, "clock": clock, "always_int4": True}
            drafter = make_engine(toy, draft, **common | (draft_engine or {}))
        made: dict[str, Any] = {
            "engine": target,
            "tokenizer": fake_text.letters(toy.vocab_size),
            "target_bits": WeightBits(weights=(100,) * target.num_layers + (60,), int4_bits=4.5),
            "draft_engine": drafter,
            "draft_bits": WeightBits(weights=(10, 10, 60), int4_bits=5.0) if drafter else None,
            "clock": clock,
        }
        return Rig(Session(**made | (session or {})), toy, target, drafter, clock)

    return make


@pytest.fixture(scope="session")
def calibration() -> Callable[..., Calibration]:
    """Return ``make(agreed=of 1000, layers=3, low=0.5, high=2.5)``: the same agreement in every cell."""

    def make(agreed: int = 990, *, layers: int = 3, low: float = 0.5, high: float = 2.5) -> Calibration:
        grid = AgreementGrid((1000,) * GRID_CELLS, (agreed,) * GRID_CELLS)
        return Calibration(
            int4=grid,
            draft=grid,
            theta_low_bits=low,
            theta_high_bits=high,
            layer_order=tuple(range(layers)),
            sensitivity=tuple(1.0 / (1 + layer) for layer in range(layers)),
        )

    return make


@pytest.fixture(scope="session")
def script_round() -> Callable[..., RoundRecord]:
    """Return ``make(**changes)``: a round of three drafted tokens of which two were accepted."""

    def make(**changes: Any) -> RoundRecord:
        record = RoundRecord(
            round=0,
            position=10,
            drafted=(1, 2, 3),
            draft_entropy_bits=(0.3, 0.5, 1.2),
            accepted=2,
            emitted=3,
            verified_rows=4,
            draft_cap=3,
            stop_reason="cap",
            smoothed_entropy_bits=0.4,
            gear=Gear.LOW,
            draft_plan=(True,) * 4,
            draft_ns=9_000,
            verify_ns=11_000,
            start_ns=0,
        )
        return replace(record, **changes)

    return make


@pytest.fixture(scope="module")
def sessions(tiny_pair: Path) -> Iterator[tuple[Session, Session]]:
    """Load the tiny pair in the torch engine for one sequence, and for five."""
    common: dict[str, Any] = {
        "engine": "torch",
        "provider": "cpu",
        "sensor": "none",
        "context_tokens": 110,
        "threads": 1,
    }
    import edgeprec

    with edgeprec.load(tiny_pair, **common) as one, edgeprec.load(tiny_pair, **common, sequences=5) as five:
        yield one, five
