"""Prints the batch script of a run on a Slurm cluster, for `sbatch`, or a script that submits a job for each node.

`SlurmRequest` checks the options, and `render_job` writes the script from the templates in manifests/slurm.
`flagbench job --for slurm` uses this module through `launchers.schedulers`. Nothing is submitted: a script that is
piped into `sbatch` can be read before, and gets the options of the site.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from typing import Annotated, Any, ClassVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from typer import Option

from flagbench.errors import FlagbenchError
from flagbench.image_reference import is_on_docker_hub, parse_reference
from flagbench.images.render.stack import interpreter
from flagbench.options import Text
from flagbench.runs.launchers.job_request import SLACK_MINUTES, EachNode, JobRequest, is_bucket
from flagbench.runs.request import RunOptions, config_options
from flagbench.schema import shipped_manifests
from flagbench_core import __version__
from flagbench_core.config import Options
from flagbench_core.data_folders import SYNTHETIC
from flagbench_core.environment import GIVEN
from flagbench_core.redaction import redact

_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A name of a job without what Slurm replaces in the name of a log (%), and without what a shell reads."""
_HOW_TO_SUBMIT = """\
# Submit it with `sbatch FILE`, or pipe it into `sbatch`. Options given to sbatch, such as --partition,
# override those below.
"""
_HOW_TO_SUBMIT_EACH = """\
# It submits a job for each node. Run it with `sh FILE`, or pipe it into `sh`. Options of sbatch, such as --partition,
# go after the name: `sh FILE --partition=gpu`, or `sh -s -- --partition=gpu`.
"""
"""The comments that say how to use a script."""
_MOUNTABLE = re.compile(r"/[^:,]*")
"""A folder that can be mounted in a container: an absolute path, without what separates mounts."""


class Container(str, Enum):
    """A program that runs an image on the nodes of a Slurm cluster."""

    PYXIS = "pyxis"
    """NVIDIA's plugin of srun, which imports an image from a registry or reads a .sqsh file."""
    APPTAINER = "apptainer"
    """It runs a .sif file."""


@dataclass(frozen=True)
class SlurmOptions:
    """The options of `flagbench job` that only Slurm has, as the user typed them. None: it was not given."""

    GROUP: ClassVar[str] = "Slurm"

    weights: Annotated[Text, Option(metavar="DIR", help="A checkpoint folder of the nodes. Default: random.")] = None


