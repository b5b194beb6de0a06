"""Defaults of options, as the vendor's page has them."""

from __future__ import annotations

import pytest

from openhtp.options import CONTEXT, GRAPH, Table

OFF = False
CONTEXTS = {
    "weight_sharing_enabled": OFF,
    "register_multi_contexts": None,
    "file_read_memory_budget_in_mb": 0,
    "io_memory_estimation": OFF,
    "dsp_memory_profiling_enabled": OFF,
    "share_resources": OFF,
    "share_resources_optimization_type": "sequential_with_va_optimization",
    "init_acceleration": OFF,
    "skip_validation_on_binary_section": OFF,
    "register_concurrent_resource_sharing": None,
    "lora_weight_sharing_enabled": OFF,
    "prepare_only": OFF,
}
GRAPHS = {
    "fold_relu_activation_into_conv_off": OFF,
    "short_depth_conv_on_hmx_off": OFF,
    "weights_packing": OFF,
    "dlbc": OFF,
    "dlbc_weights": OFF,
    "slc_alloc_enable": OFF,
    "optimization_level": 2,
    "num_cores": 1,
}


@pytest.mark.parametrize(("table", "expected"), [(CONTEXT, CONTEXTS), (GRAPH, GRAPHS)], ids=["context", "graph"])
def test_what_holds_unless_it_is_asked_for(table: Table, expected: dict[str, object]) -> None:
    values = table.read({})
    assert {name: values[name] for name in expected} == expected
