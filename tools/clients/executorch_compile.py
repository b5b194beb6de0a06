"""ExecuTorch on our libraries: small models are compiled ahead of time, run by its own runtime, and compared."""

from __future__ import annotations

import sys
from typing import Any

import torch
from executorch.backends.qualcomm.quantizer.quantizer import QnnQuantizer, QuantDtype
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils.utils import (
    generate_htp_compiler_spec,
    generate_qnn_executorch_compiler_spec,
    to_edge_transform_and_lower_to_qnn,
)
from executorch.runtime import Runtime
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

MODELS = {
    "convolution": (
        torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU()),
        torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(1)),
    ),
    "attention": (
        torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16), torch.nn.Softmax(-1)),
        torch.randn(1, 8, 16, generator=torch.Generator().manual_seed(2)),
    ),
}
FORMS = {"half precision": None, "8 bits": QuantDtype.use_8a8w, "16 bits": QuantDtype.use_16a8w}


def distance(model: Any, example: Any, form: Any) -> float:
    """Compile and run a model; how far its results are from eager ones, as a part of their range."""
    lowered = model
    if form is not None:
        quantizer = QnnQuantizer()
        quantizer.set_default_quant_config(form)
        prepared = prepare_pt2e(torch.export.export(model, (example,)).module(), quantizer)
        prepared(example)
        lowered = convert_pt2e(prepared)
    spec = generate_qnn_executorch_compiler_spec(
        soc_model=QcomChipset.SM8650, backend_options=generate_htp_compiler_spec(use_fp16=form is None)
    )
    program = to_edge_transform_and_lower_to_qnn(lowered, (example,), spec).to_executorch()
    plan = program.executorch_program.execution_plan[0]
    assert plan.delegates, "nothing was given to the NPU"
    method = Runtime.get().load_program(program.buffer).load_method("forward")
    wanted = model(example)
    off = (method.execute([example])[0] - wanted).abs().max().item()
    return off / max(1e-6, (wanted.max() - wanted.min()).item())


def main() -> int:
    """Every model in every form."""
    failed = 0
    for name, (model, example) in MODELS.items():
        for word, form in FORMS.items():
            off = distance(model.eval(), example, form)
            if off > 0.04:
                failed += 1
                print(f"{name}, {word}: {off:.1%} of the range from eager", file=sys.stderr)
    count = len(MODELS) * len(FORMS)
    print(f"{count - failed} of {count} models compiled and run by executorch")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
