"""Networks as code: the ones that benchmarks, examples and tests run, with seeded random weights.

Knows ONNX and onnxruntime's quantizer. Must not know graphs, programs or devices: what leaves here is a model
file like any other. Start at ``_net.py``, then ``networks.py``.
"""

from openhtp.zoo.feeds import quantized, random_feeds
from openhtp.zoo.networks import mobilenet_v2, resnet18, resnet50, small_cnn, tiny_mlp, transformer_blocks

__all__ = [
    "MODELS",
    "mobilenet_v2",
    "quantized",
    "random_feeds",
    "resnet18",
    "resnet50",
    "small_cnn",
    "tiny_mlp",
    "transformer_blocks",
]

# By name, for command lines.
MODELS = {
    "mobilenet_v2": mobilenet_v2,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "small_cnn": small_cnn,
    "tiny_mlp": tiny_mlp,
    "transformer_blocks": transformer_blocks,
}