@dataclass(frozen=True)
class SlurmRequest(JobRequest):
    """A batch script of Slurm. Whether the nodes have its folders is checked when it runs."""

    SCHEDULER: ClassVar[str] = "slurm"

    options: SlurmOptions = field(default_factory=SlurmOptions)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_name()
        if self.container is not None:
            self._check_container()
        elif self.job.store is not None:
            is_bucket(self.job.store)  # raises for a wrong address

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
    def container(self) -> Container | None:
        """The program that runs the image; None: the run is native."""
        if self.image is None:
            return None
        if self.image.endswith(".sif"):
            return Container.APPTAINER
        return Container.PYXIS

    @property
    def pyxis_image(self) -> str:
        """The image as enroot writes it, `HOST#NAME:TAG`, or the path of a .sqsh file."""
        assert self.image is not None
        if self.has_image_file:
            return self.image
        reference = parse_reference(self.image)
        name = f"{reference.path}:{reference.tag}"
        if is_on_docker_hub(self.image):  # without a host, enroot asks Docker Hub
            return name
        return f"{reference.host}#{name}"

    @property
    def has_image_file(self) -> bool:
        """Whether the image is a file, and not in a registry."""
        return self.image is not None and self.image.endswith((".sif", ".sqsh"))

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
            out=self.container is not None,
        )

    def program(self) -> list[str]:
        """The words that start the run on a node: the command of flagbench, or the entrypoint in the image."""
        if self.container is None:
            return ["flagbench", "run", f"{self.case.name}:{self.stack.selector}", "--via=native"]
        return [interpreter(self.stack), "-I", "-u", "-m", "flagbench_cases", self.case.name]

    def arguments(self) -> list[str]:
        """The arguments of the program, without --run-id and --master, which the script computes."""
        run = replace(self.run, run_id=None, max_minutes=self.max_minutes)
        if self.container is not None:
            return self._image_arguments(run)
        arguments = run.command_line()
        arguments += [f"--env={name}={value}" for name, value in self.environment.items() if name != GIVEN]
        if self.options.weights is not None:
            arguments.append(f"--weights={self.options.weights}")
        if self.stack.device_kind == "cpu":
            arguments.append("--yes")  # nobody answers whether to run the reference preset on a processor
        return arguments + self._store_arguments()

    def _image_arguments(self, run: RunOptions) -> list[str]:
        """The arguments of the image, with the folders that are mounted."""
        if self._has_data_folder:
            run = replace(run, data="/data")
        arguments = run.image_arguments()
        if self.options.weights is not None:
            arguments.append("--weights=/weights")
        arguments.append("--out=/out")
        return arguments + self._store_arguments()

    def _store_arguments(self) -> list[str]:
        """The argument that names the store, if one was given."""
        if self.job.store is None:
            return []
        return [f"--store={self.job.store}"]

    def _check_name(self) -> None:
        """Refuse a name that Slurm or a shell would read as something else."""
        if _JOB_NAME.fullmatch(self.job_name) is None:
            raise FlagbenchError(
                f"--name {self.job_name!r} is not valid",
                remedy="use at most 100 letters, digits, '.', '_' and '-', a letter or digit first",
            )

    def _check_image(self) -> None:
        """Refuse what the base class refuses, and a digest, which enroot does not take."""
        super()._check_image()
        if self.image is None or self.has_image_file:
            return
        if parse_reference(self.image).digest is not None:
            raise FlagbenchError(
                f"--image {self.image!r} has a digest, which enroot does not take",
                remedy="name its tag alone, or import it: enroot import --output FILE.sqsh, and --image FILE.sqsh",
            )

    def _check_container(self) -> None:
        """Refuse folders that cannot be mounted, and a store that ends with the container."""
        folders = {"--weights": self.options.weights}
        if self._has_data_folder:
            folders["--data"] = self.run.data
        for option, folder in folders.items():
            if folder is not None and _MOUNTABLE.fullmatch(folder) is None:
                raise FlagbenchError(
                    f"{option} {folder!r} cannot be mounted in a container",
                    remedy="give an absolute path without ':' and ','",
                )
        if self.job.store is not None and not is_bucket(self.job.store):
            raise FlagbenchError(
                f"--store {redact(self.job.store)!r} is a folder, which an image does not store records in",
                remedy="write --store s3://BUCKET/PREFIX, or leave it out: the record is in the folder NAME-JOBID "
                "beside the log, and `flagbench results push` stores it",
            )


@dataclass(frozen=True)
class Resources:
    """What a job asks Slurm for."""

    name: str
    """The name of the job; of one for each node, the name before that of the node."""
    nodes: int
    """The number of nodes."""
    gpus: int | None
    """Devices of each node; None: all that Slurm knows of, or none."""
    limit_minutes: int
    """Minutes after which Slurm ends the job."""


def render_job(request: SlurmRequest) -> str:
    """The batch script of a request, or a script that submits it for each node."""
    gpus = None
    if request.stack.device_kind != "cpu":
        gpus = request.run.gpus
    limit_minutes = math.ceil(request.max_minutes) + SLACK_MINUTES
    resources = Resources(request.job_name, request.run.nodes, gpus, limit_minutes)
    return render_script("run.sh.j2", request.command(), resources, request.each_node, request=request)


def render_script(
    script: str, command: Sequence[str], resources: Resources, each_node: EachNode | None, **values: Any
) -> str:
    """The batch script of a template, or a script that submits it for each node.

    Args:
        script: the name of the template.
        command: the command that prints the script again, for the comment at its start.
        resources: what the job asks for.
        each_node: the nodes that get a job each; None: there is one job.
        values: what the template shows.
    """
    values = {**values, "script": script, "resources": resources, "each_node": each_node}
    comment = f"# Made by flagbench {__version__}:\n#   {shlex.join(command)}\n"
    if each_node is None:
        comment += _HOW_TO_SUBMIT
        return "#!/bin/bash\n" + comment + _template(script).render(values)
    comment += _HOW_TO_SUBMIT_EACH
    return "#!/bin/sh\n" + comment + _template("each_node.sh.j2").render(values)


@cache
def _template(name: str) -> Template:
    """A template of this module."""
    environment = Environment(
        loader=FileSystemLoader(shipped_manifests() / "slurm"),
        # Applied to the value of every {{ }}, so that none can be forgotten.
        finalize=_quote,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.get_template(name)


def _quote(value: Any) -> str:
    """A value as one word of the shell."""
    return shlex.quote(str(value))


def submit(_job: str) -> str:
    """Raise FlagbenchError (USAGE): a script is submitted by a pipe."""
    raise FlagbenchError(
        "--submit is for Kubernetes", remedy="pipe the script: flagbench job ... --for slurm | sbatch"
    )
