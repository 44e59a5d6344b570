"""Write one model of a bundle: both variants layer by layer, then the graphs that refer to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from edgeprec.architecture import LINEARS, ModelConfig
from edgeprec.bundle_model import Fp16Variant, Int4Variant, LayerError, ModelEntry
from edgeprec.export.activations import ActivationStream
from edgeprec.export.checkpoint import Checkpoint
from edgeprec.export.graph_builder import ExternalTensor
from edgeprec.export.graph_check import check_fused
from edgeprec.export.model_tensors import even_width, layer_tensors, outer_tensors
from edgeprec.export.onnx_graph import COMPUTE_TYPES, GraphWeights, build_graph
from edgeprec.export.progress import Progress, ProgressEvent
from edgeprec.export.quantizer import InputStatistics, QuantizerSettings, quantize
from edgeprec.export.tensor_file import TensorFileWriter
from edgeprec.export.writer import BundleTransaction, Step
from edgeprec.kernels.layout import Int4Weight
from edgeprec.tensor_names import fp16_tensors, int4_tensors, num_linear_weights
from edgeprec.tensor_spec import TensorSpec, TensorType

__all__ = ["ModelExport"]

_FLOAT_TYPES = {TensorType.F16: onnx.TensorProto.FLOAT16, TensorType.F32: onnx.TensorProto.FLOAT}


@dataclass(slots=True)
class ModelExport:
    """Exports ``checkpoint`` as ``role`` (``"target"`` or ``"draft"``) inside a transaction.

    ``windows`` are the ids of the calibration texts; the quantizer ``rtn`` does not read them. With ``lender`` the
    model keeps no embedding and no head of its own and uses those of that export, which comes first.
    """

    transaction: BundleTransaction
    checkpoint: Checkpoint
    role: str
    settings: QuantizerSettings
    windows: Sequence[Sequence[int]]
    progress: Progress
    lender: ModelExport | None = None
    _stream: ActivationStream | None = None

    def run(self) -> ModelEntry:
        """Do every step that is not done yet and return the model's entry for ``bundle.json``.

        Raises:
            ConfigError: a weight is not finite or beyond FP16.
            EdgePrecError: the graph does not run as meant.
        """
        self._write_outer()
        errors = list(self._write_layers())
        if self.lender is None:
            errors.append(self._write_head())
        self._report("quantize", self._num_parts, self._num_parts, "")
        self._write_graphs()
        return self._entry(errors)

    @property
    def fp16_specs(self) -> tuple[TensorSpec, ...]:
        """Return what the FP16 file will hold."""
        if self.lender is None:
            return fp16_tensors(self.checkpoint.config)
        return fp16_tensors(self.checkpoint.config, has_embedding=False, has_head=False)

    @property
    def int4_specs(self) -> tuple[TensorSpec, ...]:
        """Return what the INT4 file will hold."""
        return self._int4_specs(has_head=self.lender is None)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of both tensor files' values."""
        return sum(spec.num_bytes for spec in (*self.fp16_specs, *self.int4_specs))

    def _int4_specs(self, *, has_head: bool) -> tuple[TensorSpec, ...]:
        settings = self.settings
        return int4_tensors(
            self.checkpoint.config,
            group_size=settings.group_size,
            symmetric=settings.is_symmetric,
            has_head=has_head,
        )

    @property
    def _num_parts(self) -> int:
        """Layers, and the head where the model has one of its own."""
        return self.checkpoint.config.num_layers + (self.lender is None)

    def _write_outer(self) -> None:
        name = f"{self.role}/outer"
        if self.transaction.is_done(name):
            return
        with self.transaction.step(name):
            for tensor, values in self._outer_tensors():
                self._fp16_file().write(tensor, values)

    def _outer_tensors(self) -> Iterable[tuple[str, npt.NDArray[Any]]]:
        if self.lender is None:
            return outer_tensors(self.checkpoint)
        return [("final_norm", self.checkpoint.final_norm())]

    def _write_layers(self) -> Iterator[LayerError]:
        """Quantize layer after layer. After a resume the text runs through the finished layers again."""
        config = self.checkpoint.config
        self._stream = self._open_stream()
        todo = [i for i in range(config.num_layers) if not self.transaction.is_done(self._layer_step(i))]
        is_last = self.lender is not None or self.transaction.is_done(f"{self.role}/head")
        last = max(todo, default=-1) + 1 if is_last else config.num_layers
        for layer in range(config.num_layers):
            self._report("quantize", layer, self._num_parts, f"{self.role} layer {layer}")
            if layer < last:
                self._do_layer(layer)
            yield from _stored_errors(self.transaction.stored(self._layer_step(layer)))

    def _do_layer(self, layer: int) -> None:
        is_done = self.transaction.is_done(self._layer_step(layer))
        if is_done and self._stream is None:
            return
        tensors = layer_tensors(self.checkpoint, layer)
        statistics = self._stream.advance(layer, tensors) if self._stream is not None else {}
        if is_done:
            return
        with self.transaction.step(self._layer_step(layer)) as step:
            for tensor, values in tensors.items():
                self._fp16_file().write(tensor, values)
            for linear in LINEARS:
                name = f"layers.{layer}.{linear}"
                self._quantize(step, name, tensors[name], statistics.get(linear))

    def _write_head(self) -> LayerError:
        self._report("quantize", self._num_parts - 1, self._num_parts, f"{self.role} head")
        name = f"{self.role}/head"
        if not self.transaction.is_done(name):
            weight = self.checkpoint.head()
            if weight is None:
                weight = np.ascontiguousarray(self.checkpoint.embedding().T)
            statistics = None
            if self._stream is not None:
                statistics = self._stream.head_statistics(self.checkpoint.final_norm())
            with self.transaction.step(name) as step:
                self._quantize(step, "head", even_width(weight), statistics)
        return next(_stored_errors(self.transaction.stored(name)))

    def _quantize(self, step: Step, name: str, weight: npt.NDArray[Any], statistics: InputStatistics | None) -> None:
        quantized = quantize(weight, self.settings, statistics)
        self._write_int4(name, quantized.weight)
        layer, _, linear = name.removeprefix("layers.").rpartition(".")
        error = LayerError(
            layer=int(layer) if layer else None,
            linear=linear,
            relative_error=quantized.report.weight_error,
            output_error=quantized.report.calibrated_error,
        )
        step.store({name: asdict(error)})

    def _write_int4(self, name: str, weight: Int4Weight) -> None:
        file = self.transaction.tensor_file(f"{self.role}/int4.safetensors", self.int4_specs)
        file.write(f"{name}.packed", weight.packed)
        file.write(f"{name}.scales", weight.scales)
        if weight.zeros is not None:
            file.write(f"{name}.zeros", weight.zeros)

    def _write_graphs(self) -> None:
        name, config = f"{self.role}/graphs", self.checkpoint.config
        if self.transaction.is_done(name):
            return
        self._report("graph", 0, 1, self.role)
        weights = self._graph_weights()
        with self.transaction.step(name):
            for compute in COMPUTE_TYPES:
                graph = build_graph(config, weights, compute=compute, has_fp16_head=self.lender is None)
                data = graph.SerializeToString(deterministic=True)
                self.transaction.write_bytes(self._graph_name(compute), data)
            self._report("check", 0, 1, f"{self.role} graph")
            self._check(weights)
        self._report("check", 1, 1, "")

    def _check(self, weights: GraphWeights) -> None:
        """Run a graph of one layer and the head: all layers are alike, and this takes little memory."""
        config = replace(self.checkpoint.config, num_layers=1)
        with self._scratch_graph(config, weights, has_fp16_head=False) as path:
            check_fused(path, config)

    @contextmanager
    def calibration_graph(self) -> Iterator[Path]:
        """Provide a graph that takes half the memory of the bundle's own and gives the same bits, a little slower."""
        has_fp16_head = self.lender is None
        with self._scratch_graph(self.checkpoint.config, self._graph_weights(), has_fp16_head=has_fp16_head) as path:
            yield path

    @contextmanager
    def _scratch_graph(self, config: ModelConfig, weights: GraphWeights, *, has_fp16_head: bool) -> Iterator[Path]:
        graph = build_graph(config, weights, compute="fp32", is_hoisting=True, has_fp16_head=has_fp16_head)
        path = self.transaction.path(self._graph_name("scratch"))
        path.write_bytes(graph.SerializeToString())
        try:
            yield path
        finally:
            path.unlink()

    def _graph_weights(self) -> GraphWeights:
        fp16, int4 = self._external_tensors("" if self.lender is None else f"{self.role}/")
        if self.lender is not None:
            lent_fp16, lent_int4 = self.lender._external_tensors(f"{self.lender.role}/")
            fp16 |= {name: lent_fp16[name] for name in ("embed", "head") if name in lent_fp16}
            int4 |= {name: tensor for name, tensor in lent_int4.items() if name.startswith("head.")}
        return GraphWeights(fp16=fp16, int4=int4, group_size=self.settings.group_size)

    def _external_tensors(self, folder: str) -> tuple[dict[str, ExternalTensor], dict[str, ExternalTensor]]:
        """Return both files' tensors for a graph that finds the files in ``folder``."""
        int4 = self.transaction.tensor_file(f"{self.role}/int4.safetensors", self.int4_specs)
        packed_type = onnx.TensorProto.INT4 if self.settings.is_symmetric else onnx.TensorProto.UINT4
        return (
            _external(self._fp16_file(), f"{folder}fp16.safetensors", packed_type),
            _external(int4, f"{folder}int4.safetensors", packed_type),
        )

    def _entry(self, errors: Sequence[LayerError]) -> ModelEntry:
        config = self.checkpoint.config
        int4_bits = 8 * sum(spec.num_bytes for spec in self._int4_specs(has_head=True))
        return ModelEntry(
            architecture=config,
            fp16=Fp16Variant(file=f"{self.role}/fp16.safetensors"),
            int4=Int4Variant(
                file=f"{self.role}/int4.safetensors",
                bits_per_weight=int4_bits / num_linear_weights(config),
                group_size=self.settings.group_size,
                symmetric=self.settings.is_symmetric,
                quantizer=self.settings.method,
            ),
            graphs={compute: self._graph_name(compute) for compute in COMPUTE_TYPES},
            errors=tuple(errors),
            shares_embedding=self.lender is not None,
            shares_head=self.lender is not None,
        )

    def _open_stream(self) -> ActivationStream | None:
        if self.settings.method == "rtn":
            return None
        embedding = self.checkpoint.embedding()
        return ActivationStream(
            self.checkpoint.config, embedding, self.windows, with_hessian=self.settings.method == "gptq"
        )

    def _fp16_file(self) -> TensorFileWriter:
        return self.transaction.tensor_file(f"{self.role}/fp16.safetensors", self.fp16_specs)

    def _layer_step(self, layer: int) -> str:
        return f"{self.role}/layer/{layer}"

    def _graph_name(self, compute: str) -> str:
        """Return a graph's place: beside its weights, or above both models' where it reads the lender's too.

        External data may not lie outside the folder of the graph.
        """
        return f"{self.role}/model.{compute}.onnx" if self.lender is None else f"{self.role}.model.{compute}.onnx"

    def _report(self, stage: str, done: int, total: int, detail: str) -> None:
        self.progress(ProgressEvent(stage, done, total, detail))


def _stored_errors(values: dict[str, Any]) -> Iterator[LayerError]:
    return (LayerError(**error) for error in values.values())


def _external(file: TensorFileWriter, location: str, packed_type: int) -> dict[str, ExternalTensor]:
    def refer(spec: TensorSpec) -> ExternalTensor:
        place = file.placement(spec.name)
        is_packed = spec.dtype is TensorType.U8
        return ExternalTensor(
            location=location,
            offset_bytes=place.offset_bytes,
            length_bytes=place.length_bytes,
            shape=(spec.shape[0], 2 * spec.shape[1]) if is_packed else spec.shape,
            data_type=packed_type if is_packed else _FLOAT_TYPES[spec.dtype],
        )

    return {spec.name: refer(spec) for spec in file.specs.values()}
