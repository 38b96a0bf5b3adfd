"""`flagbench fleet`: judges many nodes together, from the records of single-node runs in one store.

read.py chooses and reads the records, and node_run.py takes the facts from each. own_checks.py judges each node by
itself, differences.py and peers.py compare the nodes, and judge.py concludes. table.py and outputs.py show the
result.
"""
