"""Kill a small export at every system call that changes the disk, resume it, and print what came of it as JSON.

Run as ``python kill_driver.py FOLDER SHARE``; SHARE 1 tries every kill, SHARE n every n-th. Each export runs in a
forked child; a child that is to die sends itself SIGKILL before its n-th call, or in the middle of it where the call
writes bytes. The product knows nothing of this.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edgeprec.architecture import ModelConfig
from edgeprec.bundle import Bundle
from edgeprec.bundle_model import Fp16Variant, Int4Variant, LayerError, ModelEntry
from edgeprec.bundle_schema import BundleManifest
from edgeprec.errors import BundleError
from edgeprec.export.writer import BundleTransaction
from edgeprec.tensor_names import fp16_layer_tensors, int4_linear_tensors, linear_name

CALLS = (
    "pwrite",
    "ftruncate",
    "posix_fallocate",
    "fsync",
    "fdatasync",
    "replace",
    "rename",
    "mkdir",
    "unlink",
    "rmdir",
)
SYNCS = ("fsync", "fdatasync")
DOUBLE_KILLS = 30
CONFIG = ModelConfig(
    family="llama",
    vocab_size=5,
    hidden_size=4,
    intermediate_size=8,
    num_layers=2,
    num_heads=1,
    num_kv_heads=1,
    head_dim=4,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    max_positions=16,
    tied_embeddings=True,
)
ENTRY = ModelEntry(
    architecture=CONFIG,
    fp16=Fp16Variant(file="target/fp16.safetensors"),
    int4=Int4Variant(
        file="target/int4.safetensors", bits_per_weight=4.5, group_size=32, symmetric=True, quantizer="rtn"
    ),
    graphs={"fp32": "target/model.fp32.onnx"},
)


Export = Callable[[Path], object]


def export(output: Path) -> None:
    """Export a model layer by layer; each layer's values follow from what the layer before left in scratch."""
    with BundleTransaction(output, resume=True, fingerprint="kill") as transaction:
        if transaction.is_complete:
            return
        fp16 = transaction.tensor_file(ENTRY.fp16.file, ENTRY.fp16_specs)
        int4 = transaction.tensor_file(ENTRY.int4.file, ENTRY.int4_specs)
        if not transaction.is_done("outer"):
            with transaction.step("outer"):
                fp16.write("embed", fill((5, 4), np.float16, 1))
                fp16.write("final_norm", fill((4,), np.float32, 2))
                for spec in int4_linear_tensors(CONFIG, "head", group_size=32, symmetric=True):
                    int4.write(spec.name, fill(spec.shape, spec.dtype.numpy, 3))
                transaction.write_scratch("hidden-0", b"7")
        for layer in range(CONFIG.num_layers):
            write_layer(transaction, layer)
        transaction.write_bytes(ENTRY.graphs["fp32"], b"graph")
        transaction.write_bytes("tokenizer.json", b"{}")
        with transaction.step("generation"):
            transaction.write_bytes("generation.json", b"{}")
        errors = [LayerError(**transaction.stored(f"layer/{layer}")) for layer in range(CONFIG.num_layers)]
        entry = ModelEntry(
            architecture=CONFIG, fp16=ENTRY.fp16, int4=ENTRY.int4, graphs=ENTRY.graphs, errors=tuple(errors)
        )
        transaction.finish(BundleManifest(name="kill", export_fingerprint="", target=entry, draft="self"))


def write_layer(transaction: BundleTransaction, layer: int) -> None:
    """Write one layer's tensors unless that step is done."""
    if transaction.is_done(f"layer/{layer}"):
        return
    fp16 = transaction.tensor_file(ENTRY.fp16.file, ENTRY.fp16_specs)
    int4 = transaction.tensor_file(ENTRY.int4.file, ENTRY.int4_specs)
    seed = int(transaction.read_scratch(f"hidden-{layer}"))
    with transaction.step(f"layer/{layer}") as step:
        for spec in fp16_layer_tensors(CONFIG, layer):
            fp16.write(spec.name, fill(spec.shape, spec.dtype.numpy, seed))
        for linear in ("qkv", "o", "gate_up", "down"):
            name = linear_name(layer, linear)
            for spec in int4_linear_tensors(CONFIG, name, group_size=32, symmetric=True):
                int4.write(spec.name, fill(spec.shape, spec.dtype.numpy, seed))
        transaction.write_scratch(f"hidden-{layer + 1}", str(seed * 3 + 1).encode())
        step.store({"layer": layer, "linear": "qkv", "relative_error": seed / 3})


