"""The code that images and the host share: the host checks with it what an image computed with the same code.

It runs on Python 3.8 with the standard library; only boto3 is imported when a bucket is opened. It imports neither
flagbench (the host) nor flagbench_cases (the images).

  evidence/       the evidence in a record, and every number that follows from it
  health/         the health of devices before and after a run, and what it means
  stats/          the interval of a rate within one run, medians, Student's t
  s3/             objects in a bucket: create-only puts, large files, kinds of servers
  config.py       the configuration of a run: presets, settings, precision, layout, length, stop rule, digest
  data_folders.py which data and weights a run reads
  flops.py        FLOPs of a model's matrix products, one function per formula
  exit_codes.py   the exit codes of flagbench's processes
  checks.py       the checks of a run that both sides make
  store_layout.py the address of a store, and the keys of its records, bundles and series
  redaction.py    credentials in text
  environment.py  variables that change a measurement, or hold a secret
"""

__version__ = "0.2.0.dev0"
DIVISION = "faithful"
"""What every case runs: the published work, as the publisher's code does it. Configurations and records have it."""
