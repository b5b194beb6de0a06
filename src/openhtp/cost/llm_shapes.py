"""Sizes of language models, and what follows from them: bytes of weights and cache, and scores."""

from __future__ import annotations

from dataclasses import dataclass

# Bits of weights in the layers.
WEIGHT_BITS = {"w4a16": 4, "w8a16": 8, "w4fp16": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmShape:
    """Sizes of a decoder."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int

    @property
    def layer_weights(self) -> int:
        """Numbers in the matrices of all layers."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.ffn)

    @property
    def output_weights(self) -> int:
        """Numbers in the output matrix."""
        return self.hidden * self.vocab

    def kv_bytes(self, context: int) -> int:
        """Bytes of an 8-bit cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim * context

    def weight_bytes(self, precision: str) -> float:
        """What decoding one token reads of the weights: the layers, and the output matrix at 8 bits."""
        return self.layer_weights * WEIGHT_BITS[precision] / 8 + self.output_weights

    def scores(self, context: int) -> int:
        """Attention scores of one token: each head looks at every place of the cache."""
        return self.layers * self.heads * context


def _shape(layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, ffn: int, vocab: int) -> LlmShape:
    return LlmShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=vocab,
    )


_LLAMA_8B = _shape(32, 4096, 32, 8, 128, 14336, 128256)
PRESETS: dict[str, LlmShape] = {
    "llama-3.2-1b": _shape(16, 2048, 32, 8, 64, 8192, 128256),
    "llama-3.2-3b": _shape(28, 3072, 24, 8, 128, 8192, 128256),
    "llama-3.1-8b": _LLAMA_8B,
    "llama-3-8b": _LLAMA_8B,
    "llama-3-8b-elyza": _LLAMA_8B,
    "llama-3-8b-taide": _LLAMA_8B,
    "llama-2-7b": _shape(32, 4096, 32, 32, 128, 11008, 32000),
    "mistral-7b-v0.3": _shape(32, 4096, 32, 8, 128, 14336, 32768),
    "qwen2-7b": _shape(28, 3584, 28, 4, 128, 18944, 152064),
    "falcon3-7b": _shape(28, 3072, 12, 4, 256, 23040, 131072),
    "baichuan2-7b": _shape(32, 4096, 32, 32, 128, 11008, 125696),
    "indus-1b": _shape(16, 2048, 32, 8, 64, 8192, 128256),
}
