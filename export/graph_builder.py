"""A thin layer over onnx.helper: unique names, nested graphs for If, weights that lie in another file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["RUNTIME_DOMAIN", "ExternalTensor", "GraphBuilder"]

OPSET = 24
RUNTIME_DOMAIN = "com.microsoft"  # of ONNX Runtime's own operators


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalTensor:
    """Where a weight lies: a file beside the graph, its first byte and its length."""

    location: str
    offset_bytes: int
    length_bytes: int
    shape: tuple[int, ...]
    data_type: int  # onnx.TensorProto data type; may differ from the file's own, as INT4 lies in uint8 pairs


@dataclass(slots=True)
class GraphBuilder:
    """Collects nodes and weights. A branch takes its names and small constants from its parent.

    A branch owns the weights it reads: ONNX Runtime fuses DequantizeLinear with MatMul only where both and the weight
    are in one graph.
    """

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)
    parent: GraphBuilder | None = None
    _serial: int = 0

    @property
    def root(self) -> GraphBuilder:
        """Return the outermost graph."""
        return self if self.parent is None else self.parent.root

    def fresh(self, stem: str) -> str:
        """Return a name no other value has."""
        if self.parent is not None:
            return self.parent.fresh(stem)
        self._serial += 1
        return f"{stem}_{self._serial}"

    def add(self, operator: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """Append a node with one output and return the output's name."""
        output = name or self.fresh(operator)
        self.add_named(operator, inputs, [output], **attributes)
        return output

    def add_named(self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> None:
        """Append a node whose outputs have names already."""
        self.nodes.append(helper.make_node(operator, list(inputs), list(outputs), name=f"n_{outputs[0]}", **attributes))

    def add_many(self, operator: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Append a node with several outputs and return their names."""
        names = [self.fresh(operator) for _ in range(outputs)]
        self.add_named(operator, inputs, names, **attributes)
        return names

    def add_if(
        self,
        condition: str,
        then: Callable[[GraphBuilder], Sequence[str]],
        otherwise: Callable[[GraphBuilder], Sequence[str]],
        *,
        data_type: int,
        shapes: Sequence[Sequence[int | str]],
    ) -> list[str]:
        """Append an If whose branches are built by two functions; each returns its outputs, of the given shapes."""
        branches = [self._branch(build, data_type, shapes) for build in (then, otherwise)]
        names = [self.fresh("If") for _ in shapes]
        self.nodes.append(
            helper.make_node(
                "If", [condition], names, name=f"n_{names[0]}", then_branch=branches[0], else_branch=branches[1]
            )
        )
        return names

    def _branch(
        self, build: Callable[[GraphBuilder], Sequence[str]], data_type: int, shapes: Sequence[Sequence[int | str]]
    ) -> onnx.GraphProto:
        inner = GraphBuilder(parent=self)
        outputs = [
            helper.make_tensor_value_info(name, data_type, list(shape))
            for name, shape in zip(build(inner), shapes, strict=True)
        ]
        return helper.make_graph(inner.nodes, self.fresh("branch"), [], outputs, list(inner.initializers.values()))

    def constant(self, stem: str, value: npt.NDArray[Any]) -> str:
        """Keep a small array inside the graph; equal arrays are kept once."""
        if self.parent is not None:
            return self.parent.constant(stem, value)
        digits = "_".join(str(x) for x in value.ravel()) if value.size <= 4 else None
        name = f"{stem}_{value.dtype}_{value.ndim}d_{digits}" if digits is not None else stem
        self.initializers.setdefault(name, numpy_helper.from_array(value, name))
        return name

    def integers(self, *values: int) -> str:
        """Return a one-dimensional int64 constant."""
        return self.constant("ints", np.asarray(values, np.int64))

    def external(self, name: str, tensor: ExternalTensor) -> str:
        """Refer to a weight in another file and return the name it has in this graph."""
        if self.parent is not None:
            name = self.fresh(name)
        proto = TensorProto(name=name, data_type=tensor.data_type, dims=list(tensor.shape))
        proto.data_location = TensorProto.EXTERNAL
        for key, value in (
            ("location", tensor.location),
            ("offset", str(tensor.offset_bytes)),
            ("length", str(tensor.length_bytes)),
        ):
            proto.external_data.add(key=key, value=value)
        self.initializers.setdefault(name, proto)
        return name

    def model(
        self, name: str, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        """Close the graph."""
        graph = helper.make_graph(self.nodes, name, list(inputs), list(outputs), list(self.initializers.values()))
        imports = [helper.make_opsetid("", OPSET)]
        if any(node.domain == RUNTIME_DOMAIN for node in self.nodes):
            imports.append(helper.make_opsetid(RUNTIME_DOMAIN, 1))
        model = helper.make_model(graph, opset_imports=imports, producer_name="edgeprec")
        model.ir_version = 11
        return model
