"""The way of one execution: arguments checked, memory bound, a place in the queue, the future, its notification.

Knows frames and graphs' ports. Must not know how a link reaches its device, nor what else a graph, signal
or profile is: to a call they are a ``Callee``, an ``Interrupt`` and a ``Sheet``. Start at ``call.py``, which holds
what one execution holds, then ``execution.py``, which is what the caller gets.
"""
