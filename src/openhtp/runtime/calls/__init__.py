"""One execution from start to end: arguments checked, memory bound, a place in the queue, future and notification.

Knows frames and graphs' ports. Must not know how a link reaches its device, nor anything more of a graph, signal
or profile: to a call they are a ``Callee``, an ``Interrupt`` and a ``Sheet``. Start at ``call.py``, the state of
one execution, then read ``execution.py``, the future that the caller gets.
"""
