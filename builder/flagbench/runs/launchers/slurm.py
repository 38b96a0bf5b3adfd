"""Prints the batch script of a run on a Slurm cluster, for `sbatch`, or a script that submits a job for each node.

`SlurmRequest` checks the options and writes the script from the templates in manifests/slurm. Nothing is submitted: a
script that is piped into `sbatch` can be read before, and gets the options of the site.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

from typer import Option

from flagbench.errors import FlagbenchError
from flagbench.image_reference import is_on_docker_hub, parse_reference
from flagbench.images.render.stack import interpreter
from flagbench.options import Text
from flagbench.runs.launchers.job_request import (
    SLACK_MINUTES,
    EachNode,
    JobRequest,
    Scheduler,
    check_bucket,
    is_bucket,
    job_template,
)
from flagbench.runs.request import check_run_id, config_options
from flagbench_core import __version__
from flagbench_core.config import Options
from flagbench_core.data_folders import SYNTHETIC

_LONGEST_RUN_ID = 117
"""Most characters of --run-id: with a hyphen and the id of a job, which has up to ten digits, a run's id has 128."""


@dataclass(frozen=True)
class SlurmOptions:
    """The options of `flagbench job` that only Slurm has, as the user typed them. None: it was not given."""

    GROUP: ClassVar[str] = "Slurm"

    weights: Annotated[Text, Option(metavar="DIR", help="A checkpoint folder of the nodes. Default: random.")] = None


@dataclass(frozen=True)
class SlurmRequest(JobRequest):
    """A batch script of Slurm. Whether the nodes have its folders is checked when it runs."""

    SCHEDULER: ClassVar[Scheduler] = Scheduler.SLURM

    options: SlurmOptions = field(default_factory=SlurmOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_run_id(self.job_name, "--name")
        if len(self.run.run_id or "") > _LONGEST_RUN_ID:
            raise FlagbenchError(
                f"--run-id has more than {_LONGEST_RUN_ID} characters",
                remedy="use a shorter one: the script adds the id of the job to it",
            )
        if self.job.store is None:
            return
        if self.image is None:
            is_bucket(self.job.store)  # raises for a wrong address
        else:
            check_bucket(
                self.job.store,
                "write --store s3://BUCKET/PREFIX, or leave it out: `flagbench results push` stores the folder that "
                "the job makes beside its log",
            )

    @property
    def job_name(self) -> str:
        """The name of the job; by default of case and stack."""
        return self.job.name or f"flagbench-{self.case.name}-{self.stack.name}"

    @property
    def image(self) -> str | None:
        """The name or the file of the image; None: the run is native."""
        if self.job.image is None and self.job.registry is None:
            return None
        return super().image

    @property
    def pulled_image(self) -> str | None:
        """The image, if the nodes pull it from a registry; None if it is a file of theirs, or the run is native."""
        if self.image is None or self.image.endswith((".sif", ".sqsh")):
            return None
        return self.image

    @property
    def pyxis_image(self) -> str | None:
        """The image for pyxis: the path of a .sqsh file, or HOST#NAME:TAG, where TAG may be a digest."""
        if self.pulled_image is None:
            return self.image
        reference = parse_reference(self.pulled_image)
        name = f"{reference.path}:{reference.digest or reference.tag}"
        if is_on_docker_hub(self.pulled_image):  # where pyxis looks for a name without a host
            return name
        return f"{reference.host}#{name}"

    @property
    def _has_data_folder(self) -> bool:
        """Whether --data names a folder of the nodes."""
        return self.run.data not in (None, SYNTHETIC)

    @property
    def mounts(self) -> list[str]:
        """The folders that a container reads, each as `SOURCE:TARGET:ro`."""
        mounts = []
        if self._has_data_folder:
            mounts.append(f"{self.run.data}:/data:ro")
        if self.options.weights is not None:
            mounts.append(f"{self.options.weights}:/weights:ro")
        return mounts

    def _config_options(self) -> Options:
        """The options that decide the configuration, by the folders that are named."""
        source = self.run.data
        if self._has_data_folder:
            source = "files"
        return config_options(
            self.run,
            source=source,
            weights=self.options.weights is not None,
            out=self.image is not None,
        )

    def program(self) -> list[str]:
        """The words that start the run on a node: the command of flagbench, or the entrypoint in the image."""
        if self.image is None:
            return ["flagbench", "run", f"{self.case.name}:{self.stack.selector}", "--via=native"]
        return [interpreter(self.stack), "-I", "-u", "-m", "flagbench_cases", self.case.name]

    def arguments(self) -> list[str]:
        """The arguments of the program, without --run-id and --master, which the script computes."""
        run = replace(self.run, run_id=None, max_minutes=self.max_minutes)
        weights = self.options.weights
        if self.image is None:
            arguments = run.command_line()
            arguments += [f"--env={variable}" for variable in self.env]
            if self.stack.device_kind == "cpu":
                arguments.append("--yes")  # nobody answers whether to run the reference preset on a processor
        else:
            if self._has_data_folder:
                run = replace(run, data="/data")
            if weights is not None:
                weights = "/weights"
            arguments = [*run.image_arguments(), "--out=/out"]
        if weights is not None:
            arguments.append(f"--weights={weights}")
        if self.job.store is not None:
            arguments.append(f"--store={self.job.store}")
        return arguments

    def render(self) -> str:
        """The batch script, or a script that submits it for each node."""
        gpus = None
        if self.stack.device_kind != "cpu":
            gpus = self.run.gpus
        return render_script(
            "run.sh.j2",
            self.command(),
            self.each_node,
            name=self.job_name,
            nodes=self.run.nodes,
            gpus=gpus,
            minutes=self.max_minutes,
            request=self,
        )


def render_script(
    script: str,
    command: Sequence[str],
    each_node: EachNode | None,
    *,
    name: str,
    nodes: int,
    gpus: int | None,
    minutes: float,
    **values: Any,
) -> str:
    """The batch script of a template, or a script that submits it for each node.

    Args:
        script: the name of the template.
        command: the command that prints the script again, for the comment at its start.
        each_node: the nodes that get a job each; None: there is one job.
        name: the name of the job; of one for each node, the part before that of the node.
        nodes: the number of nodes of a job.
        gpus: the devices of each node; None: none.
        minutes: the time after which what is run ends itself.
        values: what else the template shows.
    """
    template = script
    if each_node is not None:
        template = "each_node.sh.j2"
    header = f"#!/bin/bash\n# Made by flagbench {__version__}:\n#   {shlex.join(command)}\n"
    return header + job_template(f"slurm/{template}", _quote).render(
        values,
        script=f"slurm/{script}",
        each_node=each_node,
        name=name,
        nodes=nodes,
        gpus=gpus,
        limit_minutes=math.ceil(minutes) + SLACK_MINUTES,
    )


def _quote(value: Any) -> str:
    """A value as one word of the shell."""
    return shlex.quote(str(value))
