"""Declares the options of a run once for all commands that start one, and checks them.

`RunOptions` are those of every launcher, and `LocalOptions` add those of a run on this machine. A `RunRequest` is a
case and a stack with such options; launchers take one and pass its arguments to the image.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

from typer import Option

from flagbench.errors import FlagbenchError
from flagbench.image_reference import image_of
from flagbench.manifests.fields import Precision
from flagbench.manifests.model import Case
from flagbench.manifests.settings import config_errors
from flagbench.manifests.stack import Stack
from flagbench.options import Text, Texts, check_ranges, text_fault, words
from flagbench.records.scalars import RUN_ID
from flagbench_core import config
from flagbench_core.environment import GIVEN, LAUNCHER
from flagbench_core.redaction import is_secret

MAX_NODES = 100_000
"""The largest --nodes: more than any run has, so that a typing error is noticed."""
YEAR_SECONDS = 365 * 24 * 3600
"""The longest time that an option accepts."""
_RUN_ID = re.compile(RUN_ID)
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_LIMITS = "Limits"
_FOLDERS = "Folders"
_NODES = "Several nodes"
"""Groups of options in --help."""

ENV = Option(
    "--env",
    metavar="NAME[=VALUE]",
    help="Pass an environment variable, no secret; without VALUE, take it from the current environment. Repeatable.",
)
"""The option --env of every command that starts a run."""
Roofs = Annotated[bool, Option("--roofs", help="Measure the hardware's roofs first (20 s).")]
"""The type of the option --roofs. A roof is what the hardware reaches without a model, such as memory bandwidth."""
_RESERVED = frozenset(
    {
        *("FLAGBENCH_MASTER", "FLAGBENCH_NODE_RANK", "JOB_COMPLETION_INDEX"),
        *("FLAGBENCH_TERMINATION_LOG", "FLAGBENCH_STORE", "FLAGBENCH_HOST"),
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"),
        *("FLAGBENCH_IMAGE_DIGEST", "FLAGBENCH_IMAGE_ID", "FLAGBENCH_STACK", GIVEN, LAUNCHER),
        *("FLAGBENCH_COMMIT", "FLAGBENCH_CONTEXT_DIGEST", "FLAGBENCH_LOCK_DIGEST"),
    }
)
"""Variables that flagbench, an image or torch sets itself, which --env therefore refuses."""


@dataclass(frozen=True)
class RunOptions:
    """The options of every launcher. None: the image chooses."""

    nodes: Annotated[int, Option(min=1, max=MAX_NODES, help="Number of nodes.")] = 1
    gpus: Annotated[int, Option(min=1, max=1024, help="Devices per node, one process each; on cpu, ranks.")] = 1
    run_id: Annotated[Text, Option(rich_help_panel=_NODES, help="Name of the run, the same on all nodes.")] = None
    preset: Annotated[
        Literal["reference", "tiny"], Option(help="The published size, or a tiny one that takes seconds.")
    ] = "reference"
    precision: Annotated[Precision | None, Option(help="Default: the case's own.")] = None
    data: Annotated[
        Text,
        Option(
            metavar="synthetic",
            help="Random data; on Slurm also a folder of the nodes. Default: /data if there, else synthetic; tiny has"
            " its own.",
        ),
    ] = None
    steps: Annotated[int | None, Option(min=1, help="Measure that many steps after the warm-up.")] = None
    max_samples: Annotated[int | None, Option(min=1, help="The same, in samples of all devices.")] = None
    full: Annotated[bool, Option("--full", help="Run to the published stop rule on any data.")] = False
    roofs: Roofs = False
    seed: Annotated[int | None, Option(min=0, max=2**31 - 1, help="Default: the case's.")] = None
    set_: Annotated[Texts, Option("--set", metavar="KEY=VALUE", help="Change a hyper-parameter; repeatable.")] = ()
    max_minutes: Annotated[
        float | None, Option(rich_help_panel=_LIMITS, metavar="MINUTES", help="End the run after that time.")
    ] = None
    timeout: Annotated[
        float | None,
        Option(
            rich_help_panel=_LIMITS,
            metavar="SECONDS",
            help="Time without progress that counts as a hang. Default: 600.",
        ),
    ] = None

    @property
    def ranks(self) -> int:
        """The number of processes of the whole job."""
        return self.nodes * self.gpus

    def command_line(self) -> list[str]:
        """The words of a flagbench command: always --nodes and --gpus, and the options that are not the default."""
        return words(self, always=("--nodes", "--gpus"))

    def image_arguments(self) -> list[str]:
        """The arguments of the image. --preset is always among them: on cpu an image has no default for it."""
        return words(self, always=("--nodes", "--gpus", "--preset"))


@dataclass(frozen=True)
class LocalOptions(RunOptions):
    """The options of a run on this machine: also its folders, its variables, and which of several nodes this is."""

    data: Annotated[
        Text,
        Option(
            rich_help_panel=_FOLDERS,
            metavar="DIR|synthetic",
            help="Prepared data. Default: /data if there, else synthetic; tiny has its own.",
        ),
    ] = None
    weights: Annotated[
        Text, Option(rich_help_panel=_FOLDERS, metavar="DIR", help="A checkpoint folder. Default: random.")
    ] = None
    out: Annotated[
        Text, Option("--out", "-o", rich_help_panel=_FOLDERS, metavar="DIR", help="Write the record there as well.")
    ] = None
    resume: Annotated[
        Text,
        Option(rich_help_panel=_FOLDERS, metavar="DIR", help="Resume from a checkpoint, if the case writes any."),
    ] = None
    node_rank: Annotated[
        int | None, Option(rich_help_panel=_NODES, min=0, help="Which node this is, of several.")
    ] = None
    master: Annotated[Text, Option(rich_help_panel=_NODES, metavar="HOST:PORT", help="Where node 0 listens.")] = None
    env: Annotated[Texts, ENV] = ()

    def image_arguments(self) -> list[str]:
        """The arguments of the image without --env: a launcher sets these variables itself."""
        return RunOptions.image_arguments(replace(self, env=()))


@dataclass(frozen=True)
class RunRequest:
    """One run of a case on a stack, whose options are checked when it is made.

    Raises FlagbenchError (USAGE) for the first option that the image would refuse.
    """

    case: Case
    stack: Stack
    options: LocalOptions = field(default_factory=LocalOptions)
    bundle: str | None = None
    """The folder for this node's bundle, an archive of its raw events; None: the image makes none."""

    def __post_init__(self) -> None:
        check_options(self.options)
        # These properties parse options when they are read first, and raise for those that are not valid.
        _ = self.configuration
        _ = self.environment

    @cached_property
    def configuration(self) -> Mapping[str, Any]:
        """The configuration without the data, weights, layout and length, which `launchers.describe` resolves."""
        with config_errors():
            return config.choose(self.case.raw, self.stack.raw, config_options(self.options))

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """The variables of `--env` with their values, by name."""
        return read_env(self.options.env)

    @property
    def name(self) -> str:
        """`case:stack`."""
        return f"{self.case.name}:{self.stack.name}"

    @property
    def image(self) -> str:
        """The image of the case on the stack, as `flagbench build` names it."""
        return image_of(self.case.name, self.stack.name)

    def arguments(self) -> list[str]:
        """The arguments of the entrypoint `python -m flagbench_cases`, the case first.

        An image is made for one case, so a container gets `LocalOptions.image_arguments` without the case.
        """
        arguments = [self.case.name, *self.options.image_arguments()]
        if self.bundle is not None:
            arguments.append(f"--bundle={self.bundle}")
        return arguments


