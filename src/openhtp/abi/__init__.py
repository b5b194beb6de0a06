"""The C interface as data: structures, numbers, function tables, and Python values to C and back.

Both sides use it: ``openhtp.vendor`` calls a library through it, and a library of our
own is called through it. Knows layouts and ``core`` values only; must not know which library, process or device is
on the other side, and checks nothing but what would be misread.

``structs`` (layouts) and ``numbers`` (options and tags) are written in our own words from documented facts;
``tables`` are the functions of a provider in order; ``writing`` makes structures, ``reading`` takes them apart.
Start at ``structs.py``.
"""
