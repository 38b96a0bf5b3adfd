"""The options that a job has on every scheduler, and how they are checked before a scheduler sees them.

`flagbench job` makes a `JobRequest`: `launchers.kubernetes` and `launchers.slurm` each have a subclass, with the
options that only this scheduler has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, ClassVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from typer import Option

from flagbench.errors import FlagbenchError
from flagbench.image_reference import image_of, try_parse_reference
from flagbench.images.bucket import is_in_bucket
from flagbench.manifests.model import Case
from flagbench.manifests.settings import config_errors
from flagbench.manifests.stack import Stack
from flagbench.options import Text, Texts, text_fault, words
from flagbench.runs.request import ENV, RunOptions, check_options, read_env, refuse_secret
from flagbench.schema import shipped_manifests
from flagbench_core import __version__
from flagbench_core.config import Options, resolve
from flagbench_core.environment import GIVEN
from flagbench_core.redaction import redact
from flagbench_core.s3 import S3Error, parse_address

DEFAULT_MINUTES = 210
"""The default of --max-minutes. With `SLACK_MINUTES`, the scheduler ends a job after four hours."""
SLACK_MINUTES = 30
"""Minutes beyond --max-minutes for waiting for nodes, pulling a large image and starting."""
_NAMES = ("--name=", "--namespace=", "--queue=", "--pull-secret=", "--store-secret=")
"""Options whose value is a name. A name may look like a secret and is not checked for one: sk-learn-2x8-nightly."""


class Scheduler(str, Enum):
    """A value of `flagbench job --for`."""

    KUBERNETES = "kubernetes"
    SLURM = "slurm"


@dataclass(frozen=True)
class JobOptions:
    """The options of `flagbench job` for every scheduler, as the user typed them. None: the option was not given."""

    GROUP: ClassVar[str] = "Job"

    name: Annotated[Text, Option(help="Name of the job. Default: of case, stack and run.")] = None
    image: Annotated[
        Text,
        Option("--image", metavar="REF", help="Image, with its tag or digest. Default: this version's; Slurm: none."),
    ] = None
    registry: Annotated[Text, Option(metavar="HOST[/PATH]", help="Where the default image was pushed.")] = None
    store: Annotated[
        Text, Option(metavar="URL", help="Where records are kept: s3://BUCKET/PREFIX, on Slurm also a folder.")
    ] = None
    env: Annotated[Texts, ENV] = ()


@dataclass(frozen=True)
class EachNode:
    """The nodes of `--each-node`, each of which gets a job of its own."""

    names: tuple[str, ...]
    """Names of nodes, without characters that a shell or YAML reads as something else."""
    source: str
    """The file that has them, as the user typed it."""


@dataclass(frozen=True)
class JobRequest(ABC):
    """One job, whose options are checked when it is made.

    Raises FlagbenchError (USAGE) for the first value that the image would refuse once the job has its nodes, that
    would give away a secret, or that cannot name a job. What else a scheduler refuses is left to it.
    """

    SCHEDULER: ClassVar[Scheduler]

    case: Case
    stack: Stack
    run: RunOptions = field(default_factory=RunOptions)
    job: JobOptions = field(default_factory=JobOptions)
    options: Any = None
    """The options that only this scheduler has; a subclass declares their type."""
    each_node: EachNode | None = None
    """The nodes that get a job each; None: there is one job."""

    def __post_init__(self) -> None:
        if self.each_node is not None and self.run.nodes > 1:
            raise FlagbenchError(
                "--each-node and --nodes contradict each other",
                remedy="leave out --nodes: each node has a run of its own",
            )
        check_options(self.run)
        # These properties parse options when they are read first, and raise for those that are not valid.
        _ = self.config
        _ = self.environment
        check_words(self.command())
        self._check_image()

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration, as far as it is known without looking at the nodes' folders."""
        with config_errors():
            return resolve(self.case.raw, self.stack.raw, self._config_options())

    @abstractmethod
    def _config_options(self) -> Options:
        """The options that decide the configuration."""

    @abstractmethod
    def render(self) -> str:
        """The text of the job, or of a job for each node."""

    @property
    def image(self) -> str | None:
        """The image to run: that of --image, else this version's; None: the run is native."""
        if self.job.image is not None:
            return self.job.image
        image = image_of(self.case.name, self.stack.name, __version__)
        if self.job.registry:
            return f"{self.job.registry}/{image}"
        return image

    @property
    def pulled_image(self) -> str | None:
        """The image, if the nodes pull it from a registry; None if it is a file of theirs, or the run is native."""
        return self.image

    @property
    def max_minutes(self) -> float:
        """Minutes after which the run ends itself."""
        if self.run.max_minutes is None:
            return DEFAULT_MINUTES
        return self.run.max_minutes

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """The variables of `--env`, by name. One that the job sets itself, or that has a secret, is refused."""
        return read_env(self.job.env, {self.stack.device.visibility_variable})

    @property
    def env(self) -> tuple[str, ...]:
        """The values of `--env`, each as NAME=VALUE."""
        return tuple(f"{name}={value}" for name, value in self.environment.items() if name != GIVEN)

    def command(self) -> list[str]:
        """The words of the command that prints the same job again."""
        name = f"{self.case.name}:{self.stack.selector}"
        job = replace(self.job, env=self.env)
        run = self._run_to_repeat().command_line()
        command = ["flagbench", "job", name, "--for", self.SCHEDULER.value, *run, *words(job), *words(self.options)]
        if self.each_node is not None:
            command.append(f"--each-node={self.each_node.source}")
        return command

    def _run_to_repeat(self) -> RunOptions:
        """The options of the run, with those that were chosen and that the same job has again."""
        return self.run

    def warnings(self) -> list[str]:
        """Problems that a valid job may have, each with its remedy."""
        if self.image is None:
            return []
        warnings = []
        reference = try_parse_reference(self.pulled_image or "")
        if reference is not None and not reference.host:
            warnings.append(
                f"clusters pull {self.image} from docker.io; name your registry with --registry or --image"
            )
        if self.each_node is not None and self.job.store is None:
            warnings.append("`flagbench fleet` will not find the records, as they are not stored; give --store")
        return warnings

    def _check_image(self) -> None:
        """Refuse two names of the image, one in a bucket, and one that may mean another image tomorrow."""
        if self.job.image is not None and self.job.registry is not None:
            raise FlagbenchError("--image and --registry contradict each other", remedy="give one of them")
        image = self.pulled_image
        if image is None:
            return
        if is_in_bucket(image):
            raise FlagbenchError(
                "--image names an object store, and a cluster pulls from registries alone",
                remedy="serve the bucket at the root of a host, and write --image HOST/NAME@sha256:DIGEST "
                "(docs/object-storage.md)",
            )
        if fault := image_fault(image):
            option = "--image" if self.job.registry is None else "--registry"
            raise FlagbenchError(
                f"{option}: {image!r} {fault}",
                remedy="write [HOST[:PORT]/]NAME:TAG with a tag that does not move, or NAME@sha256:DIGEST",
            )


