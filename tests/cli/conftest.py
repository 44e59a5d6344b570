"""A session that answers from a script, so that commands are tested without a model."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from edgeprec.cli.errors import run_and_report
from edgeprec.cli.group import cli
from edgeprec.config import GenerationConfig, Mode
from edgeprec.errors import ConfigError
from edgeprec.gears import Band, Gear
from edgeprec.runtime.engine import EngineInfo
from edgeprec.runtime.reply import FinishReason, Reply, RoundRecord, Stats, TokenEvent, TokenSource

WORDS = (" The", " tide", " comes", " in", " twice", " a", " day", ",", " pulled", " by", " the", " moon", ".")
NUM_LAYERS = 6


def make_event(index: int, **changes: Any) -> TokenEvent:
    """Return a plausible token; ``changes`` replace fields."""
    random_state = random.Random(index)
    entropy = random_state.choice((0.2, 0.5, 0.9, 2.4, 3.6)) + random_state.random() * 0.3
    is_draft = entropy < 2 and index > 0
    event = TokenEvent(
        index=index,
        token=1000 + index,
        text=WORDS[index % len(WORDS)],
        entropy_bits=entropy,
        gear=Gear.LOW if entropy < 2 else Gear.HIGH,
        source=TokenSource.DRAFT if is_draft else TokenSource.TARGET,
        round=index // 3,
        int4_layers=NUM_LAYERS if is_draft else 0,
        time_ns=20_000_000 * (index + 1),
    )
    return replace(event, **changes)


def make_round(index: int, **changes: Any) -> RoundRecord:
    """Return a round of three drafted tokens of which two were accepted; ``changes`` replace fields."""
    record = RoundRecord(
        round=index,
        position=10 + 3 * index,
        drafted=(1, 2, 3),
        draft_entropy_bits=(0.3, 0.5, 1.2),
        accepted=2,
        emitted=3,
        verified_rows=4,
        draft_cap=3,
        stop_reason="cap",
        smoothed_entropy_bits=0.4 + 0.3 * (index % 5),
        gear=Gear.LOW,
        draft_plan=(True,) * (NUM_LAYERS + 1),
        draft_ns=9_000_000,
        verify_ns=11_000_000,
        start_ns=40_000_000 * index,
    )
    return replace(record, **changes)


def make_stats(new_tokens: int, **changes: Any) -> Stats:
    """Return statistics without energy; ``changes`` replace fields."""
    rounds = max((new_tokens - 1) // 3, 0)
    stats = Stats(
        prompt_tokens=10,
        new_tokens=new_tokens,
        prefill_s=0.08,
        decode_s=new_tokens * 0.0125,
        tokens_per_s=78.4,
        rounds=rounds,
        drafted=3 * rounds,
        accepted=2 * rounds,
        acceptance_rate=2 / 3 if rounds else None,
        mean_draft_length=3.0 if rounds else None,
        int4_layer_share=0.61,
        draft_int4_layer_share=1.0,
        target_int4_layer_share=0.0,
        bits_read_per_weight=9.4,
        verify_rounds=rounds,
        fallbacks=(),
        energy=None,
        energy_note="no sensor on this machine",
        drafter="self",
        engine="onnxruntime",
    )
    return replace(stats, **changes)


def make_reply(events: Sequence[TokenEvent], **changes: Any) -> Reply:
    """Return the reply that ``events`` add up to; ``changes`` replace fields."""
    reply = Reply(
        text="".join(event.text for event in events),
        tokens=tuple(event.token for event in events),
        finish_reason=FinishReason.LENGTH,
        mode=Mode.EXACT,
        stats=make_stats(len(events)),
        events=tuple(events),
    )
    return replace(reply, **changes)


@dataclass
class FakeGeneration:
    """Gives ``events`` one by one. ``before_token`` is called first, with the token's index."""

    config: GenerationConfig
    events: list[TokenEvent]
    before_token: Callable[[int], None] = lambda _index: None
    rounds: list[RoundRecord] = field(default_factory=list)
    is_cancelled: bool = False
    window: object = None
    tally: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(start_ns=0))
    controller: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(band=Band(theta_low_bits=0.6, theta_high_bits=2.0, hold_tokens=4))
    )

    def __iter__(self) -> Iterator[TokenEvent]:
        for index, event in enumerate(self.events):
            self.before_token(index)
            if self.is_cancelled:
                del self.events[index:]
                return
            if index % 3 == 1:
                self.rounds.append(make_round(len(self.rounds)))
            yield event

    def cancel(self) -> None:
        """End at the next token."""
        self.is_cancelled = True

    @property
    def reply(self) -> Reply:
        """Return the reply of the tokens given."""
        reason = FinishReason.CANCELLED if self.is_cancelled else FinishReason.LENGTH
        return make_reply(self.events, finish_reason=reason, mode=self.config.mode)


