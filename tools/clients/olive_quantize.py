"""Olive on our libraries: it quantizes a network and makes a context binary, which ONNX Runtime then runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openhtp import backend_path
from openhtp.capi.check import provider_session
from openhtp.engine.onnxruntime import onnxruntime as ort

_DATA = """
import torch
from olive.data.registry import Registry

class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return {"x": torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(index))}, 0

@Registry.register_dataset()
def pictures(**options):
    return Pictures()
"""


class Network(torch.nn.Module):
    """Two convolutions and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 16, 3, stride=2)
        self.last = torch.nn.Linear(784, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Probabilities."""
        return torch.softmax(self.last(torch.relu(self.second(torch.relu(self.first(x)))).flatten(1)), 1)


def olive(folder: Path, name: str, passes: dict[str, Any]) -> Path:
    """Run passes on the network; returns the model that came of it."""
    system = {
        "type": "PythonEnvironment",
        "python_environment_path": str(Path(sys.executable).parent),
        "accelerators": [{"device": "npu", "execution_providers": ["QNNExecutionProvider"]}],
    }
    data = {
        "name": "calibration",
        "user_script": "data.py",
        "load_dataset_config": {"type": "pictures"},
        "pre_process_data_config": {"type": "skip_pre_process"},
        "post_process_data_config": {"type": "skip_post_process"},
        "dataloader_config": {"batch_size": 1},
    }
    config = {
        "input_model": {"type": "ONNXModel", "model_path": "m.onnx"},
        "systems": {"npu": system},
        "data_configs": [data],
        "passes": passes,
        "host": {"type": "LocalSystem"},
        "target": "npu",
        "output_dir": name,
        "cache_dir": "cache",
        "no_artifacts": True,
        "evaluate_input_model": False,
    }
    (folder / f"{name}.json").write_text(json.dumps(config))
    # It asks for the library by its bare name.
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(Path(backend_path()).parent),
        "OLIVE_DISABLE_TELEMETRY": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = [sys.executable, "-m", "olive", "run", "--config", f"{name}.json"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    made = sorted((folder / name).glob("*.onnx"))
    assert made, f"olive made no model: {(done.stdout + done.stderr).strip()[-500:]}"
    return made[0]


def main() -> int:
    """Quantize, make a context binary, run it, and compare with the quantized model on the CPU."""
    quantize = {
        "type": "OnnxStaticQuantization",
        "data_config": "calibration",
        "activation_type": "uint16",
        "precision": "uint8",
        "quant_preprocess": True,
    }
    options = {"htp_performance_mode": "burst", "soc_model": "60"}
    binary = {"type": "EPContextBinaryGenerator", "provider_options": options, "disable_cpu_fallback": True}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.manual_seed(0)
        torch.onnx.export(
            Network().eval(),
            (torch.randn(1, 3, 16, 16),),
            str(folder / "m.onnx"),
            input_names=["x"],
            output_names=["y"],
            opset_version=21,
            dynamo=True,
            external_data=False,
        )
        (folder / "data.py").write_text(_DATA)
        reference = olive(folder, "reference", {"quantize": quantize})
        compiled = olive(folder, "compiled", {"quantize": quantize, "binary": binary})
        feeds = {"x": np.random.default_rng(0).normal(size=(1, 3, 16, 16)).astype(np.float32)}
        (got,) = provider_session(str(compiled), backend_path(), {"soc_model": "60"}).run(None, feeds)
        (wanted,) = ort.InferenceSession(str(reference), providers=["CPUExecutionProvider"]).run(None, feeds)
    off = float(np.abs(got - wanted).max())
    print(f"quantized, compiled and run, {off:.6f} from the CPU")
    return 0 if off < 2e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
