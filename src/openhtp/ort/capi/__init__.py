"""The modules of ``onnxruntime.capi`` by their names: sessions, values and bindings are ours, others theirs."""
