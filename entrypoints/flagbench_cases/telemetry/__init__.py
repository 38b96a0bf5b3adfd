"""Telemetry: samples clocks, power, memory and throttle reasons during a run, in a separate process.

`python -m flagbench_cases.telemetry` samples at most once a second into a file of JSON lines;
`summary.summarise` turns that file into the record's `telemetry`. Nothing here imports torch, so the sampler uses no
device memory.
"""
