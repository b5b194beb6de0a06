"""Traces as text that people and tools read: Chrome trace, Gantt pictures, the timeline page.

Functions from trace records to marks in lanes (``lanes.py``) and from marks to text; knows no schedulers, devices
or files, so a saved trace can be drawn anywhere. Start at ``lanes.py``, then ``timeline.py``, whose page is
``templates/timeline.html``.
"""
