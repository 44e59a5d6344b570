"""What every linear of a model sees on a text: second moments of its inputs, gathered layer by layer in FP16.

Only one layer is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeprec.architecture import LINEARS, LinearName, ModelConfig
from edgeprec.errors import MissingDependency
from edgeprec.export.layer_graph import build_layer_graph
from edgeprec.export.quantize_statistics import InputStatistics, SecondMoments

__all__ = ["ActivationStream"]

_BATCH_ROWS = 1024  # prompts are short, and every product of inputs with themselves costs a pass over K x K sums

Tensors = Mapping[str, npt.NDArray[Any]]


class ActivationStream:
    """Carries the hidden states of calibration texts through the model.

    ``embedding`` [V, D]; ``windows`` are ids of texts that do not see each other.
    """

    def __init__(
        self,
        config: ModelConfig,
        embedding: npt.NDArray[np.float16],
        windows: Sequence[Sequence[int]],
        *,
        with_hessian: bool,
    ) -> None:
        self._config = config
        self._with_hessian = with_hessian
        self._windows = [
            embedding[np.asarray(window, np.int64)].astype(np.float32)  # [T, D]
            for window in windows
        ]

    def advance(self, layer: int, tensors: Tensors) -> dict[LinearName, InputStatistics]:
        """Run one layer over the text and return the statistics of its linears' inputs.

        Raises:
            MissingDependency: onnxruntime is not installed.
        """
        run = _layer_runner(self._config, layer, tensors)
        moments = {
            name: SecondMoments(self._config.linear_shape(name)[0], with_hessian=self._with_hessian) for name in LINEARS
        }
        waiting: dict[LinearName, list[npt.NDArray[np.float32]]] = {name: [] for name in LINEARS}
        rows = 0
        for index, hidden in enumerate(self._windows):
            outputs = run(hidden)
            self._windows[index] = outputs["hidden_out"]
            rows += len(hidden)
            for name in LINEARS:
                waiting[name].append(outputs[f"{name}_input"])
            if rows >= _BATCH_ROWS or index + 1 == len(self._windows):
                for name, inputs in waiting.items():
                    moments[name].add(np.concatenate(inputs))
                    inputs.clear()
                rows = 0
        return {name: accumulated.finish() for name, accumulated in moments.items()}

    def head_statistics(self, final_norm: npt.NDArray[np.float32]) -> InputStatistics:
        """Return the statistics of the head's input; call it after the last layer."""
        moments = SecondMoments(self._config.hidden_size, with_hessian=self._with_hessian)
        for hidden in self._windows:
            mean_square = np.mean(np.square(hidden), axis=-1, keepdims=True)
            moments.add(hidden / np.sqrt(mean_square + np.float32(self._config.rms_norm_eps)) * final_norm)
        return moments.finish()


def _layer_runner(
    config: ModelConfig, layer: int, tensors: Tensors
) -> Callable[[npt.NDArray[np.float32]], dict[str, npt.NDArray[np.float32]]]:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependency(package="onnxruntime", purpose="calibration", extra="cpu") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.force_spinning_stop", "1")  # numpy's threads want the cores next
    graph = build_layer_graph(config, layer, tensors).SerializeToString()
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(hidden: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[np.float32]]:
        feeds = {"hidden": hidden[None], "positions": np.arange(len(hidden), dtype=np.int64)[None]}
        values = session.run(names, feeds)
        return {name: value[0] for name, value in zip(names, values, strict=True)}

    return run
