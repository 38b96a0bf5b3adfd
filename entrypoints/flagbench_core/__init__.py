"""What both sides compute with, once: the host imports it to check what an image computed with the same code.

Python 3.8 and the standard library; boto3 alone is imported where a bucket is opened. It imports neither package.

  evidence/       what a record follows from, and every number that follows from it
  stats/          the interval of a rate within one run, medians, Student's t
  s3/             objects in a bucket, put if absent
  config.py       the configuration of a run: presets, settings, precision, layout, length, stop rule, digest
  data_folders.py which data and weights a run reads
  flops.py        FLOPs of a model's matrix products, a function a formula
  exit_codes.py   what a process of flagbench ends with
  checks.py       the checks of a run that both sides make
  layout.py       where a store is, and where it keeps records, bundles and uploads
  redaction.py    credentials in text
  environment.py  variables that change a measurement, or hold a secret
"""

__version__ = "0.2.0.dev0"
DIVISION = "faithful"
"""What every case runs: the published work, as the publisher's code does it. Configurations and records have it."""
