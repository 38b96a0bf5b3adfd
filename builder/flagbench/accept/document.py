"""The types of a certificate, the JSON document `certificate/v1`.

A certificate that is read may come from anybody, so every field has bounds. certificate.py makes and checks it, and
run.py collects its facts: they change until the last run has ended.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field, to_builtins

from flagbench.accept.check import AcceptanceCheck, Outcome
from flagbench.manifests.limits import AcceptanceLimit
from flagbench.records.model import SlowestDevice
from flagbench.records.scalars import Amount, Count, Name, RecordId, Time
from flagbench.system.queries import Ending
from flagbench.verdict.efficiency import Efficiency
from flagbench_core.health.kernel_log import XidLog
from flagbench_core.health.reading import DeviceHealth, HealthReading

MOST_DEVICES = 1024
"""The most devices that `--gpus` accepts."""
LimitedText = Annotated[str, Meta(max_length=2**16)]
LimitedTexts = Annotated[tuple[LimitedText, ...], Meta(max_length=MOST_DEVICES)]
Rank = Annotated[int, Meta(ge=0, lt=MOST_DEVICES)]
Devices = Annotated[int, Meta(ge=1, le=MOST_DEVICES)]
Minutes = Annotated[float, Meta(gt=0, le=1e4)]
PositiveFloat = Annotated[float, Meta(gt=0, le=1e9)]


class Author(Struct, frozen=True):
    """The flagbench that wrote a certificate."""

    version: LimitedText
    commit: LimitedText | None


class Action(Struct, frozen=True):
    """What to do with the machine."""

    do: Literal["use", "run again", "fix", "drain"]
    ranks: Annotated[tuple[Rank, ...], Meta(max_length=MOST_DEVICES)] = ()
    """The ranks whose devices are to be drained."""
    devices: LimitedTexts = ()
    """The UUIDs of these devices, as far as they are known."""
    minutes: Minutes | None = None
    """The `--minutes` of another run."""
    remedies: LimitedTexts = ()
    """What fixes the machine, for `fix`."""


class DeviceShare(Struct, frozen=True):
    """A device that was measured."""

    rank: Rank
    name: LimitedText
    uuid: LimitedText | None
    share: Amount | None
    """Its speed relative to that of the other devices; None if it was not compared."""


class Number(Struct, frozen=True):
    """A metric of a run."""

    part: Name
    name: LimitedText
    value: float
    unit: LimitedText
    scope: LimitedText
    slowest_device: SlowestDevice | None = None
    """The rank with the lowest value; None if there is only one device, and in certificates of earlier versions."""


class Asked(Struct, frozen=True):
    """The options of `accept`."""

    minutes: Minutes
    gpus: Devices | None
    case: LimitedText | None
    price_per_hour: PositiveFloat | None
    soak: Annotated[int, Meta(ge=1, le=24 * 60)] | None = None
    """The duration of the soak, minutes; None for an acceptance without one."""
    serving: bool = False
    """Whether the first device was to generate tokens with vLLM, too."""


class MachineDevice(Struct, frozen=True):
    """A device that the driver shows."""

    index: Count
    name: LimitedText
    uuid: LimitedText


class CertificateMachine(Struct, frozen=True):
    """The machine before anything ran."""

    host: LimitedText
    visible: Annotated[int, Meta(ge=0, le=MOST_DEVICES)]
    """The number of devices that a run can use: CUDA_VISIBLE_DEVICES may hide some."""
    problem: LimitedText | None
    """Why the devices could not be listed; None if they were."""
    devices: Annotated[tuple[MachineDevice, ...], Meta(max_length=MOST_DEVICES)]
    drivers: LimitedTexts
    """The versions of the drivers of the devices."""
    foreign: LimitedTexts
    """Other processes that use a device."""
    partitions: LimitedTexts
    """A sentence for each device that is only a part of a device."""
    capped: LimitedTexts
    """A sentence for each device whose power limit is below its default."""
    tool: Ending = Ending.ANSWERED
    """How the query to the vendor's tool ended; earlier versions stated neither this nor `lost`."""
    lost: LimitedTexts = ()
    """A sentence for each device that does not answer, with its index or address."""
    remedy: LimitedText = ""
    """What fixes the problem."""


class Spread(Struct, frozen=True):
    """A spread between sessions that was known beforehand."""

    spread: Annotated[float, Meta(ge=0, le=1e9)]
    df: PositiveFloat
    source: LimitedText