def fill(shape: tuple[int, ...], dtype: Any, seed: int) -> np.ndarray[Any, Any]:
    """Return values that depend on the seed."""
    return ((np.arange(np.prod(shape)) * seed + seed) % 97).astype(dtype).reshape(shape)


def die_at(number: int, *, torn: bool) -> list[str]:
    """Make the process kill itself at its ``number``-th call of CALLS; return where the calls will be noted."""
    made: list[str] = []

    def wrap(name: str) -> None:
        original = getattr(os, name)

        def counted(*arguments: Any, **keywords: Any) -> Any:
            made.append(name)
            if len(made) == number:
                if torn and name == "pwrite":
                    original(arguments[0], arguments[1][: len(arguments[1]) // 2], arguments[2])
                os.kill(os.getpid(), signal.SIGKILL)
            # A killed process keeps what it wrote, synced or not; syncing would only make hundreds of exports slow.
            return None if name in SYNCS else original(*arguments, **keywords)

        setattr(os, name, counted)

    for name in CALLS:
        wrap(name)
    return made


def run_child(export: Export, output: Path, *, number: int = 0, torn: bool = False) -> tuple[int, list[str]]:
    """Export in a child; return its wait status and, if it lived, the calls it made."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            made = die_at(number, torn=torn)
            export(output)
            os.write(write_end, " ".join(made).encode())
            status = 0
        finally:
            if status:
                traceback.print_exc()
            os._exit(status)
    os.close(write_end)
    _, status = os.waitpid(child, 0)
    made = os.read(read_end, 1 << 16).decode().split()
    os.close(read_end)
    return status, made


def digest(output: Path) -> str:
    """Return one digest of a bundle's names and bytes, or why there is none."""
    if not output.exists():
        return "absent"
    try:
        Bundle.open(output)
    except BundleError as error:
        return f"half-written: {error}"
    total = hashlib.sha256()
    for path in sorted(output.rglob("*")):
        if path.is_file():
            total.update(path.relative_to(output).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def attempt(export: Export, output: Path, kills: list[tuple[int, bool]]) -> dict[str, Any]:
    """Kill an export at each of ``kills`` in turn, then let it end; return what was seen."""
    seen = []
    for number, torn in kills:
        status, _ = run_child(export, output, number=number, torn=torn)
        seen.append({"status": status, "digest": digest(output)})
    status, _ = run_child(export, output)
    result = {
        "kills": kills,
        "seen": seen,
        "status": status,
        "digest": digest(output),
        "left": sorted(path.name for path in output.parent.iterdir()),
    }
    shutil.rmtree(output.parent)
    output.parent.mkdir()
    return result


def experiment(export: Export, folder: Path, choose: Callable[[list[str]], list[list[tuple[int, bool]]]]) -> None:
    """Print the digest of an uninterrupted export, the calls it made, and every attempt ``choose`` wants."""
    reference = folder / "reference" / "x.edgeprec"
    output = folder / "work" / "x.edgeprec"
    for path in (reference, output):
        path.parent.mkdir()
    status, calls = run_child(export, reference)
    results = [attempt(export, output, kills) for kills in choose(calls)]
    values = {"status": status, "calls": calls, "reference": digest(reference), "results": results}
    sys.stdout.write(json.dumps(values))


def everywhere(calls: list[str]) -> list[list[tuple[int, bool]]]:
    """Return a kill before each call, one in the middle of each write, and some pairs of kills."""
    every = [[(number, False)] for number in range(1, len(calls) + 1)]
    every += [[(number, True)] for number, name in enumerate(calls, 1) if name == "pwrite"]
    draw = random.Random(5)
    return every + [[(draw.randint(1, len(calls)), draw.random() < 0.5) for _ in range(2)] for _ in range(DOUBLE_KILLS)]


if __name__ == "__main__":
    experiment(export, Path(sys.argv[1]), lambda calls: everywhere(calls)[:: int(sys.argv[2])])
