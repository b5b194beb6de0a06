"""The options of contexts: which go together, and where each can be given."""

from __future__ import annotations

import pytest

import openhtp as htp
from openhtp.core.errors import InvalidArgument, UnsupportedFeature
from openhtp.core.value_kinds import GroupRegistration
from openhtp.options import CONTEXT, ContextOrigin

SWITCHING = {"is_persistent_binary": True, "memory_limit_hint": 1}


@pytest.mark.parametrize(
    ("given", "origin", "said"),
    [
        ({"enable_graphs": ["a"]}, ContextOrigin.COMPOSED, "enable_graphs is for create_context_from_binary and"),
        ({"weight_sharing_enabled": True}, ContextOrigin.BINARY, "is for create_context only"),
        ({"prepare_only": True}, ContextOrigin.LIST, "it was given to create_contexts_from_binaries"),
        ({"share_resources": True}, ContextOrigin.BINARY, "is for create_contexts_from_binaries only"),
        (
            {"register_multi_contexts": GroupRegistration(max_spill_fill_buffer=1)},
            ContextOrigin.COMPOSED,
            "is for create_context_from_binary only; it was given to create_context",
        ),
        (
            {"register_multi_contexts": GroupRegistration(max_spill_fill_buffer=1)},
            ContextOrigin.LIST,
            "is for create_context_from_binary only",
        ),
        (
            {"register_concurrent_resource_sharing": GroupRegistration(max_spill_fill_buffer=1)},
            ContextOrigin.LIST,
            "is for create_context_from_binary only",
        ),
        ({"memory_limit_hint": 1}, ContextOrigin.BINARY, "memory_limit_hint needs is_persistent_binary as well"),
        ({**SWITCHING, "share_resources": True}, ContextOrigin.LIST, "exclude each other"),
        ({"graph_retention_order": ["a"], "share_resources": True}, ContextOrigin.LIST, "exclude each other"),
        ({"weights_buffer": -1}, ContextOrigin.BINARY, "weights_buffer needs memory_limit_hint"),
        (
            {**SWITCHING, "weights_buffer": -1, "graph_retention_order": ["a"]},
            ContextOrigin.BINARY,
            "exclude each other",
        ),
        ({**SWITCHING, "defer_graph_init": True}, ContextOrigin.BINARY, "exclude each other"),
        ({"defer_graph_init": True}, ContextOrigin.LIST, "is for create_context_from_binary only"),
        ({"use_extended_udma": True}, ContextOrigin.BINARY, "is for create_context only"),
        ({"register_multi_contexts": 5}, ContextOrigin.BINARY, "expected a GroupRegistration"),
        ({"register_multi_contexts": GroupRegistration()}, ContextOrigin.BINARY, "max_spill_fill_buffer, above 0"),
        ({"is_persistent_binary": True, "persistent_binary": False}, ContextOrigin.BINARY, "is given twice"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, object], origin: ContextOrigin, said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        CONTEXT.read(given, arch=81, platform="any", origin=origin)
    assert said in caught.value.message
    assert caught.value.name == "QNN_CONTEXT_ERROR_INVALID_CONFIG"


@pytest.mark.parametrize(
    ("given", "origin", "arch", "platform", "said"),
    [
        ({"weight_sharing_enabled": True}, ContextOrigin.COMPOSED, 69, "linux", "needs a Hexagon v73 or newer"),
        (
            {"weight_sharing_enabled": True},
            ContextOrigin.COMPOSED,
            75,
            "windows",
            "prepared offline, on linux; this",
        ),
        (
            {"lora_weight_sharing": True},
            ContextOrigin.COMPOSED,
            75,
            "windows",
            "is windows: prepare them there, and load",
        ),
        ({"extended_udma": True}, ContextOrigin.COMPOSED, 79, "linux", "needs a Hexagon v81"),
        ({"weight_sharing_enabled": True}, ContextOrigin.COMPOSED, 75, "android", "prepared offline, on linux"),
        (
            {"register_concurrent_resource_sharing": GroupRegistration(max_spill_fill_buffer=1)},
            ContextOrigin.BINARY,
            79,
            "android",
            "needs a Hexagon v81",
        ),
        (
            {"register_concurrent_resource_sharing": GroupRegistration(max_spill_fill_buffer=1)},
            ContextOrigin.BINARY,
            81,
            "windows",
            "exists on android only; this device's platform is windows",
        ),
        ({"dsp_memory_profiling_enabled": True}, ContextOrigin.BINARY, 75, "windows", "exists on android and qnx"),
    ],
)
def test_what_a_device_does_not_have_is_refused(
    given: dict[str, object], origin: ContextOrigin, arch: int, platform: str, said: str
) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        CONTEXT.read(given, arch=arch, platform=platform, origin=origin)
    assert said in caught.value.message


def test_an_option_that_is_off_is_in_nobodys_way() -> None:
    off = {"share_resources": False, "weight_sharing_enabled": False, "prepare_only": False}
    chosen = CONTEXT.read({**off, **SWITCHING}, arch=68, platform="windows", origin=ContextOrigin.BINARY)
    assert chosen.memory_limit_hint == 1


def test_options_are_known_by_every_name_that_they_have() -> None:
    chosen = CONTEXT.read({"persistent_binary": True, "async_execution_queue_depth": 20})
    assert (chosen.is_persistent_binary, chosen.queue_depth) == (True, 20)


def test_a_device_passes_on_what_it_is(shared_device: htp.Device) -> None:
    with pytest.raises(InvalidArgument, match="enable_graphs is for"):
        shared_device.create_context(enable_graphs=["a"])
