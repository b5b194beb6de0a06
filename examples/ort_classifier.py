"""An image classifier as people write it for ONNX Runtime. Only the import is OpenHTP's.

python examples/ort_classifier.py
"""

import numpy as np

import openhtp.ort as ort
from openhtp import zoo

model = zoo.quantized(zoo.small_cnn(32))

options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
options.intra_op_num_threads = 1
session = ort.InferenceSession(model, options, providers=ort.get_available_providers())

inputs, outputs = session.get_inputs()[0], session.get_outputs()[0]
# A picture: a bright square on a dark ground, normalised as the network was trained.
picture = np.zeros((32, 32, 3), np.uint8)
picture[8:24, 8:24] = (250, 120, 30)
pixels = ((picture.astype(np.float32) / 255 - 0.5) / 0.25).transpose(2, 0, 1)[np.newaxis]

binding = session.io_binding()
value = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(pixels), "cpu", 0)
binding.bind_ortvalue_input(inputs.name, value)
binding.bind_output(outputs.name, "cpu")
session.run_with_iobinding(binding)

scores = binding.copy_outputs_to_cpu()[0][0]
shares = np.exp(scores - scores.max())
shares /= shares.sum()
for label in np.argsort(-shares)[:3]:
    print(f"class {label}: {shares[label]:.1%}")