def new_run_id() -> str:
    """A random run id."""
    return f"run-{uuid.uuid4().hex[:12]}"


def check_run_id(run_id: str, option: str = "--run-id") -> None:
    """Raise FlagbenchError (USAGE), which names the option, for a text that cannot be the id of a run."""
    if _RUN_ID.fullmatch(run_id) is None:
        raise FlagbenchError(
            f"{option} {run_id!r} is not valid",
            remedy="use at most 128 letters, digits, '.', '_' and '-', a letter or digit first",
        )


def read_env(texts: Iterable[str], reserved: Container[str | None] = ()) -> dict[str, str]:
    """The variables of `--env NAME=VALUE`, and of `--env NAME`, which takes the value of the current environment.

    One more variable lists their names, so that the image knows which variables to record.

    Args:
        texts: the values of the option.
        reserved: names to refuse in addition to those that flagbench sets.

    Raises FlagbenchError (USAGE) for a text that does not begin with a name, a variable that is not set here, given
    twice or set by flagbench, a value that cannot reach a process unchanged, and a secret, which is not repeated.
    """
    variables: dict[str, str] = {}
    for text in texts:
        variable = _read_variable(text)
        if variable.name in variables:
            raise FlagbenchError(f"--env {variable.name!r} is given twice", remedy="give it once")
        _check_variable(variable, reserved)
        variables[variable.name] = variable.value
    if not variables:
        return {}
    return {GIVEN: ",".join(variables), **variables}


