"""Qualcomm's own library as a device: bindings to ``libQnnHtp`` through its documented C interface.

Knows the calls and habits of the vendor's library (layouts and numbers are in ``openhtp.abi``); must not know
queues, schedulers or the client's objects (``openhtp.runtime`` puts those on top). Nothing here is required:
without the ``onnxruntime-qnn`` package, or a Snapdragon, ``library.find_library()`` answers None and everything
else of openhtp works.

Two rings. Inside one process: ``library`` (load and call), then one module per API object. Around it: ``worker``
runs all of that in a child process, because a closed library that crashes must not take its client along;
``oracle`` runs single operations there for comparison. Start at ``worker.py``, then ``graph.py``.
"""