class SpreadOfRuns(Spread, frozen=True):
    """A spread between runs that was known beforehand."""

    session: Spread | None


NOT_RUN = "not run"
"""The `state` of a run that was not made."""


class RunFacts(Struct):
    """One run of the acceptance."""

    case: Name
    target: LimitedText
    """The image or stack that it ran on."""
    why: LimitedText
    """Why this run was made."""
    record_id: RecordId | None
    """None if it left no record."""
    state: LimitedText
    """How it ended: the state of its record, NOT_RUN, or that it left no record."""
    reason: LimitedText | None
    """Why it did not end well; None if it did."""
    history: Annotated[tuple[RecordId, ...], Meta(max_length=100)]
    """The records of earlier runs that it is compared with."""
    priors: Annotated[dict[str, SpreadOfRuns], Meta(max_length=1000)]
    """The spreads that were known beforehand, by metric."""
    remedy: LimitedText = ""
    """What fixes the cause, if it could not be run."""


class DeviceReadings(Struct, frozen=True):
    """One reading of the health of the devices."""

    devices: Annotated[tuple[DeviceHealth, ...], Meta(max_length=MOST_DEVICES)] = ()
    source: LimitedText | None = None
    """The library or tool that read them."""
    problem: LimitedText | None = None
    """Why no device was read."""

    def to_dict(self) -> dict[str, Any]:
        """Return the reading as JSON types, without fields that were not read."""
        return HealthReading(self.devices, self.source, self.problem).to_dict()


class HealthFacts(Struct, frozen=True):
    """The health of the devices before the runs and after the last one."""

    before: DeviceReadings
    after: DeviceReadings | None = None
    xids: XidLog | None = None
    """Xid lines of the kernel log between the two readings; None if the vendor's driver writes none."""

    def to_dict(self) -> dict[str, Any]:
        """Return the health as JSON types, without fields that were not read."""
        values = {"before": self.before.to_dict()}
        if self.xids is not None:
            values["xids"] = self.xids.to_dict()
        if self.after is not None:
            values["after"] = self.after.to_dict()
        return values


class AcceptanceFacts(Struct):
    """The data that the checks are computed from, in addition to the records."""

    asked: Asked
    gpus: Devices
    stack: Name
    device_kind: Literal["cpu", "cuda"]
    driver_floor: LimitedText | None
    """The oldest driver that the image runs on; None if no image is used, or if it is not known."""
    machine: CertificateMachine
    without_case: LimitedText | None
    """Why no case was run; None if one was."""
    ending: Literal["done", "interrupted"]
    parts: Annotated[list[RunFacts], Meta(max_length=10)]
    planned: Annotated[tuple[Name, ...], Meta(max_length=10)] = ()
    """The cases, in order; empty in certificates of versions that did not state them."""
    limits: Annotated[tuple[AcceptanceLimit, ...], Meta(max_length=100)] = ()
    """The limits for this device; empty in certificates of versions that did not state them."""
    health: HealthFacts | None = None
    """None for a processor, and in certificates of versions that did not read it."""
    off_node: bool = False
    """Whether the facts were made from records alone, off the machine; see `from_records`."""


class Certificate(Struct, frozen=True):
    """The whole document. Other fields are ignored."""

    version: Literal["certificate/v1"] = field(name="schema")
    outcome: Outcome
    reason: LimitedText
    action: Action
    created_at: Time
    flagbench: Author
    seconds: Annotated[float, Meta(ge=0, le=1e6)]
    cost: Amount | None
    devices: Annotated[tuple[DeviceShare, ...], Meta(max_length=MOST_DEVICES)]
    checks: Annotated[tuple[AcceptanceCheck, ...], Meta(max_length=1000)]
    numbers: Annotated[tuple[Number, ...], Meta(max_length=10_000)]
    efficiency: Annotated[tuple[Efficiency, ...], Meta(max_length=10)]
    software: Annotated[dict[str, LimitedText], Meta(max_length=100)]
    """The versions of the software of the runs, by name."""
    facts: AcceptanceFacts

    def to_dict(self) -> dict[str, Any]:
        """Return the document as JSON types."""
        document: dict[str, Any] = to_builtins(self)
        if self.facts.health is not None:
            document["facts"]["health"] = self.facts.health.to_dict()
        return document
