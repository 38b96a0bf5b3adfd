"""What a rank leaves behind survives its death, a full disk and a torn write."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flagbench_cases.shared import spool
from flagbench_cases.shared.spool import HEADER_SIZE, SLOT, RankSpool, SpoolReader, Step, path_of
from unit.cases.refusal import refuses

pytestmark = pytest.mark.image

NAN = float("nan")


def step(number: int, device: float = 0.5) -> Step:
    return Step(*(float(number + i / 100) for i in range(len(Step._fields))))._replace(device=device)


def written(folder: Path, steps: int = 3, rank: int = 0) -> RankSpool:
    made = RankSpool(str(folder), rank)
    made.reserve(max(steps, 1))
    for number in range(steps):
        made.step(step(number))
    return made


def test_steps_come_back_as_they_were_written(tmp_path: Path) -> None:
    written(tmp_path, 3)
    assert SpoolReader(str(tmp_path), 0).steps() == [step(0), step(1), step(2)]
    assert os.path.getsize(path_of(str(tmp_path), 0, "steps")) == HEADER_SIZE + 3 * SLOT.size


def test_device_times_follow_later(tmp_path: Path) -> None:
    made = RankSpool(str(tmp_path), 0)
    made.reserve(2)
    made.step(step(0, NAN))
    made.step(step(1, NAN))
    assert math.isnan(SpoolReader(str(tmp_path), 0).steps()[1].device)
    made.update(1, device=1.0, first_collective=2.0, collective_wait=3.0)
    first, second = SpoolReader(str(tmp_path), 0).steps()
    assert math.isnan(first.device)
    assert second == step(1)._replace(device=1.0, first_collective=2.0, collective_wait=3.0)


def test_a_step_too_many_is_refused(tmp_path: Path) -> None:
    made = written(tmp_path, 2)
    with pytest.raises(IndexError):
        made.step(step(2))
    assert len(SpoolReader(str(tmp_path), 0).steps()) == 2
    empty = RankSpool(str(tmp_path), 1)
    with pytest.raises(IndexError):
        empty.step(step(0))


def test_the_header_is_the_heartbeat(tmp_path: Path) -> None:
    made, reader = RankSpool(str(tmp_path), 4), SpoolReader(str(tmp_path), 4)
    made.reserve(2)
    beats = [reader.progress()]
    made.phase("train", 10)
    beats.append(reader.progress())
    made.step(step(0))
    beats.append(reader.progress())
    made.phase("eval", 5)
    made.progress(2, 5)
    beats.append(reader.progress())
    assert [(p.phase, p.done, p.total, p.steps) for p in beats if p] == [
        ("launch", 0, 0, 0),
        ("train", 0, 10, 0),
        ("train", 1, 10, 1),
        ("eval", 2, 5, 1),
    ]
    assert math.isnan(beats[0].loss)
    assert beats[2].loss == step(0).loss
    assert len({p.beat for p in beats if p}) == len(beats)
    assert [f["name"] for f in reader.facts() if f["kind"] == "phase"] == ["train", "eval"]


def test_nothing_there_is_nothing_read(tmp_path: Path) -> None:
    reader = SpoolReader(str(tmp_path), 0)
    assert (reader.progress(), reader.steps(), reader.facts()) == (None, [], [])
    nowhere = SpoolReader(str(tmp_path / "missing"), 0)
    assert (nowhere.progress(), nowhere.steps(), nowhere.facts()) == (None, [], [])


@pytest.mark.parametrize(
    "content",
    [b"", b"FBSPOOL1", b"\0" * 200, b"garbage!" * 50, hashlib.sha512(b"noise").digest() * 6],
    ids=["empty", "magic", "zeros", "words", "noise"],
)
def test_a_file_that_is_no_spool_holds_no_steps(tmp_path: Path, content: bytes) -> None:
    Path(path_of(str(tmp_path), 0, "steps")).write_bytes(content)
    reader = SpoolReader(str(tmp_path), 0)
    assert (reader.progress(), reader.steps()) == (None, [])


@pytest.mark.parametrize(("cut", "left"), [(0, 3), (1, 2), (SLOT.size, 2), (SLOT.size + 1, 1), (3 * SLOT.size, 0)])
def test_a_truncated_file_gives_its_whole_steps(tmp_path: Path, cut: int, left: int) -> None:
    written(tmp_path, 3)
    path = path_of(str(tmp_path), 0, "steps")
    content = Path(path).read_bytes()
    (tmp_path / "moved").write_bytes(content[: len(content) - cut])
    os.replace(tmp_path / "moved", path)
    assert SpoolReader(str(tmp_path), 0).steps() == [step(i) for i in range(left)]


def test_facts_come_back_with_their_envelope(tmp_path: Path) -> None:
    made = RankSpool(str(tmp_path), 7)
    made.fact("workload", parameters=5, data={"name": "sst-2 ü"})
    (fact,) = SpoolReader(str(tmp_path), 7).facts()
    assert fact.pop("time") > 0
    assert fact == {"kind": "workload", "rank": 7, "parameters": 5, "data": {"name": "sst-2 ü"}}


def test_a_torn_last_fact_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    made = RankSpool(str(tmp_path), 0)
    made.fact("first")
    made.fact("second", text="ü" * 10)
    path = Path(path_of(str(tmp_path), 0, "facts"))
    whole = path.read_bytes()

    def kinds() -> list[str]:
        return [fact["kind"] for fact in SpoolReader(str(tmp_path), 0).facts()]

    assert kinds() == ["first", "second"]
    for cut in range(2, len(whole) - whole.index(b"\n") - 1):
        path.write_bytes(whole[:-cut])
        assert kinds() == ["first"], "cut %d bytes" % cut
    path.write_bytes(b'5\n"text"\n[]\n{}\n\xff\xfe\n\0\0\0\n' + whole)
    assert kinds() == ["first", "second"]


WRITER = """
import itertools, sys, time
from flagbench_cases.shared.spool import RankSpool, Step
spool = RankSpool(sys.argv[1], 2)
spool.reserve(1_000_000)
spool.phase("train", 1_000_000)
for number in itertools.count():
    spool.step(Step(*[float(number)] * len(Step._fields)))
    if number == 500:
        print("enough", flush=True)
    if number > 500:
        time.sleep(1e-4)  # so that the room lasts for minutes
