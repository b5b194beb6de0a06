"""A sparse value: coordinates and what stands there. The emulated device holds sparse tensors dense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.checks import shown
from openhtp.core.errors import InvalidArgument
from openhtp.core.tensor import TensorSpec


@dataclass(frozen=True, slots=True)
class Sparse:
    """``values[i]`` stands at ``indices[i]`` (one coordinate per dimension); everything else is zero."""

    indices: npt.ArrayLike
    values: npt.ArrayLike

    def densify(self, spec: TensorSpec) -> npt.NDArray[Any]:
        """The whole tensor. Raises if there are more elements than ``spec`` allows, or one lies outside."""
        if not isinstance(spec, TensorSpec):
            raise InvalidArgument(
                f"spec is {shown(spec)}; expected a TensorSpec", st.QNN_GRAPH_ERROR_INVALID_TENSOR
            )
        try:
            indices, values = np.asarray(self.indices), np.asarray(self.values, spec.dtype.numpy)
        except (TypeError, ValueError, OverflowError, MemoryError, RecursionError) as error:
            raise InvalidArgument(
                f"sparse value for {spec} cannot be read: {error}", st.QNN_GRAPH_ERROR_TENSOR_SPARSITY
            ) from error
        if spec.sparse_elements is None:
            raise InvalidArgument(
                f"tensor {spec.name!r} was not created sparse; pass an array", st.QNN_GRAPH_ERROR_INVALID_TENSOR
            )
        if values.ndim != 1 or indices.dtype.kind not in "iu" or indices.shape != (len(values), spec.rank):
            raise InvalidArgument(
                f"sparse value for {spec} has indices {indices.dtype}{list(indices.shape)} and values"
                f" {list(values.shape)}; expected whole numbers [n, {spec.rank}] and [n]",
                st.QNN_GRAPH_ERROR_TENSOR_SPARSITY,
            )
        if len(values) > spec.sparse_elements:
            raise InvalidArgument(
                f"sparse value for {spec} specifies {len(values)} elements; at most {spec.sparse_elements} fit",
                st.QNN_GRAPH_ERROR_TENSOR_SPARSITY,
            )
        if np.any(indices < 0) or np.any(indices >= np.array(spec.shape)):
            raise InvalidArgument(
                f"sparse value for {spec} has an index outside of its shape", st.QNN_GRAPH_ERROR_TENSOR_SPARSITY
            )
        dense = np.full(spec.shape, _zero(spec), spec.dtype.numpy)
        dense[tuple(indices.T)] = values
        return dense


def check_elements(spec: TensorSpec, dense: npt.NDArray[Any], batch: int) -> None:
    """Refuse a whole tensor in which more is specified than ``spec`` allows: all that is not zero."""
    assert spec.sparse_elements is not None
    specified, most = int(np.count_nonzero(dense != _zero(spec))), spec.sparse_elements * batch
    if specified > most:
        raise InvalidArgument(
            f"tensor {spec} has {specified} elements that are not zero; at most {most} fit",
            st.QNN_GRAPH_ERROR_TENSOR_SPARSITY,
        )


def _zero(spec: TensorSpec) -> int:
    """What stands for zero in the stored type."""
    return int(getattr(spec.quant, "zero_point", 0)) if spec.dtype.is_fixed_point else 0
