"""The rendezvous of the nodes of a run, before any rank is started: every parent process connects to that of node 0.

Node 0 compares the nodes' settings, reports which are missing and, once all are connected, sends the port of torch's
own rendezvous. A node that has already failed reports that to the others, which would otherwise wait until a timeout.
"""

from flagbench_cases.node.peers import NodeReport, Peers
from flagbench_cases.node.placement import Placement
from flagbench_cases.node.rendezvous_client import RendezvousClient
from flagbench_cases.node.rendezvous_protocol import REPORT_FAILURE_SECONDS, Deadline, NodeInfo, log
from flagbench_cases.node.rendezvous_server import RendezvousServer
from flagbench_cases.record.evidence import Outcome
from flagbench_cases.shared.errors import CaseError
from flagbench_cases.shared.interruption import Interruption


def connect(placement: Placement, me: NodeInfo, seconds: float, interruption: Interruption) -> Peers:
    """Wait until all nodes are connected, at most `seconds`; returns the peers.

    Raises CaseError: usage (2) for nodes with different settings, timeout (6), interrupted (7), network (15), and the
    error of another node that failed meanwhile.
    """
    deadline = Deadline(seconds, interruption)
    return (
        RendezvousClient(placement, me, deadline).join()
        if placement.node_rank
        else RendezvousServer(placement, me, deadline).wait_for_all()
    )


def report_failure(placement: Placement, host: str, outcome: Outcome, interruption: Interruption) -> None:
    """Report a failure to nodes that have not connected yet, for a limited time: they may start later."""
    deadline = Deadline(REPORT_FAILURE_SECONDS, interruption)
    me = NodeInfo(host, "", None, {})
    report = NodeReport(placement.node_rank, host, outcome)
    log("%s; reporting this to the other nodes for at most %.0f s" % (outcome.reason, REPORT_FAILURE_SECONDS))
    try:
        if placement.node_rank:
            RendezvousClient(placement, me, deadline).report_failure(report)
        else:
            RendezvousServer(placement, me, deadline).reject_all(report)
    except CaseError:
        return