@dataclass
class FakeTokenizer:
    """Counts characters as tokens."""

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Return one id per character of the conversation."""
        return [ord(letter) for message in messages for letter in message["content"]]


@dataclass
class FakeSession:
    """Records what it is asked, and answers with scripted tokens."""

    asked: list[tuple[Any, GenerationConfig, dict[str, Any]]] = field(default_factory=list)
    before_token: Callable[[int], None] = lambda _index: None
    text: Callable[[int], str] | None = None
    error: Exception | None = None
    calibration: None = None
    tokenizer: FakeTokenizer = field(default_factory=FakeTokenizer)
    is_closed: bool = False

    @property
    def info(self) -> EngineInfo:
        """Return a small engine."""
        return EngineInfo(
            name="onnxruntime",
            device="cpu",
            num_layers=NUM_LAYERS,
            vocab_size=2000,
            context_tokens=512,
            max_rows=16,
            memory_bytes=1 << 28,
            has_bitwise_rows=False,
        )

    def stream(self, prompt: Any, config: GenerationConfig, **settings: Any) -> FakeGeneration:
        """Begin a scripted generation."""
        self.asked.append((prompt, config, settings))
        if self.error is not None:
            raise self.error
        events = [make_event(index) for index in range(config.max_new_tokens)]
        if self.text is not None:
            events = [replace(event, text=self.text(event.index)) for event in events]
        return FakeGeneration(config, events, self.before_token)

    def generate(self, prompt: Any, config: GenerationConfig, **settings: Any) -> Reply:
        """Return the whole reply."""
        generation = self.stream(prompt, config, **settings)
        for _ in generation:
            pass
        return generation.reply

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True


@dataclass
class FakeApi:
    """Stands in for ``edgeprec.api``."""

    session: FakeSession = field(default_factory=FakeSession)
    loads: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)

    def load(self, path: Any, **settings: Any) -> FakeSession:
        """Record the call and return the session."""
        self.loads.append((path, settings))
        if str(path) == "absent.edgeprec":
            raise ConfigError("there is no bundle absent.edgeprec")
        return self.session


@pytest.fixture
def fake_api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    """Put a fake in the place of ``edgeprec.api``."""
    fake = FakeApi()
    module = ModuleType("edgeprec.api")
    module.__dict__["load"] = fake.load
    monkeypatch.setitem(sys.modules, "edgeprec.api", module)
    return fake


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the developer's own ``EDGEPREC_*`` variables and colours out of the tests."""
    for name in list(os.environ):
        if name.startswith("EDGEPREC_") or name in {"NO_COLOR", "FORCE_COLOR"}:
            monkeypatch.delenv(name)


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str


@pytest.fixture
def invoke() -> Callable[..., Outcome]:
    """Return ``invoke(*arguments, stdin=None, env=None)``: it runs ``edgeprec`` and its reporting of errors."""

    def call(*arguments: str, stdin: bytes | None = None, env: dict[str, str] | None = None) -> Outcome:
        with CliRunner().isolation(input=stdin, env=env) as streams:
            code = run_and_report(cli, arguments)
            sys.stdout.flush()
            return Outcome(code, streams[0].getvalue().decode(), streams[1].getvalue().decode())

    return call


@pytest.fixture
def script() -> SimpleNamespace:
    """Return the functions that make events, rounds, statistics and replies."""
    return SimpleNamespace(event=make_event, round=make_round, stats=make_stats, reply=make_reply, layers=NUM_LAYERS)


@pytest.fixture(scope="session")
def bundles() -> ModuleType:
    """Return the factory of tiny bundles, ``tests/factories/bundles.py``."""
    name = "edgeprec_factories_bundles"
    if name not in sys.modules:
        found = spec_from_file_location(name, Path(__file__).parents[1] / "factories" / "bundles.py")
        assert found is not None
        assert found.loader is not None
        sys.modules[name] = module_from_spec(found)
        found.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="session")
def make_checkpoint() -> Callable[..., Path]:
    """Return ``make(path, **spec)``: it writes a tiny random Llama checkpoint and returns its path."""
    name = "edgeprec_factories_checkpoints"
    if name not in sys.modules:
        found = spec_from_file_location(name, Path(__file__).parents[1] / "factories" / "checkpoints.py")
        assert found is not None
        assert found.loader is not None
        sys.modules[name] = module_from_spec(found)
        found.loader.exec_module(sys.modules[name])

    def make(path: Path, **spec: Any) -> Path:
        sys.modules[name].make_checkpoint(path, "llama", **spec)
        return path

    return make


@pytest.fixture(scope="session")
def pair(make_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle that ``edgeprec export`` wrote."""
    folder = tmp_path_factory.mktemp("pair")
    checkpoint = make_checkpoint(folder / "checkpoint")
    path = folder / "pair.edgeprec"
    with CliRunner().isolation():
        assert run_and_report(cli, ["export", str(checkpoint), "-o", str(path), "--quiet"]) == 0
    return path