"""


def test_a_killed_rank_leaves_every_step_it_finished(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as rank:
        try:
            assert rank.stdout.readline() == b"enough\n"
        finally:
            rank.send_signal(signal.SIGKILL)
    assert rank.returncode == -signal.SIGKILL
    assert Path(path_of(str(tmp_path), 2, "steps")).stat().st_size == spool.HEADER_SIZE + 1_000_000 * spool.SLOT.size
    reader = SpoolReader(str(tmp_path), 2)
    steps, found = reader.steps(), reader.progress()
    assert len(steps) > 500, found
    assert all(set(each) == {float(number)} for number, each in enumerate(steps))
    assert (found.phase, found.steps) == ("train", len(steps))
    assert [f["name"] for f in reader.facts()] == ["train"]


def test_a_full_disk_is_an_error_at_reserve(small_disk: Path) -> None:
    made = RankSpool(str(small_disk), 0)
    made.phase("data")
    with refuses(OSError) as caught:
        made.reserve(10_000)
    assert caught.value.errno == errno.ENOSPC
    assert SpoolReader(str(small_disk), 0).progress().phase == "data"


def test_the_files_of_another_nodes_rank_are_received_whole(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "node-1", tmp_path / "node-0"
    theirs.mkdir()
    ours.mkdir()
    made = written(theirs, 3, rank=9)
    made.fact("memory", peak=1)
    spool.receive(str(ours), 9, made.files())
    here, there = SpoolReader(str(ours), 9), SpoolReader(str(theirs), 9)
    assert here.steps() == there.steps() == [step(0), step(1), step(2)]
    assert here.facts() == there.facts()
    assert here.progress() == there.progress()


def test_a_record_may_end_in_every_phase(record_schema):
    phases = record_schema["$defs"]["Status"]["properties"]["phase"]["enum"]
    assert set(spool.PHASES) <= set(phases)