class _Variable(NamedTuple):
    """An environment variable."""

    name: str
    value: str


def _read_variable(text: str) -> _Variable:
    """The variable that one `--env` names. Raises FlagbenchError (USAGE) without repeating a misplaced secret."""
    name, equals, value = text.partition("=")
    if _VARIABLE_NAME.fullmatch(name) is None:
        raise FlagbenchError("a value of --env does not begin with a name", remedy="write --env NAME=VALUE")
    if equals:
        return _Variable(name, value)
    if name in os.environ:
        return _Variable(name, os.environ[name])
    if is_secret("", name):
        raise FlagbenchError("a value of --env looks like a secret, not a name", remedy="write --env NAME=VALUE")
    raise FlagbenchError(f"--env {name}: it is not set here", remedy=f"write --env {name}=VALUE, or set it")


def _check_variable(variable: _Variable, reserved: Container[str | None]) -> None:
    """Raise FlagbenchError (USAGE) for a variable that flagbench sets, a secret, and an unusable value."""
    name = variable.name
    if name in _RESERVED or name in reserved:
        raise FlagbenchError(f"--env {name} is set by flagbench or the image", remedy="leave it out")
    refuse_secret(f"--env {name}", name, variable.value)
    if fault := text_fault(variable.value):
        raise FlagbenchError(f"the value of --env {name} {fault}", remedy="leave it out")


def refuse_secret(option: str, name: str, value: str) -> None:
    """Raise FlagbenchError (USAGE) if a value looks like a secret, which a record or a job would show to others.

    `name` is the name of the variable that has the value; empty for the value of an option. The message does not
    repeat the value.
    """
    if is_secret(name, value):
        raise FlagbenchError(
            f"{option} looks like a secret, which everyone who may read the job or the record could read",
            remedy="leave it out; a job can take it from a Secret, by envFrom in a patch (docs/kubernetes.md)",
        )


def check_options(options: RunOptions) -> None:
    """Raise FlagbenchError (USAGE) for a number out of range, two lengths at once, or an invalid run id.

    What a case, a stack and a layout allow is checked when the configuration is resolved.
    """
    check_ranges(options)
    _check_duration("--max-minutes", options.max_minutes, YEAR_SECONDS / 60)
    _check_duration("--timeout", options.timeout, YEAR_SECONDS)
    if options.run_id is not None:
        check_run_id(options.run_id)
    lengths = {"--steps": options.steps, "--max-samples": options.max_samples, "--full": options.full}
    names = [name for name, length in lengths.items() if length]
    if len(names) > 1:
        raise FlagbenchError(f"{' and '.join(names)} contradict each other", remedy="give one of them")


def _check_duration(option: str, duration: float | None, limit: float) -> None:
    """Raise FlagbenchError (USAGE) for a duration that is given and not between 0 and the limit, in its unit."""
    if duration is not None and not 0 < duration <= limit:
        raise FlagbenchError(
            f"{option} {duration} is out of range", remedy=f"give a number above 0, up to {limit:.0f}"
        )


def config_options(
    options: RunOptions, *, source: str | None = None, weights: bool = False, resume: bool = False, out: bool = False
) -> config.Options:
    """The options that decide the configuration, as `flagbench_core.config` takes them.

    Args:
        options: the options of the run.
        source: where the data come from, such as `files` or `synthetic`; None: not known yet.
        weights: whether the run has a folder with weights.
        resume: whether it resumes from a checkpoint.
        out: whether it has a folder for its record.
    """
    return config.Options(
        nodes=options.nodes,
        gpus=options.gpus,
        preset=options.preset,
        precision=options.precision,
        seed=options.seed,
        source=source,
        weights=weights,
        steps=options.steps,
        max_samples=options.max_samples,
        full=options.full,
        settings=options.set_,
        roofs=options.roofs,
        resume=resume,
        out=out,
    )
