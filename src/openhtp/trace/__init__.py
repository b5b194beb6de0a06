"""What was recorded, as plain frozen data: spans, instants, counters, flows.

Knows neither schedulers nor file formats; ``report`` turns records into text. Start at ``records.py``.
"""
