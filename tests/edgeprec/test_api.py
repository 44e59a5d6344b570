"""The Python API on a real tiny pair: load it, generate in every mode, and be told what cannot be done before it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgeprec
from edgeprec import api, extras
from edgeprec.available_memory import AvailableMemory
from edgeprec.config import Mode
from edgeprec.devices.simulated import SimulatedSensor
from edgeprec.errors import BundleError, ConfigError, DeviceError, MemoryBudgetError, MissingDependency
from edgeprec.runtime import engines
from edgeprec.runtime.certificate import certify
from edgeprec.runtime.session import Session

PROMPT = "the sand and the ring on the other hand"
ASKED = {"max_new_tokens": 32, "ignore_eos": True}


@pytest.fixture(scope="module")
def session(tiny_pair: Path) -> Iterator[Session]:
    """Load the pair once."""
    with edgeprec.load(tiny_pair, sensor="none", threads=2) as loaded:
        yield loaded


@pytest.fixture
def copy(tiny_pair: Path, tmp_path: Path) -> Path:
    """Return a copy of the pair that a test may damage."""
    return Path(shutil.copytree(tiny_pair, tmp_path / "copy.edgeprec"))


def rewrite(bundle: Path, name: str, content: bytes) -> None:
    """Replace a file by another of the same size: what a load, which looks at sizes only, does not notice."""
    size = (bundle / name).stat().st_size
    assert len(content) <= size
    (bundle / name).write_bytes(content.ljust(size))


@pytest.mark.parametrize("draft_length", [1, 5, 8, None])
@pytest.mark.parametrize("drafter", ["self", "model", "ngram", "none"])
def test_exact_is_fp16_on_a_real_graph(session: Session, drafter: str, draft_length: int | None) -> None:
    """The same ids, bit for bit of logits behind them, with padded vocabularies on both sides."""
    plain = session.generate(PROMPT, mode="fp16", **ASKED)
    exact = session.generate(PROMPT, drafter=drafter, draft_length=draft_length, **ASKED)
    assert exact.tokens == plain.tokens
    assert exact.text == plain.text


@pytest.mark.parametrize("drafter", ["self", "model"])
def test_sampling_is_fp16s_on_a_real_graph(session: Session, drafter: str) -> None:
    """A seed gives one text, drafted or not."""
    common = {"temperature": 1.1, "top_p": 0.95, "seed": 11, **ASKED}
    plain = session.generate(PROMPT, mode="fp16", **common)
    assert session.generate(PROMPT, drafter=drafter, draft_length=4, **common).tokens == plain.tokens


@pytest.mark.parametrize("mode", list(Mode))
def test_every_mode_runs(session: Session, mode: Mode) -> None:
    """A reply of the asked length, with text, counts and a reason for the missing energy."""
    reply = session.generate(PROMPT, mode=mode, drafter="self", **ASKED)
    assert len(reply.tokens) == reply.stats.new_tokens == 32
    assert reply.stats.tokens_per_s > 0.0
    assert (reply.stats.energy, reply.stats.energy_note) == (None, "power is not measured: the sensor is set to none")


def test_next_turn_equals_a_fresh_session(tiny_pair: Path) -> None:
    """Reusing the cache across turns of any mode changes no token of the next."""
    with edgeprec.load(tiny_pair, sensor="none") as talking, edgeprec.load(tiny_pair, sensor="none") as fresh:
        text = talking.tokenizer.encode(PROMPT)
        for mode in ("exact", "gated", "int4", "exact"):
            reply = talking.generate(text, mode=mode, drafter="self", draft_length=3, **ASKED)
            text = [*text, *reply.tokens, 40]
        assert reply.tokens == fresh.generate(text[: -1 - len(reply.tokens)], mode="fp16", **ASKED).tokens


def test_a_pair_is_certified(session: Session) -> None:
    """``certify`` finds nothing on a real graph."""
    config = edgeprec.GenerationConfig(max_new_tokens=16)
    assert certify(session, [PROMPT, "in", "er and an"], config=config).verdict == "identical"


def test_chat_and_stream(session: Session) -> None:
    """The template of the checkpoint is applied, and a stream's pieces are the reply's text."""
    generation = session.stream("hello", chat=True, max_new_tokens=12)
    assert "".join(event.text for event in generation) == generation.reply.text
    rendered = session.tokenizer.render_chat([{"role": "user", "content": "hello"}])
    assert generation.reply.stats.prompt_tokens == len(session.tokenizer.encode(rendered))


def test_context_is_the_one_asked_for(tiny_pair: Path) -> None:
    """Without a wish it is what the shorter model was made for."""
    with edgeprec.load(tiny_pair, sensor="none") as loaded:
        assert loaded.info.context_tokens == 200
    with edgeprec.load(tiny_pair, sensor="none", context_tokens=40) as loaded:
        assert len(loaded.generate("a", max_new_tokens=99, ignore_eos=True, drafter="self").tokens) == 39


@pytest.mark.parametrize(
    ("asked", "error", "match"),
    [
        ({"engine": "warp"}, ConfigError, "engine is 'warp'"),
        ({"provider": "rocm"}, ConfigError, "provider is 'rocm'"),
        ({"context_tokens": 201}, ConfigError, "context is 201 tokens, expected 1 to 200"),
        ({"context_tokens": 0}, ConfigError, "context is 0 tokens"),
        ({"sensor": "crystal"}, ConfigError, "crystal"),
        ({"threads": 0}, ConfigError, "threads is 0"),
        ({"threads": 100_000}, ConfigError, r"threads is 100000, expected 1 to \d+, the logical CPUs of this machine"),
        ({"threads": "2"}, ConfigError, "threads is '2', expected a whole number"),
        ({"threads": True}, ConfigError, "threads is True, expected a whole number"),
        ({"context_tokens": 20.0}, ConfigError, r"context_tokens is 20\.0, expected a whole number"),
        ({"sequences": "2"}, ConfigError, "sequences is '2', expected a whole number"),
        ({"sensor": None}, ConfigError, "sensor is None, expected a text"),
    ],
)
def test_unknown_wishes_are_refused(tiny_pair: Path, asked: dict[str, Any], error: type[Exception], match: str) -> None:
    """One sentence that names the wish."""
    with pytest.raises(error, match=match):
        edgeprec.load(tiny_pair, **{"sensor": "none", **asked})


@pytest.mark.parametrize("path", [None, 3, b"tiny.edgeprec"])
def test_what_is_no_path_is_refused(path: Any) -> None:
    """One sentence, not a TypeError from inside."""
    with pytest.raises(ConfigError, match=r"the path of the bundle is .*, expected a text or a Path"):
        edgeprec.load(path)


@pytest.mark.parametrize("count", [5.0, True])
def test_a_count_of_tokens_is_a_whole_number(session: Session, count: Any) -> None:
    """A number that is none must not end a loop somewhere inside."""
    with pytest.raises(ConfigError, match=f"max_new_tokens is {count}, expected a whole number"):
        session.generate(PROMPT, max_new_tokens=count)


def test_too_little_memory_is_told_before_loading(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal comes before a single weight is read."""
    monkeypatch.setattr(engines, "read_available_memory", lambda: AvailableMemory(1 << 20, "a control group"))
    monkeypatch.setattr(engines, "open_engines", lambda *_, **__: pytest.fail("an engine was opened"))
    with pytest.raises(MemoryBudgetError, match=r"needs .* MiB of memory"):
        edgeprec.load(tiny_pair, sensor="none")