def check_words(command: Iterable[str]) -> None:
    """Raise FlagbenchError (USAGE) for a word of the command that cannot be in a job, or looks like a secret.

    A job shows the command that prints it again.
    """
    for word in command:
        option = word.partition("=")[0]
        if fault := text_fault(word):
            raise FlagbenchError(f"the value of {option} {fault}", remedy="leave it out")
        if not word.startswith(_NAMES):
            refuse_secret(option, "", word)


def image_fault(image: str) -> str | None:
    """The reason why a name does not identify one image, as the end of a sentence; None if it does.

    It is malformed, has neither tag nor digest, or has the tag `latest`.
    """
    reference = try_parse_reference(image)
    if reference is None:
        return "is not the name of an image"
    if reference.digest is None and reference.tag in (None, "latest"):
        return "has neither a fixed tag nor a digest"
    return None


def is_bucket(store: str) -> bool:
    """Whether a store is in a bucket, and not in a folder. Raises FlagbenchError (USAGE) for a wrong address."""
    if not store.lower().startswith("s3:"):
        return False
    try:
        parse_address(store)
    except S3Error as error:
        raise FlagbenchError(f"--store: {error.message}", remedy=error.remedy) from None
    return True


def check_bucket(store: str, remedy: str) -> None:
    """Raise FlagbenchError (USAGE) for a store that is not a bucket, and would be deleted with its container."""
    if not is_bucket(store):
        raise FlagbenchError(
            f"--store {redact(store)!r} is not a bucket; a container's folders are deleted with it", remedy=remedy
        )


def job_template(name: str, quote: Callable[[Any], str]) -> Template:
    """The template of that name in manifests/, for which `quote` quotes values."""
    environment = Environment(
        loader=FileSystemLoader(shipped_manifests()),
        # Applied to the value of every {{ }}, so that none can be forgotten.
        finalize=quote,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.get_template(name)
