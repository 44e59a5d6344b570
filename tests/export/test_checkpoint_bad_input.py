"""What is not a usable checkpoint is refused with one sentence that names the culprit; nothing else ever escapes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeprec.errors import ConfigError, EdgePrecError, EngineError, MissingDependency
from edgeprec.export.checkpoint import Checkpoint, open_checkpoint
from edgeprec.export.safetensors_file import read_header

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def refused(action: Callable[[], object], *words: str) -> None:
    """Check that ``action`` raises a one-line ConfigError with these words."""
    with pytest.raises(ConfigError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def read_all(checkpoint: Checkpoint) -> None:
    """Read every weight."""
    for layer in range(checkpoint.config.num_layers):
        for name in ("qkv", "o", "gate_up", "down"):
            checkpoint.linear(layer, name)
        checkpoint.norm(layer, "input")
        checkpoint.norm(layer, "post_attention")
        checkpoint.bias(layer)
    checkpoint.final_norm()
    checkpoint.embedding()
    checkpoint.head()


@pytest.fixture
def folder(checkpoints: ModuleType, tmp_path: Path) -> Path:
    """Return a good checkpoint of two shards, to be spoiled."""
    return Path(checkpoints.make_checkpoint(tmp_path / "model", "llama", shards=2, tied=False))


def open_in(folder: Path) -> Callable[[], Checkpoint]:
    """Return the act of opening ``folder``."""
    return lambda: open_checkpoint(str(folder))


def test_nothing_there(tmp_path: Path) -> None:
    """A path that does not exist is not taken for a hub id."""
    missing = str(tmp_path / "absent")
    refused(lambda: open_checkpoint(missing), missing, "owner/name")


def test_not_a_checkpoint(tmp_path: Path) -> None:
    """An empty folder, a folder with a GGUF file and a file of another kind each say what to pass instead."""
    refused(open_in(tmp_path), "no config.json")
    (tmp_path / "notes.txt").write_text("hello")
    refused(open_in(tmp_path / "notes.txt"), "notes.txt", "b'hell'", "GGUF")
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    refused(open_in(tmp_path), "m.gguf itself")


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", ("not JSON",)), ("[]", ("list", "object")), ("\xff", ("not UTF-8",)), ("{}", ("architecture",))],
)
def test_config_that_is_none(folder: Path, text: str, words: tuple[str, ...]) -> None:
    """config.json must be UTF-8, JSON, an object and complete."""
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    refused(open_in(folder), "config.json", *words)


def test_shard_missing(folder: Path) -> None:
    """A shard that the index names but the folder lacks is named."""
    (folder / "model-00002-of-00002.safetensors").unlink()
    refused(open_in(folder), "model-00002-of-00002.safetensors", "No such file")


def test_shard_truncated(folder: Path) -> None:
    """A short shard is noticed when the checkpoint is opened, with both sizes."""
    path = folder / "model-00002-of-00002.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    refused(open_in(folder), path.name, "truncated", str(len(data) - 100), str(len(data)))


def test_shard_cut_after_opening(folder: Path) -> None:
    """A shard that shrinks under the reader's feet is an error, not garbage."""
    checkpoint = open_checkpoint(str(folder))
    path = folder / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    refused(lambda: read_all(checkpoint), path.name, "ended inside tensor")


@pytest.mark.parametrize("where", [{}, {"a": "../other.safetensors"}, {"a": 3}])
def test_index_without_a_usable_map(folder: Path, where: dict[str, Any]) -> None:
    """An index that is empty, or leads out of the folder, is refused."""
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    refused(open_in(folder), "weight_map")


def test_no_weights(folder: Path) -> None:
    """Without safetensors the message says so, and names the way out when there are pickles."""
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    refused(open_in(folder), "no weights", "fetch the whole checkpoint")
    (folder / "pytorch_model.bin").touch()
    refused(open_in(folder), "no weights", "save the checkpoint as safetensors")


