"""Bindings to Qualcomm's own library, ``libQnnHtp``, through its documented C interface.

Knows the calls and habits of the vendor's library (layouts and numbers are in ``openhtp.abi``); must not know
queues, schedulers, processes or the client's objects. Nothing here is required: without the ``onnxruntime-qnn``
package, or a Snapdragon, ``library.find_library()`` answers None and everything else of openhtp works.

Start at ``library.py`` (load and call), then ``graph.py``: there is one module for each API object. All of it runs
in the caller's process, and a closed library may crash the process: ``device/library_target.py`` uses it in a
device process.
"""
