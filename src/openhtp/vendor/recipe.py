"""A whole graph as plain data, to be built in another process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from openhtp.abi.writing import Array, Params
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorSpec
from openhtp.vendor.graph import GraphOptions


@dataclass(frozen=True, slots=True)
class GraphRecipe:
    """Nodes in order, each with its parameters' forms and types; tensors are created as the nodes name them.

    ``data`` holds the values of static tensors by name. ``validate`` has each node checked by the library's
    validator before it is added.
    """

    name: str
    nodes: tuple[tuple[OpCall, Params], ...]
    data: Mapping[str, Array] = field(default_factory=dict)
    options: GraphOptions = field(default_factory=GraphOptions)
    validate: bool = True

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every tensor that the nodes use, once, in order of first use; static data must be complete."""
        found: dict[str, TensorSpec] = {}
        for call, _ in self.nodes:
            for spec in (*call.inputs, *call.outputs):
                if spec is None:
                    continue
                if found.setdefault(spec.name, spec) != spec:
                    raise InvalidArgument(
                        f"{call.op} {call.name!r} uses tensor {spec}, elsewhere described as {found[spec.name]}",
                        st.QNN_GRAPH_ERROR_INVALID_OP_CONFIG,
                    )
        static = {name for name, spec in found.items() if spec.kind.is_static}
        for what, names in (("without data", static - set(self.data)), ("unknown", set(self.data) - static)):
            if names:
                raise InvalidArgument(
                    f"graph {self.name!r} has static tensors {sorted(names)} {what}",
                    st.QNN_TENSOR_ERROR_INVALID_TENSOR_PARAM,
                )
        return tuple(found.values())


def recipe_to_send(recipe: GraphRecipe) -> GraphRecipe:
    """The recipe with plain dictionaries only, as callers may use mappings that do not travel."""
    return dataclasses.replace(
        recipe,
        nodes=tuple(_plain_nodes(recipe.nodes)),
        data=dict(recipe.data),
    )


def _plain_nodes(nodes: Iterable[tuple[OpCall, Params]]) -> Iterable[tuple[OpCall, Params]]:
    for call, params in nodes:
        yield plain_call(call), dict(params)


def plain_call(call: OpCall) -> OpCall:
    """A node without its untyped parameters; the typed ones travel beside it."""
    return dataclasses.replace(call, params={})
