"""A widened model on disk: what others load computes the small model's function, and half of one is never seen."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from edgeprec.errors import ConfigError
from edgeprec.export.checkpoint import open_checkpoint

CPU = torch.device("cpu")
TEXT = torch.from_numpy(np.random.default_rng(4).integers(0, 288, (1, 50)))


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    """Import ``scripts/widened_checkpoint.py``."""
    return load_script("widened_checkpoint")


@pytest.fixture(scope="module")
def small(checkpoints: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Llama of two layers with a tied head."""
    made: Path = checkpoints.make_checkpoint(
        tmp_path_factory.mktemp("small") / "model", "llama", vocab_size=301, dtype="fp16"
    )
    return made


def write(script: ModuleType, small: Path, output: Path) -> list[str]:
    """Write ``small`` at the shape next to its own and return what was reported."""
    opened, lines = open_checkpoint(str(small)), []
    shape = script.shape_of(opened.config, "tiny")
    assert script.write_widened(opened, shape, output, device=CPU, report=lines.append) == output
    return lines


def logits(folder: Path) -> torch.Tensor:
    """Return what transformers computes in float32."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        found: torch.Tensor = model(TEXT).logits
    return found


def test_transformers_computes_the_small_models_logits(script: ModuleType, small: Path, tmp_path: Path) -> None:
    """The folder loads as it is, at the larger shape, and gives the logits to FP16 rounding."""
    lines = write(script, small, tmp_path / "wide")
    config = json.loads((tmp_path / "wide/config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"], config["head_dim"]) == (4, 288, 24)
    assert config["tie_word_embeddings"] is False
    assert len(lines) == 6
    got, expected = logits(tmp_path / "wide"), logits(small)
    print(f"max difference {(got - expected).abs().max():.2e}, mean {(got - expected).abs().mean():.2e}")  # noqa: T201
    torch.testing.assert_close(got, expected, atol=0.02, rtol=0.0)


def test_model_as_it_is(script: ModuleType, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the shape ``none`` the folder has the source's own bits, its head tied as it was."""
    command = ["widen.py", str(small), "-o", str(tmp_path / "plain"), "--shape", "none", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", command)
    script.main()
    config = json.loads((tmp_path / "plain/config.json").read_text())
    assert (config["num_hidden_layers"], config["tie_word_embeddings"]) == (2, True)
    assert torch.equal(logits(tmp_path / "plain"), logits(small))
    assert len(list((tmp_path / "plain").glob("*.safetensors"))) == 4


def test_edgeprec_reads_it(script: ModuleType, small: Path, tmp_path: Path) -> None:
    """It is a checkpoint to export, with the small model's tokenizer and its own head."""
    write(script, small, tmp_path / "wide")
    wide, narrow = open_checkpoint(str(tmp_path / "wide")), open_checkpoint(str(small))
    assert wide.config.hidden_size == 288
    assert wide.config.rms_norm_eps == pytest.approx(narrow.config.rms_norm_eps * 48 / 288)
    assert wide.tokenizer.tokenizer_json == narrow.tokenizer.tokenizer_json
    head = wide.head()
    assert head is not None
    assert head.shape == (288, 301)
    assert wide.linear(3, "down").shape == (512, 288)


def test_goes_on_after_an_interruption(
    script: ModuleType, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is seen before all is there; a second run keeps what the first wrote; bytes are those of one run."""
    write(script, small, tmp_path / "whole")
    real, calls = script.save_file, []

    def interrupted(tensors: Any, path: Path, **options: Any) -> None:
        calls.append(path)
        if len(calls) == 4:
            path.write_bytes(b"half")
            raise KeyboardInterrupt
        real(tensors, path, **options)

    monkeypatch.setattr(script, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(script, small, tmp_path / "wide")
    assert not (tmp_path / "wide").exists()
    monkeypatch.setattr(script, "save_file", real)
    lines = write(script, small, tmp_path / "wide")
    assert [line.endswith("was there") for line in lines] == [True] * 3 + [False] * 3
    files = {path.name: path.read_bytes() for path in (tmp_path / "wide").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole", "wide"]


def test_unfinished_work_of_another_model(
    script: ModuleType, small: Path, checkpoints: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of two models are never mixed."""
    monkeypatch.setattr(script, "_write_index", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write(script, small, tmp_path / "wide")
    other = checkpoints.make_checkpoint(tmp_path / "other", "llama", vocab_size=301, dtype="fp16", seed=1)
    with pytest.raises(ConfigError, match="unfinished work on another model or shape"):
        write(script, other, tmp_path / "wide")


def test_output_that_exists(script: ModuleType, small: Path, tmp_path: Path) -> None:
    """A folder is never overwritten."""
    (tmp_path / "wide").mkdir()
    with pytest.raises(ConfigError, match="already exists"):
        write(script, small, tmp_path / "wide")


def test_values_beyond_fp16(script: ModuleType, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are an error with the tensor's name, not infinities in a file."""
    monkeypatch.setattr(script.WidenedSource, "matrix", lambda *_: torch.full((288, 288), 1e5).half())
    with pytest.raises(ConfigError, match=r"model.embed_tokens.weight .* beyond FP16"):
        write(script, small, tmp_path / "wide")


def test_from_a_shell(script: ModuleType, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of the docs writes the folder."""
    arguments = ["widen.py", str(small), "-o", str(tmp_path / "wide"), "--shape", "tiny", "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", arguments)
    script.main()
    assert (tmp_path / "wide/model.safetensors.index.json").exists()
