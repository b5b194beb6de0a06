"""Stands in for ExecuTorch's ``qnn_executor_runner``, a C++ program that no wheel carries, in its own tests.

It takes the flags that those tests give and calls the wheel's public runtime, so that all calls of QNN come from
the wheel itself. Importing torch takes seconds, so ``--serve SOCKET`` keeps a process that has done so, and every
run is forked from it; the QNN library is loaded afresh in each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

SOCKET = "CLIENTS_RUNNER_SOCKET"
_TYPES = {0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64"} | {
    11: "bool",
    15: "bfloat16",
    26: "uint16",
    27: "uint16",
    28: "uint32",
}
_AT_ONCE = 1 << 20


def serve(path: str) -> None:
    """Run what is asked for, one after the other, each in a child."""
    import torch  # noqa: F401
    from executorch.runtime import Runtime  # noqa: F401

    with contextlib.suppress(ImportError):  # with another library there is none; with ours, children start sooner
        import openhtp.capi.boot
        import openhtp.capi.execute
        import openhtp.engine.ort  # noqa: F401

    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    while True:
        client, _ = server.accept()
        data, descriptors, _, _ = socket.recv_fds(client, _AT_ONCE, 2)
        while not data.endswith(b"\n"):
            data += client.recv(_AT_ONCE)
        child = os.fork()
        if not child:
            server.close()
            os._exit(_in_child(json.loads(data), descriptors))
        for descriptor in descriptors:
            os.close(descriptor)
        _, status = os.waitpid(child, 0)
        client.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        client.close()


def _in_child(asked: list[Any], descriptors: list[int]) -> int:
    words, folder, environment = asked
    for place, descriptor in enumerate(descriptors, 1):
        os.dup2(descriptor, place)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    try:
        run(words)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def ask(path: str) -> int:
    """Have the server run this call, on our own output."""
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    asked = json.dumps([sys.argv[1:], str(Path.cwd()), dict(os.environ)])
    socket.send_fds(client, [asked.encode() + b"\n"], [1, 2])
    return int(client.makefile().read() or 134)  # a server that died took the run with it


def run(words: list[str]) -> None:
    """Run a program on each line of the input list; output j of line i goes to ``output_i_j.raw``."""
    from executorch.runtime import Runtime

    chosen = _parse(words)
    program = Runtime.get().load_program(
        chosen.model_path,
        enable_etdump=True,
        debug_buffer_size=chosen.debug_buffer_size if chosen.dump_intermediate_outputs else 0,
    )
    method = program.load_method(program._program.get_method_name(chosen.method_index))
    listed = Path(chosen.input_list_path)
    folder = Path(chosen.output_folder_path)
    folder.mkdir(parents=True, exist_ok=True)
    took, count = 0.0, 0
    for number, line in enumerate(listed.read_text().splitlines() if listed.exists() else [""]):
        inputs = _inputs(method.metadata, line, listed.absolute().parent, chosen.input_shape_path)
        for _ in range(chosen.warm_up):
            method.execute(inputs)
        begin = time.perf_counter()
        for _ in range(chosen.iteration):
            outputs = method.execute(inputs)
        took, count = took + time.perf_counter() - begin, count + chosen.iteration
        _write(outputs, folder, number)
    speed = Path(chosen.performance_output_path)
    if speed.parent.is_dir():
        speed.write_text(str(count / took if took else 0.0))
    program.write_etdump_result_to_file(chosen.etdump_path, chosen.debug_output_path)
    print(f"{count} inferences took {took * 1e3:.3f} ms (measured)")


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name, default in (
        ("model_path", "model.pte"),
        ("output_folder_path", "outputs"),
        ("input_list_path", "input_list.txt"),
        ("etdump_path", "etdump.etdp"),
        ("debug_output_path", "debug_output.bin"),
        ("input_shape_path", ""),
        ("output_shape_path", ""),
        ("performance_output_path", "inference_speed.txt"),
    ):
        parser.add_argument(f"--{name}", default=default)
    for name, number in (
        ("iteration", 1),
        ("warm_up", 0),
        ("method_index", 0),
        ("debug_buffer_size", 100_000_000),
    ):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--dump_intermediate_outputs", action="store_true")
    chosen, rest = parser.parse_known_args(words)
    if rest:
        print(f"the Python runtime has no way to set {' '.join(rest)}")
        sys.exit(1)
    return chosen


def _inputs(about: Any, line: str, folder: Path, shapes_file: str) -> list[Any]:
    import torch

    shapes = []
    if shapes_file:
        lines = Path(shapes_file).read_text().splitlines()
        shapes = [tuple(map(int, shape.replace(",", " ").split())) for shape in lines]
    found = []
    for place, word in enumerate(line.split()):
        data = bytearray((folder / word.split(":=")[-1]).read_bytes())
        tensor = about.input_tensor_meta(place)
        kind = getattr(torch, _TYPES[int(tensor.dtype())])
        flat = torch.frombuffer(data, dtype=kind) if data else torch.empty(0, dtype=kind)
        found.append(flat.reshape(shapes[place] if shapes else tuple(tensor.sizes())))
    return found


def _write(outputs: list[Any], folder: Path, number: int) -> None:
    import torch

    for place, output in enumerate(outputs):
        tensor = output if isinstance(output, torch.Tensor) else torch.tensor(output)
        tensor.detach().contiguous().numpy().tofile(folder / f"output_{number}_{place}.raw")


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve(sys.argv[sys.argv.index("--serve") + 1])
    elif os.environ.get(SOCKET):
        sys.exit(ask(os.environ[SOCKET]))
    else:
        run(sys.argv[1:])
