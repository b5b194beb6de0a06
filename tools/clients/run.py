"""Runs QNN clients from PyPI, unmodified, on our libraries, each in a virtual environment of its own.

``python tools/clients.py [--only NAME] [--folder DIR]``: makes the environments below DIR (out/clients), installs
the clients and openhtp there, compiles or runs a small model with each, and prints a line each. Needs a network.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import textwrap
import venv
from dataclasses import dataclass, field
from pathlib import Path

from openhtp.capi.paths import lib_dir

ROOT = Path(__file__).parents[1]

_EXECUTORCH = """
    import torch
    from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
    from executorch.backends.qualcomm.utils.utils import (
        generate_htp_compiler_spec, generate_qnn_executorch_compiler_spec, to_edge_transform_and_lower_to_qnn)
    from executorch.runtime import Runtime
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU()).eval()
    inputs = (torch.randn(1, 3, 16, 16),)
    spec = generate_qnn_executorch_compiler_spec(
        soc_model=QcomChipset.SM8650, backend_options=generate_htp_compiler_spec(use_fp16=True))
    program = to_edge_transform_and_lower_to_qnn(model, inputs, spec).to_executorch()
    method = Runtime.get().load_program(program.buffer).load_method("forward")
    off = (method.execute(list(inputs))[0] - model(*inputs)).abs().max().item()
    assert off < 0.02, off
    print(f"compiled and run, {off:.5f} from eager")
"""
_ORT = """
    from openhtp.capi.check import prove
    proof = prove()
    assert proof.widest <= 1, proof
    print(f"{proof.client}: {proof.elements - proof.differing} of {proof.elements} outputs equal")
"""
_LITERT = """
    import ctypes, os
    import ai_edge_litert
    folder = os.path.join(os.path.dirname(ai_edge_litert.__file__), "vendors", "qualcomm", "compiler")
    found = [name for name in os.listdir(folder) if name.endswith(".so")]
    for name in found:
        ctypes.CDLL(os.path.join(folder, name))
    assert found
    print(f"the plug-in {found[0]} loads with our libraries")
"""


@dataclass(frozen=True, kw_only=True)
class Client:
    """What is installed, and the program that is then run."""

    packages: tuple[str, ...]
    program: str
    environment: dict[str, str] = field(default_factory=dict)


CLIENTS = {
    "onnxruntime-qnn": Client(packages=("onnxruntime-qnn==2.7.0",), program=_ORT),
    "litert": Client(
        packages=("ai-edge-litert==2.3.0", "ai-edge-litert-sdk-qualcomm==2.3.0"),
        program=_LITERT,
        environment={"SKIP_SDK_DOWNLOAD": "1"},
    ),
    "executorch": Client(
        packages=("torch==2.13.0", "executorch==1.5.1"), program=_EXECUTORCH, environment={"QNN_SDK_ROOT": "none"}
    ),
}


def run(name: str, client: Client, folder: Path) -> bool:
    """Install and run one client; its last line is shown."""
    place = folder / name
    python = place / "bin" / "python"
    environment = {**os.environ, **client.environment}
    if not (place / ".installed").exists():
        venv.create(place, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *client.packages, "--editable", str(ROOT)]
        subprocess.run(install, check=True, env=environment)
        (place / ".installed").touch()
    environment["LD_LIBRARY_PATH"] = str(lib_dir())
    command = [str(python), "-c", textwrap.dedent(client.program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    words = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    print("pass" if done.returncode == 0 else "FAIL", name, words[-1] if words else "", flush=True)
    return done.returncode == 0


def main() -> int:
    """Run all clients, or one."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--only", choices=CLIENTS)
    words.add_argument("--folder", type=Path, default=ROOT / "out" / "clients")
    chosen = words.parse_args()
    wanted = [chosen.only] if chosen.only else list(CLIENTS)
    passed = [run(name, CLIENTS[name], chosen.folder) for name in wanted]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