def test_shards_without_an_index(folder: Path) -> None:
    """Several weight files without an index are ambiguous."""
    (folder / "model.safetensors.index.json").unlink()
    refused(open_in(folder), "2 safetensors files", "index.json")


def test_tensor_missing(checkpoints: ModuleType, folder: Path) -> None:
    """A tensor the architecture needs is named with the shape it should have."""
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"num_hidden_layers": 3}))
    refused(open_in(folder), "no tensor model.layers.2.", "expected one of shape")


def test_untied_model_without_a_head(checkpoints: ModuleType, tmp_path: Path) -> None:
    """A model that says it is untied must have a head."""
    folder = checkpoints.make_checkpoint(tmp_path, "llama", tied=True, config={"tie_word_embeddings": False})
    refused(open_in(folder), "no tensor lm_head.weight", "[301, 48]")


def test_tensor_of_another_shape(checkpoints: ModuleType, tmp_path: Path) -> None:
    """A wrong shape names the tensor, what it has and what it should have."""
    folder = checkpoints.make_checkpoint(tmp_path, "llama", tensors={Q_PROJ: np.zeros((40, 48), np.float32)})
    refused(open_in(folder), Q_PROJ, "[40, 48]", "[48, 48]")


def test_tensor_nobody_uses(checkpoints: ModuleType, tmp_path: Path) -> None:
    """A tensor that would be left out silently is refused."""
    extra = {"model.layers.0.self_attn.o_proj.bias": np.zeros(48, np.float32)}
    folder = checkpoints.make_checkpoint(tmp_path, "llama", tensors=extra)
    refused(open_in(folder), "o_proj.bias", "1 tensors")


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("name", [Q_PROJ, "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"])
def test_nan_and_infinity_are_counted(checkpoints: ModuleType, tmp_path: Path, dtype: str, name: str) -> None:
    """NaN and infinite weights are refused with the tensor's name and how many there are."""
    shape = checkpoints.tensor_shapes(checkpoints.CheckpointSpec(tied=False))[name]
    values = np.ones(shape, np.float32)
    values.flat[[1, 5, -1]] = [np.nan, np.inf, -np.inf]
    folder = checkpoints.make_checkpoint(tmp_path, "llama", tied=False, dtype=dtype, tensors={name: values})
    refused(lambda: read_all(open_checkpoint(str(folder))), name, f"3 NaN or infinite values of {values.size}")


@pytest.mark.parametrize("name", [Q_PROJ, "model.embed_tokens.weight", "lm_head.weight"])
@pytest.mark.parametrize("value", [70000.0, -65536.0])
def test_fp16_overflow_is_named(checkpoints: ModuleType, tmp_path: Path, name: str, value: float) -> None:
    """A weight that FP16 cannot hold is refused with its magnitude, not clipped to infinity."""
    values = np.zeros(checkpoints.tensor_shapes(checkpoints.CheckpointSpec(tied=False))[name], np.float32)
    values.flat[7] = value
    folder = checkpoints.make_checkpoint(tmp_path, "llama", tied=False, dtype="fp32", tensors={name: values})
    refused(lambda: read_all(open_checkpoint(str(folder))), name, f"{abs(value):g}", "65504")


def test_largest_fp16_value_passes(checkpoints: ModuleType, tmp_path: Path) -> None:
    """65504, and what rounds to it, are not an overflow."""
    values = np.full((48, 48), 65519.0, np.float32)
    folder = checkpoints.make_checkpoint(tmp_path, "llama", dtype="fp32", tensors={Q_PROJ: values})
    assert open_checkpoint(str(folder)).linear(1, "qkv").max() == 65519.0


def test_stored_type_is_not_supported(checkpoints: ModuleType, folder: Path) -> None:
    """A quantized or unknown storage type is named with the ones that can be read."""
    path = folder / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"BF16"', b'"F8E5"'))
    refused(lambda: read_all(open_checkpoint(str(folder))), "F8E5", "BF16, F16, F32")


