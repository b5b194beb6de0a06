"""``openhtp context-binary-utility``: the vendor's options, names and structure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import openhtp as htp
from openhtp.cli.main import app

WEIGHTS = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)


@pytest.fixture(scope="module")
def binary(shared_device: htp.Device, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with shared_device.create_context(weight_sharing_enabled=True) as context:
        for name in ("first", "second"):
            graph = context.create_graph(name, vtcm_mb=4, hvx_threads=2)
            x = graph.add_tensor("x", (1, 64), "ufixed8", quant=htp.ScaleOffset(0.5, -7), kind="app_write")
            f = graph.add_tensor("f", (1, 64), "float32")
            w = graph.add_tensor("w", WEIGHTS.shape, "float32", data=WEIGHTS)
            y = graph.add_tensor("y", (1, 64), "float32", kind="app_read")
            graph.add_node("Dequantize", inputs=[x], outputs=[f])
            graph.add_node("FullyConnected", inputs=[f, w], outputs=[y])
            graph.finalize()
        path = tmp_path_factory.mktemp("binary") / "model.bin"
        path.write_bytes(context.get_binary())
    return path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["context-binary-utility", *arguments])


def test_the_document(binary: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = run("--context_binary", str(binary), "--json_file", str(out))
    assert result.exit_code == 0, result.output
    assert "first" in result.output
    text = out.read_text()
    assert text.startswith('{\n    "header"'), "indented by four"
    document = json.loads(text)
    assert document["header"]["artifact_type"] == "CONTEXT_BINARY_INFO"
    assert document["version"] == "QNN_SYSTEM_CONTEXT_BINARY_INFO_VERSION_3"
    info = document["info"]
    assert info["backendId"] == 6
    assert info["contextBlobVersion"] == "7.0.0"
    assert info["contextBlobSize"] == binary.stat().st_size
    assert info["contextMetadata"]["info"]["dspArch"] == 75
    assert info["socModel"] == 57
    assert info["platformInfo"]["info"]["hwDevices"][0]["info"]["numCores"] == 1
    assert info["numGraphs"] == len(info["graphs"]) == 2
    graph = info["graphs"][1]
    assert graph["version"] == "QNN_SYSTEM_CONTEXT_GRAPH_INFO_VERSION_3"
    about = graph["info"]
    assert about["graphName"] == "second"
    assert about["graphBlobInfo"]["info"]["vtcmSize"] == 4 << 20, "in bytes"
    assert about["graphBlobInfo"]["info"]["numHvxThreads"] == 2
    assert about["graphBlobInfo"]["info"]["spillFillBufferSize"] == 0
    assert about["graphBlobInfoV2"]["ioTensorSize"] == 64 + 256
    sizes = about["graphBlobInfoV2"]
    assert sizes["sharedWeightsSize"] >= WEIGHTS.nbytes // 2 > sizes["constSize"] == 0, (
        "what is shared counts apart"
    )
    [tensor] = about["graphInputs"]
    assert tensor["version"] == "QNN_TENSOR_VERSION_2"
    assert tensor["info"] == {
        "id": tensor["info"]["id"],
        "name": "x",
        "type": "QNN_TENSOR_TYPE_APP_WRITE",
        "dataFormat": "QNN_TENSOR_DATA_FORMAT_FLAT_BUFFER",
        "dataType": "QNN_DATATYPE_UFIXED_POINT_8",
        "quantizeParams": {
            "definition": "QNN_DEFINITION_DEFINED",
            "quantizationEncoding": "QNN_QUANTIZATION_ENCODING_SCALE_OFFSET",
            "scaleOffset": {"scale": 0.5, "offset": -7},
        },
        "rank": 2,
        "dimensions": [1, 64],
        "isDynamicDimensions": [],
        "memType": "QNN_TENSORMEMTYPE_RAW",
    }
    assert tensor["info"]["id"] > 0
    assert about["graphOutputs"][0]["info"]["quantizeParams"] == {
        "definition": "QNN_DEFINITION_UNDEFINED",
        "quantizationEncoding": "QNN_QUANTIZATION_ENCODING_UNDEFINED",
    }


def test_json_on_standard_output(binary: Path) -> None:
    result = run("--context_binary", str(binary), "--json", "-")
    assert json.loads(result.output)["info"]["numGraphs"] == 2


def test_damage(binary: Path, tmp_path: Path) -> None:
    spoilt = bytearray(binary.read_bytes())
    spoilt[-2000] ^= 1
    path = tmp_path / "spoilt.bin"
    path.write_bytes(spoilt)
    assert run("--context_binary", str(path)).exit_code == 0, "metadata is sound"
    result = run("--context_binary", str(path), "--check")
    assert result.exit_code == 2
    assert "damaged" in result.output
    spoilt[100] ^= 1
    path.write_bytes(spoilt)
    out = tmp_path / "never.json"
    assert run("--context_binary", str(path), "--json_file", str(out)).exit_code == 2
    assert not out.exists()
    assert run("--context_binary", str(tmp_path / "none.bin")).exit_code == 2
    assert run("--context_binary", str(binary), "--json_file", str(tmp_path / "no/folder.json")).exit_code == 2
