"""What a network could be written as instead: from a portable program to one with the same results.

Nobody's graph is changed unasked. ``openhtp.advising`` prices a rewrite, and hands it out to whoever wants it.
"""
