"""Types of the arguments that option tables stand for. Made by ``make docs``: edit the tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from openhtp.core.enumerations import Priority
from openhtp.core.value_kinds import GroupRegistration


class DeviceArguments(TypedDict, total=False):
    """Options of a device."""

    soc: str | int
    defaults: str | None
    name: str | None
    platform: str
    driver_path: str | None
    driver_version: str | None
    policy: str
    threads: int
    parallel_graphs: bool
    vtcm_windowing: bool
    process_domains: int | None
    pd_session: str
    device_id: int
    domain_mb: int | None
    host: str | None
    npu: str
    transport: str | None


class ContextArguments(TypedDict, total=False):
    """Options of a context."""

    queue_depth: int
    priority: Priority | str | int | None
    enable_graphs: Iterable[str] | None
    compatibility: str
    is_persistent_binary: bool
    defer_graph_init: bool
    memory_limit_hint: int
    graph_retention_order: Iterable[str] | None
    weight_sharing_enabled: bool
    lora_weight_sharing_enabled: bool
    use_extended_udma: bool
    prepare_only: bool
    register_multi_contexts: GroupRegistration | None
    register_concurrent_resource_sharing: GroupRegistration | None
    share_resources: bool
    share_resources_optimization_type: str
    file_read_memory_budget_in_mb: int
    io_memory_estimation: bool
    init_acceleration: bool
    dsp_memory_profiling_enabled: bool
    skip_validation_on_binary_section: bool
    spill_fill_buffer: int
    weights_buffer: int


class GraphArguments(TypedDict, total=False):
    """Options of a graph."""

    priority: Priority | str | int | None
    vtcm_mb: int | str | None
    vtcm_bytes: int | str | None
    hvx_threads: int | None
    precision: str
    optimization_level: int
    strict_kv: bool
    core: int
    num_cores: int
    fold_relu_activation_into_conv_off: bool
    short_depth_conv_on_hmx_off: bool
    advanced_activation_fusion: bool
    weights_packing: bool
    dlbc: bool
    dlbc_weights: bool
    slc_alloc_enable: bool


class ProfileArguments(TypedDict, total=False):
    """Options of a profile."""

    max_events: int | None
    optrace: bool
