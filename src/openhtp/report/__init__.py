"""Records as text that people and tools read: Chrome trace, Gantt pictures, the timeline page.

Functions from trace records to text; knows no schedulers, devices or files, so a saved trace can be drawn
anywhere. Start at ``timeline.py``, whose page is ``templates/timeline.html``.
"""