def test_tokenizer_absent(folder: Path) -> None:
    """A checkpoint without tokenizer.json says what it has instead."""
    (folder / "tokenizer.json").unlink()
    refused(open_in(folder), "tokenizer.json", "found none")
    (folder / "tokenizer.model").touch()
    refused(open_in(folder), "only tokenizer.model")


def test_tokenizer_damaged(folder: Path) -> None:
    """A tokenizer file that is none is refused when the checkpoint is opened."""
    (folder / "tokenizer.json").write_text("{}")
    refused(open_in(folder), "tokenizer.json", "not a tokenizer")


def _fail_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    hub = pytest.importorskip("edgeprec.export.hub")

    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(hub, "snapshot_download", fail)


@pytest.mark.parametrize("kind", ["LocalEntryNotFoundError", "OfflineModeIsEnabled"])
def test_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A hub id without a network is one sentence with the id and what to do, and exit code 5: the id may be right."""
    errors = pytest.importorskip("huggingface_hub.errors")
    _fail_with(monkeypatch, getattr(errors, kind)("Cannot find the snapshot\nsecond line"))
    with pytest.raises(EngineError, match=r"some/model .*Cannot find the snapshot.*connect to the network") as caught:
        open_checkpoint("some/model")
    assert caught.value.exit_code == 5
    assert "second line" not in str(caught.value)


def test_hub_lost_while_downloading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that breaks is the network too, whichever library reports it."""
    hub = pytest.importorskip("edgeprec.export.hub")
    for error in (ConnectionResetError("reset by peer"), hub._HTTP("Server disconnected")):
        _fail_with(monkeypatch, error)
        with pytest.raises(EngineError, match=r"some/model .*connect to the network"):
            open_checkpoint("some/model")


@pytest.mark.parametrize("error", [ValueError("no such name"), OSError(28, "No space left on device")])
def test_hub_refuses(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """What is no matter of the network stays a wrong source."""
    _fail_with(monkeypatch, error)
    refused(lambda: open_checkpoint("some/model"), "some/model", str(error), "check the name")


def test_hub_snapshot_is_opened(checkpoints: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub id gives the downloaded folder under the repository's name, and asks only for files that are read."""
    hub = pytest.importorskip("edgeprec.export.hub")
    asked: dict[str, Any] = {}

    def give(repo_id: str, **options: Any) -> str:
        asked.update(options, repo_id=repo_id)
        return str(folder)

    monkeypatch.setattr(hub, "snapshot_download", give)
    assert open_checkpoint("some/model-1B").name == "model-1B"
    assert asked["repo_id"] == "some/model-1B"
    assert {"config.json", "tokenizer.json", "*.safetensors"} <= set(asked["allow_patterns"])


@pytest.mark.parametrize(("package", "source"), [("gguf", "m.gguf"), ("huggingface_hub", "some/model")])
def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, source: str) -> None:
    """A format whose package is not installed says which extra to install."""
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.startswith(("edgeprec.export.gguf", "edgeprec.export.hub"))]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency, match=rf"{package}.*edgeprec\[export\]"):
        open_checkpoint(source)


@pytest.fixture(scope="module")
def shard_bytes(checkpoints: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return one good safetensors file."""
    path = tmp_path_factory.mktemp("fuzz") / "good.safetensors"
    checkpoints.write_safetensors(path, {"a": np.ones((3, 4)), "b": np.zeros(5)}, dtype="bf16")
    return bytes(path.read_bytes())


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_headers_never_crash(
    shard_bytes: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever bytes of a header are changed or cut off, the reader answers with tensors or an EdgePrec error."""
    spoiled = bytearray(shard_bytes[: data.draw(st.integers(0, len(shard_bytes)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if spoiled:
            spoiled[data.draw(st.integers(0, len(spoiled) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "spoiled.safetensors"
    path.write_bytes(bytes(spoiled))
    message = str(path)
    try:
        read_header(path)
    except EdgePrecError as error:
        message = str(error)
    assert str(path) in message
