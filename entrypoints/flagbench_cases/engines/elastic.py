"""Starts this node's ranks with torch's elastic launcher and a static rendezvous, in a separate process.

The parent process does not import torch, so it survives a crash, an out-of-memory kill or a hang here.
"""

import gc
import json
import logging
import os
import sys
import tempfile
import traceback
from typing import Any, Dict

from flagbench_cases.engines import preflight
from flagbench_cases.node import guard
from flagbench_cases.shared import interpreter, processes, spool
from flagbench_cases.shared.errors import CaseError, system_error


def launch(folder: str, plan: Dict[str, Any]) -> Dict[str, Any]:
    """Run the ranks until they end, and report how each failed one ended. Raises CaseError if preflight fails."""
    preflight.check(plan)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = plan["config"]
    host = plan["host"]
    launch_config = LaunchConfig(
        min_nodes=config["nodes"],
        max_nodes=config["nodes"],
        nproc_per_node=config["gpus"],
        run_id=plan["rendezvous_id"],
        rdzv_backend="static",
        rdzv_endpoint="%s:%d" % ("[%s]" % host if ":" in host else host, plan["port"]),
        rdzv_configs={"rank": plan["node_rank"], "timeout": plan["join_timeout"]},
        max_restarts=0,
        monitor_interval=0.1,
        start_method="spawn",
    )
    try:
        elastic_launch(launch_config, sys.executable)(*guard.COMMAND, folder)
    except ChildFailedError as error:
        failures = [
            {
                "rank": rank,
                "local_rank": f.local_rank,
                "pid": f.pid,
                "exit_code": f.exitcode,
                "time": f.timestamp,
            }
            for rank, f in error.failures.items()
        ]
        return {"ok": False, "failures": failures}
    except SignalException as error:
        return {"ok": False, "failures": [], "signal": int(error.sigval)}
    return {"ok": True, "failures": []}


def main(folder: str) -> int:
    """Launch the ranks described by plan.json in the spool, and write the report there."""
    processes.die_with_parent()
    logging.disable(logging.WARNING)  # torch's, on every signal that the parent passes on and reports
    gc.set_threshold(interpreter.STARTING)
    tempfile.tempdir = folder  # the launcher does not remove its temporary folders; the spool is removed
    with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    try:
        report = launch(folder, plan)
    except CaseError as error:
        report = {"ok": False, "failures": [], "code": int(error.code)}
        report.update(phase="preflight", message=error.message, remedy=error.remedy)
    except (RuntimeError, OSError, ValueError, ImportError) as error:
        traceback.print_exc()
        report = {"ok": False, "failures": [], "code": None, "phase": "launch"}
        report.update(message="the ranks could not be started: %s" % str(error).strip().split("\n")[0])
        known = system_error(error, os.path.dirname(folder))
        if known is not None:
            report.update(message=known.message, remedy=known.remedy, code=int(known.code))
    spool.write_json(os.path.join(folder, "agent.json"), report)
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
