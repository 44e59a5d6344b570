"""Write a widened model as a Hugging Face folder that ``edgeprec export``, transformers and vLLM load.

    python scripts/widen.py SOURCE -o FOLDER --shape 8b|1b|tiny|none [--target SOURCE] [--device cpu|cuda]

One file per layer, one for the embedding, one for the head: no more than one of them is held. Until all are there the
work lies in ``.FOLDER.part`` beside it; the same command goes on after the files that are whole. ``--target`` is for a
distilled draft, which shares its target's embedding and head. ``none`` writes the model as it is: a GGUF file or a
bundle's FP16 weights, or a draft with all of its parts.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from checkpoint_source import CheckpointSource
from decode_pair import SHAPES, open_drafter, shape_of
from safetensors.torch import save_file
from widen import WidenedSource, widened_config

from edgeprec.architecture import LINEARS, ModelConfig
from edgeprec.errors import ConfigError
from edgeprec.export import disk
from edgeprec.export.checkpoint import Checkpoint, open_checkpoint
from edgeprec.export.compressed_tensors_config import config_files
from edgeprec.export.huggingface import HF_ROLE_NAMES
from edgeprec.export.tensor_roles import LINEAR_PARTS, layer_shapes
from edgeprec.runtime.torch_device import choose_device
from edgeprec.runtime.torch_weights import WeightSource
from edgeprec.tensor_names import num_linear_weights

__all__ = ["is_written_from", "write_widened"]

_ABOUT = "widen.json"
_INDEX = "model.safetensors.index.json"
Tensors = dict[str, torch.Tensor]


def main() -> None:
    """Open, widen, write."""
    arguments = _arguments()
    device = choose_device(arguments.device)
    if arguments.target is None:
        small = open_checkpoint(str(arguments.source))
    else:
        small = open_drafter(arguments.source, open_checkpoint(str(arguments.target)))
    shape = shape_of(small.config, SHAPES[arguments.shape].target)
    write_widened(small, shape, arguments.output, device=device, report=_print_line)


def write_widened(
    small: Checkpoint, shape: ModelConfig | None, output: Path, *, device: torch.device, report: Callable[[str], object]
) -> Path:
    """Write ``small`` at the widths and depth of ``shape``, None = its own, into the new folder ``output``; return it.

    Raises:
        ConfigError: the model does not fit into the shape, the output exists, or its unfinished work is another's.
        EdgePrecError: the disk is full.
    """
    if os.path.lexists(output):
        raise ConfigError(f"{output} already exists: choose another folder with -o, or delete it")
    source: WeightSource = CheckpointSource(small, device)
    config = small.config
    if shape is not None:
        config = widened_config(small.config, shape)
        source = WidenedSource(source, small.config, config, device)
    elif config.has_qk_norm or config.has_qkv_bias:
        raise ConfigError(f"{small.name} has biases or head norms, which are not written here: take a Llama")
    part = output.with_name(f".{output.name}.part")
    try:
        _begin(part, small, config)
        files = _write_shards(part, source, config, report)
        _write_index(part, files)
        for name, data in config_files(config, small.tokenizer, quantizer=None).items():
            disk.write_file(part / name, data, scratch=part / f".{name}")
        part.rename(output)
        disk.sync_folder(output.parent)
    except OSError as error:
        raise disk.disk_error(error, output.parent, needed_bytes=_total_bytes(config)) from error
    return output


def is_written_from(folder: Path, small: Checkpoint) -> bool:
    """Whether the folder is what ``write_widened`` makes of this model at its own shape; reads the model's files."""
    mark = folder / _ABOUT
    return mark.exists() and mark.read_bytes() == _about(small, small.config)


def _about(small: Checkpoint, config: ModelConfig) -> bytes:
    digests = {name: digest.sha256 for name, digest in small.digest_sources().items()}
    return json.dumps({"sources": digests, "config": config.to_json()}, sort_keys=True, indent=1).encode()


