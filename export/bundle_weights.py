"""The weights of a finished bundle's model: where a graph finds them, and a graph written with a copy of its own.

A graph of a segment gets the bytes it needs in one file beside it: readers of ONNX refuse weights behind links, and
a draft's embedding or head may lie in the target's files.
"""

from __future__ import annotations

from pathlib import Path

import onnx

from edgeprec.bundle import BundleModel
from edgeprec.export.graph_builder import ExternalTensor
from edgeprec.export.graph_linears import GraphWeights
from edgeprec.tensor_file import TensorFile
from edgeprec.tensor_sharing import find_tensor, shared_tensors
from edgeprec.tensor_spec import TensorSpec, TensorType

__all__ = ["locate_weights", "save_graph"]

_FLOAT_TYPES = {TensorType.F16: onnx.TensorProto.FLOAT16, TensorType.F32: onnx.TensorProto.FLOAT}


def locate_weights(model: BundleModel) -> GraphWeights:
    """Return where every tensor of ``model`` lies; locations are absolute paths, for ``save_graph``.

    Raises:
        BundleError: a file is damaged or holds other tensors.
    """
    entry = model.entry
    packed_type = onnx.TensorProto.INT4 if entry.int4.symmetric else onnx.TensorProto.UINT4
    homes: dict[Path, list[TensorSpec]] = {}
    for spec in (*entry.fp16_specs, *entry.int4_specs, *shared_tensors(model)):
        homes.setdefault(find_tensor(model, spec.name).path, []).append(spec)
    found: dict[str, ExternalTensor] = {}
    for path, specs in homes.items():
        with TensorFile.open(path) as file:
            found |= {spec.name: _refer(file, spec, path, packed_type) for spec in specs}
    int4 = {name: tensor for name, tensor in found.items() if name.endswith((".packed", ".scales", ".zeros"))}
    fp16 = {name: tensor for name, tensor in found.items() if name not in int4}
    return GraphWeights(fp16=fp16, int4=int4, group_size=entry.int4.group_size)


def save_graph(graph: onnx.ModelProto, path: Path) -> int:
    """Write a graph of ``locate_weights``' tensors and ``PATH.weights`` beside it; return the bytes of the weights."""
    weights = path.with_name(f"{path.name}.weights")
    with weights.open("wb") as out:
        for tensor in graph.graph.initializer:
            if tensor.data_location != onnx.TensorProto.EXTERNAL:
                continue
            place = {item.key: item.value for item in tensor.external_data}
            offset_bytes = out.tell()
            with open(place["location"], "rb") as source:
                source.seek(int(place["offset"]))
                out.write(source.read(int(place["length"])))
            del tensor.external_data[:]
            moved = {"location": weights.name, "offset": str(offset_bytes), "length": place["length"]}
            for key, value in moved.items():
                tensor.external_data.add(key=key, value=value)
        size_bytes = out.tell()
    path.write_bytes(graph.SerializeToString(deterministic=True))
    return size_bytes


def _refer(file: TensorFile, spec: TensorSpec, path: Path, packed_type: int) -> ExternalTensor:
    place, is_packed = file.placement(spec.name), spec.dtype is TensorType.U8
    return ExternalTensor(
        location=str(path.resolve()),
        offset_bytes=place.offset_bytes,
        length_bytes=place.length_bytes,
        shape=(spec.shape[0], 2 * spec.shape[1]) if is_packed else spec.shape,
        data_type=packed_type if is_packed else _FLOAT_TYPES[spec.dtype],
    )
