"""Telemetry: clocks, power, memory and throttle reasons beside a run, from a process of its own.

`python -m flagbench_cases.telemetry` samples at most once a second into a file of JSON lines;
`summary.summarise` turns that file into the record's `telemetry`. Nothing here imports torch, so a sampler
holds no device memory.
"""
