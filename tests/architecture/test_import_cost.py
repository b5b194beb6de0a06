"""``import openhtp`` loads what every program needs and no more: a device is another process's affair."""

import json
import subprocess
import sys

# What is heavy, or only of use to who computes, plans or awaits.
NOT_NEEDED = (
    "asyncio",
    "jsonschema",
    "multiprocessing",
    "onnx",
    "onnxruntime",
    "numpy",
    "openhtp.core.errors",
    "openhtp.device.core",
    "openhtp.engine.ort",
    "openhtp.frontend",
    "openhtp.planning",
    "openhtp.runtime",
    "openhtp.session",
    "openhtp.sweeping",
    "openhtp.vendor",
    "rich",
    "typer",
    "yaml",
)


def test_importing_the_package_brings_in_nothing_that_can_wait() -> None:
    source = "import json, sys, openhtp; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", source], text=True))
    assert "openhtp.core.version" in loaded
    assert [name for name in NOT_NEEDED if name in loaded] == []
