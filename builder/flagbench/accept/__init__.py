"""`flagbench accept`: decides within minutes whether this machine is as it should be, and writes a certificate of it.

plan.py chooses the runs, run.py makes them, judge.py checks their records, and certificate.py writes the result.
"""
