"""A draft in the hand-off: a whole FP16 checkpoint beside the target, and the commands that serve both."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from safetensors.numpy import load_file

from edgeprec.api import export_bundle, export_compressed_tensors
from edgeprec.architecture import LINEARS
from edgeprec.errors import ConfigError
from edgeprec.export.checkpoint import open_checkpoint
from edgeprec.export.compressed_tensors_serve import serve_commands
from edgeprec.export.draft_facts import DraftFacts
from edgeprec.export.draft_writer import write_draft
from edgeprec.export.quantizer import QuantizerSettings
from edgeprec.export.settings import ExportSettings

WIDTHS = {"hidden_size": 64, "intermediate_size": 96}
RTN = ExportSettings(quantizer=QuantizerSettings(method="rtn"))


def test_the_draft_is_a_whole_fp16_checkpoint(checkpoints: ModuleType, tmp_path: Path) -> None:
    """A draft lies beside the target, in FP16 and complete, so that the folder can be carried elsewhere."""
    source = checkpoints.make_checkpoint(tmp_path / "source", "llama", **WIDTHS)
    draft = checkpoints.make_checkpoint(tmp_path / "small", "llama", num_layers=1, seed=4, dtype="fp16")  # 48 wide
    output = export_compressed_tensors(source, tmp_path / "output", draft=str(draft), settings=RTN)
    written, original = (load_file(folder / "model.safetensors") for folder in (output / "draft", draft))
    assert written.keys() == original.keys()
    for name, values in written.items():
        np.testing.assert_array_equal(values, original[name], err_msg=name)
    assert "quantization_config" not in json.loads((output / "draft/config.json").read_text())
    assert open_checkpoint(str(output / "draft")).config == open_checkpoint(str(draft)).config


def test_a_bundles_own_draft_comes_along(checkpoints: ModuleType, tmp_path: Path) -> None:
    """The same pair on the cluster: a bundle hands its draft model over, unless told not to."""
    source = checkpoints.make_checkpoint(tmp_path / "source", "llama", dtype="fp16", **WIDTHS)
    small = checkpoints.make_checkpoint(tmp_path / "small", "llama", num_layers=1, seed=4, dtype="fp16")
    bundle = export_bundle(source, tmp_path / "pair.edgeprec", draft=str(small), settings=RTN)
    output = export_compressed_tensors(bundle, tmp_path / "output", settings=RTN)
    written, original = (load_file(folder / "model.safetensors") for folder in (output / "draft", small))
    assert written.keys() == original.keys()
    for name, values in written.items():
        np.testing.assert_array_equal(values, original[name], err_msg=name)
    alone = export_compressed_tensors(bundle, tmp_path / "alone", draft="none", settings=RTN)
    assert not (alone / "draft").exists()


def shared_draft(folder: Path, source: Path) -> Path:
    """Write a draft that is its target's first layer and shares embedding and head."""
    target = open_checkpoint(str(source))
    place, weights = "layers.0.", {"final_norm.scale": target.final_norm()}
    for name in LINEARS:
        weights[f"{place}linears.{name}.weight"] = target.linear(0, name).T.astype(np.float32)
    weights |= {f"{place}norms.{name}.scale": target.norm(0, name) for name in ("input", "post_attention")}
    write_draft(
        folder, replace(target.config, num_layers=1), weights, DraftFacts.of(target, (0,)), {"steps": 0}, group_size=32
    )
    return folder


@pytest.mark.parametrize("is_tied", [True, False])
def test_what_a_draft_shares_is_written_out(checkpoints: ModuleType, tmp_path: Path, is_tied: bool) -> None:
    """A distilled draft has its target's embedding and head; servers need them in its folder, from bundles too."""
    source = checkpoints.make_checkpoint(tmp_path / "source", "llama", dtype="fp16", tied=is_tied, **WIDTHS)
    draft = shared_draft(tmp_path / "draft", source)
    bundle = export_bundle(source, tmp_path / "pair.edgeprec", draft=str(draft), settings=RTN)
    outputs = [
        export_compressed_tensors(source, tmp_path / "one", draft=str(draft), settings=RTN),
        export_compressed_tensors(bundle, tmp_path / "two", settings=RTN),
    ]
    target = load_file(source / "model.safetensors")
    shared = {"model.embed_tokens.weight"} if is_tied else {"model.embed_tokens.weight", "lm_head.weight"}
    expected = load_file(draft / "model.safetensors") | {name: target[name] for name in shared}
    for output in outputs:
        written = load_file(output / "draft/model.safetensors")
        assert written.keys() == expected.keys()
        for name, values in written.items():
            np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_a_draft_of_another_width_of_vocabulary_is_refused(checkpoints: ModuleType, tmp_path: Path) -> None:
    """Servers compare the numbers of rows, padding included."""
    source = checkpoints.make_checkpoint(tmp_path / "source", "llama", vocab_size=320, **WIDTHS)
    draft = checkpoints.make_checkpoint(tmp_path / "small", "llama", vocab_size=352, num_layers=1)
    with pytest.raises(ConfigError, match=r"the draft has 352 rows of vocabulary and the target 320"):
        export_compressed_tensors(source, tmp_path / "output", draft=str(draft), settings=RTN)
    assert not (tmp_path / "output").exists()


def test_the_serve_commands_carry_draft_and_length() -> None:
    """Same draft, same K; paths with blanks survive a shell."""
    import shlex

    target, draft = Path("my model"), Path("my model/draft")
    commands = {server: shlex.split(line) for server, line in serve_commands(target, draft, draft_length=5).items()}
    vllm, sglang = commands["vllm"], commands["sglang"]
    assert vllm[:3] == ["vllm", "serve", "my model"]
    speculation = json.loads(vllm[vllm.index("--speculative-config") + 1])
    assert speculation == {"method": "draft_model", "model": "my model/draft", "num_speculative_tokens": 5}
    assert sglang[sglang.index("--speculative-draft-model-path") + 1] == "my model/draft"
    assert sglang[sglang.index("--speculative-num-steps") + 1] == "5"
    assert sglang[sglang.index("--speculative-num-draft-tokens") + 1] == "6"
    for plain in (serve_commands(target, None, draft_length=5), serve_commands(target, draft, draft_length=0)):
        assert "speculative" not in "".join(plain.values())
