"""Prints a script that accepts each node of a Slurm cluster: `flagbench accept` natively, in a job for each node."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flagbench.accept.options import AcceptOptions
from flagbench.image_reference import case_and_stack
from flagbench.manifests.load import load_catalog_without_claims
from flagbench.manifests.lookup import catalog_get, resolve_image
from flagbench.options import words
from flagbench.price import price_of
from flagbench.runs.launchers.job_request import SLACK_MINUTES, EachNode, check_words, is_bucket
from flagbench.runs.launchers.slurm import Resources, render_script

_JOB_NAME = "flagbench-accept"


@dataclass(frozen=True)
class AcceptJobs:
    """A job for each node, whose options are checked when it is made. Raises FlagbenchError (USAGE)."""

    options: AcceptOptions
    each_node: EachNode
    store: str | None
    """Where the records are kept, a folder of the nodes or a bucket; None: the default of each node."""
    folder: str
    """The folder of the nodes that gets the certificates."""

    def __post_init__(self) -> None:
        self.options.check_minutes()
        if self.options.price is not None:
            price_of(self.options.price, "--price")
        if self.store is not None:
            is_bucket(self.store)  # raises for a wrong address
        check_words(self.command())
        _ = self.gpus  # raises for a wrong case

    @property
    def gpus(self) -> int | None:
        """The devices that a job asks Slurm for; None: those that a whole node has."""
        if self.options.case is None:
            return self.options.gpus
        catalog = load_catalog_without_claims()
        name, stack_name = case_and_stack(self.options.case)
        catalog_get(catalog.cases, name, kind="case")
        if not stack_name:
            return self.options.gpus
        _, stack = resolve_image(self.options.case, catalog)
        if stack.device_kind == "cpu":
            return None
        return self.options.gpus

    def command(self) -> list[str]:
        """The words of the command that prints the same script again."""
        command = ["flagbench", "job", "accept", "--for", "slurm", *self.arguments()]
        return [*command, f"--out={self.folder}", f"--each-node={self.each_node.source}"]

    def arguments(self) -> list[str]:
        """The arguments of `flagbench accept`, without its certificate."""
        arguments = words(self.options)
        if self.store is not None:
            arguments.append(f"--store={self.store}")
        return arguments

    def render(self) -> str:
        """The script."""
        limit_minutes = math.ceil(self.options.total_minutes) + SLACK_MINUTES
        resources = Resources(_JOB_NAME, 1, self.gpus, limit_minutes)
        return render_script(
            "accept.sh.j2",
            self.command(),
            resources,
            self.each_node,
            arguments=self.arguments(),
            folder=self.folder,
        )
