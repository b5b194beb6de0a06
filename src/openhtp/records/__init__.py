"""What happened on a device, as plain frozen data, and what it means: when each job ran, waited or was paused.

The one account that a device's recording, a plan, a live run and every report share. Knows neither schedulers nor
pictures: ``sched/recorder.py`` makes records of what a scheduler does, ``report`` draws them. Start at
``trace.py``; ``phases.py`` reads them.
"""