@pytest.mark.parametrize("where", ["nowhere", "file"])
def test_what_is_no_bundle_is_refused(tmp_path: Path, where: str) -> None:
    """A path that is not there and a file that is no bundle."""
    path = tmp_path / where
    if where == "file":
        path.write_text("hello")
    with pytest.raises(BundleError, match=str(path)):
        edgeprec.load(path)


@pytest.mark.parametrize("name", ["target/model.fp32.onnx", "draft/int4.safetensors", "tokenizer.json"])
def test_missing_file_is_named(copy: Path, name: str) -> None:
    """A bundle with a hole is not loaded half."""
    (copy / name).unlink()
    with pytest.raises(BundleError, match=name):
        edgeprec.load(copy, sensor="none")


def test_another_vocabulary_is_refused_at_load(copy: Path) -> None:
    """A draft that was swapped for one with other tokens is found, with the first id that differs."""
    tokenizer = json.loads((copy / "draft" / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]
    rewrite(copy, "draft/tokenizer.json", json.dumps(tokenizer).encode())
    with pytest.raises(BundleError, match=f"different vocabularies: id {min(vocab['A'], vocab['B'])} is"):
        edgeprec.load(copy, sensor="none")


def test_a_damaged_draft_tokenizer_is_the_bundles_fault(copy: Path) -> None:
    """Exit code 3, as for every other file of a bundle."""
    path = copy / "draft" / "tokenizer.json"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(BundleError, match=r"is no pair: .*not valid JSON"):
        edgeprec.load(copy, sensor="none")


@pytest.mark.parametrize("name", ["target/fp16.safetensors", "target/int4.safetensors", "draft/int4.safetensors"])
def test_weights_that_are_none_are_refused(copy: Path, name: str) -> None:
    """ONNX Runtime would compute with any bytes of the right size."""
    path = copy / name
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(BundleError, match=name):
        edgeprec.load(copy, sensor="none")


def test_calibration_of_another_model_is_refused(copy: Path) -> None:
    """Thresholds and layer order must be the target's own."""
    values = json.loads((copy / "calibration.json").read_text())
    values |= {"layer_order": [0, 1], "sensitivity": [1.0, 0.5]}
    rewrite(copy, "calibration.json", json.dumps(values).encode())
    with pytest.raises(BundleError, match="is for 2 layers, the target has 3"):
        edgeprec.load(copy, sensor="none")


def test_sensor_is_closed_when_the_engine_fails(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stays open behind an error."""
    closed: list[bool] = []
    monkeypatch.setattr(SimulatedSensor, "close", lambda _: closed.append(True))
    rewrite(copy, "target/model.fp32.onnx", b"\x08\x0agarbage")
    with pytest.raises(BundleError, match="is damaged"):
        edgeprec.load(copy, sensor="simulated:agx-orin")
    assert closed == [True]


def test_sensor_that_cannot_be_used_is_an_error_by_name(tiny_pair: Path, tmp_path: Path) -> None:
    """Who asks for a sensor by name gets it or an error, never silence."""
    with pytest.raises((DeviceError, ConfigError), match=r"trace\.jsonl"):
        edgeprec.load(tiny_pair, sensor=f"replay:{tmp_path / 'trace.jsonl'}")


def test_simulated_board_gives_energy(tiny_pair: Path) -> None:
    """A reply carries joules when there is a sensor, and says where they come from."""
    with edgeprec.load(tiny_pair, sensor="simulated:agx-orin") as loaded:
        stats = loaded.generate(PROMPT, **ASKED).stats
    energy = stats.energy
    assert energy is not None
    assert (energy.source, energy.is_total) == ("simulated:agx-orin", True)
    assert energy.joules > 0.0
    assert energy.joules_per_token == pytest.approx(energy.joules / 32)
    assert "simulated" in stats.energy_note


def test_public_names_resolve() -> None:
    """Everything in ``__all__`` is there; what is not says so."""
    assert sorted(edgeprec.__all__) == dir(edgeprec) == sorted(set(edgeprec.__all__))
    assert all(getattr(edgeprec, name) is not None for name in edgeprec.__all__)
    assert (edgeprec.load, edgeprec.export_bundle) == (api.load, api.export_bundle)
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        edgeprec.lode  # noqa: B018


def test_export_without_its_extra_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program on a device that only runs bundles is told which package is missing, before any work."""
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install 'edgeprec\[export\]'"):
        edgeprec.export_bundle("model", tmp_path / "out.edgeprec")
    assert list(tmp_path.iterdir()) == []
