"""The simulator: the shipped ``Scheduler`` on a stub model and a virtual clock.

Role: answers *what would have happened with other settings* for a recording or a synthetic workload. Runs in a process of
its own (``sgnb simulate``), or in the process of a test. ``script`` says what comes and what is drawn, ``cost`` how long a
step takes, ``play`` runs it, ``report`` compares. No model, no socket, no decision of its own.
"""