def _begin(part: Path, small: Checkpoint, config: ModelConfig) -> None:
    """Make the folder of the work, or make sure that what lies there is the beginning of this one."""
    about, mark = _about(small, config), part / _ABOUT
    if mark.exists():
        if mark.read_bytes() != about:
            raise ConfigError(f"{part} holds unfinished work on another model or shape: delete it and begin anew")
        return
    part.mkdir(parents=True, exist_ok=True)
    disk.require_space(part, needed_bytes=_total_bytes(config))
    disk.write_file(mark, about, scratch=part / f".{_ABOUT}")


def _write_shards(
    part: Path, source: WeightSource, config: ModelConfig, report: Callable[[str], object]
) -> dict[str, list[str]]:
    """Write what is missing and return the names of the tensors in each file."""
    files: dict[str, list[str]] = {}
    jobs = list(_shards(source, config))
    for number, (names, make) in enumerate(jobs, start=1):
        file = f"model-{number:05d}-of-{len(jobs):05d}.safetensors"
        files[file] = names
        if (part / file).exists():
            report(f"{number} of {len(jobs)}: {file} was there")
            continue
        started, scratch = time.monotonic(), part / f".{file}"
        tensors = make()
        save_file(tensors, scratch, metadata={"format": "pt"})
        scratch.chmod(0o644)
        with scratch.open("rb") as written:
            os.fsync(written.fileno())
        scratch.rename(part / file)
        report(f"{number} of {len(jobs)}: {file}, {time.monotonic() - started:.1f} s")
    return files


def _shards(source: WeightSource, config: ModelConfig) -> Iterator[tuple[list[str], Callable[[], Tensors]]]:
    """Yield the names of each file's tensors and what makes them."""
    embedding, head, norm = (HF_ROLE_NAMES[role] for role in ("embedding", "head", "final_norm"))
    yield [embedding], lambda: {embedding: _held(embedding, source.matrix("embed"))}
    roles = layer_shapes(config)
    for layer in range(config.num_layers):
        names = [HF_ROLE_NAMES[role].format(layer=layer) for role in roles]
        yield names, lambda layer=layer: _layer(source, config, layer)  # type: ignore[misc]
    if config.tied_embeddings:
        yield [norm], lambda: {norm: _held(norm, source.vector("final_norm"))}
    else:
        yield (
            [norm, head],
            lambda: {norm: _held(norm, source.vector("final_norm")), head: _held(head, source.matrix("head"))},
        )


def _layer(source: WeightSource, config: ModelConfig, layer: int) -> Tensors:
    tensors: Tensors = {}
    shapes = layer_shapes(config)
    for linear in LINEARS:
        rows = source.matrix(f"layers.{layer}.{linear}")
        parts = LINEAR_PARTS[linear]
        for role, values in zip(parts, rows.split([shapes[role][0] for role in parts]), strict=True):
            name = HF_ROLE_NAMES[role].format(layer=layer)
            tensors[name] = _held(name, values)
    for role in ("input_norm", "post_attention_norm"):
        name = HF_ROLE_NAMES[role].format(layer=layer)
        tensors[name] = _held(name, source.vector(f"layers.{layer}.{role}"))
    return tensors


def _held(name: str, values: torch.Tensor) -> torch.Tensor:
    """Return a tensor of its own in FP16, on the host.

    Raises:
        ConfigError: a value is not finite in FP16.
    """
    half = values.half()
    if not bool(torch.isfinite(half).all()):  # asked where the tensor was made: a GPU answers at once
        raise ConfigError(f"{name} of the widened model has values beyond FP16: take another source")
    return half.cpu().clone(memory_format=torch.contiguous_format)


def _write_index(part: Path, files: dict[str, list[str]]) -> None:
    total = sum((part / file).stat().st_size for file in files)
    places = {name: file for file, names in files.items() for name in names}
    content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    disk.write_file(part / _INDEX, (json.dumps(content, indent=1) + "\n").encode(), scratch=part / f".{_INDEX}")


def _total_bytes(config: ModelConfig) -> int:
    return 2 * (num_linear_weights(config) + config.vocab_size * config.hidden_size)


def _print_line(text: str) -> None:
    print(text, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--target", type=Path, metavar="SOURCE", help="the target of a distilled draft")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="where to compute, the GPU where there is one")
    return parser.parse_args()
