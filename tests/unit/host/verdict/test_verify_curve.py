"""Loss curves from records, new and old, and from published files."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from flagbench.records.model import Losses, Quality, Record, Work
from flagbench.records.read import read_record
from flagbench.verdict.curve import Curve, CurveError, is_record, of_file, of_record
from flagbench_core.exit_codes import ExitCode

from .conftest import BASE, REPLAYS, ROWS, edit


def of_text(text: str, name: str = "curve.csv") -> Curve:
    return of_file(text.encode("utf-8"), name)


def with_losses(record: Record = BASE, **changes: Any) -> Record:
    return replace(record, quality=replace(record.quality or Quality(()), **changes))


# Records


def test_the_steps_of_a_record_are_counted_from_one() -> None:
    found = of_record(with_losses(losses=Losses(0, 3, (2.5, None, 1))))
    assert dict(found.losses) == {1: 2.5, 2: None, 3: 1}
    assert (found.name, found.cut) == (BASE.record_id, 0)
    resumed = of_record(with_losses(losses=Losses(40, 2, (2.5, 1.5))))
    assert list(resumed.losses) == [41, 42]


def test_losses_that_a_long_run_does_not_have_are_counted() -> None:
    values = (2.5,) * 24_000
    assert of_record(with_losses(losses=Losses(0, 24_008, values))).cut == 8


@pytest.mark.parametrize(("steps", "losses"), [(23_999, 24_000), (24_008, 23_999), (1, 2)])
def test_losses_that_do_not_fit_the_steps_are_refused(steps: int, losses: int) -> None:
    with pytest.raises(CurveError):
        of_record(with_losses(losses=Losses(0, steps, (2.5,) * losses)))


def test_the_complete_curve_of_an_old_record_is_used() -> None:
    record = read_record(ROWS / "run-distilbert-1.json")
    found = of_record(record)
    assert list(found.losses) == list(range(1, 51))
    assert found.losses[1] == record.quality.loss_curve[0][1]
    resumed = with_losses(record, resumed={"step": 100})
    assert list(of_record(resumed).losses) == list(range(101, 151))


@pytest.mark.parametrize(
    "curve",
    [
        ((0, 2.0), (2, 1.0)),  # thinned
        ((0, 2.0), (1, 1.5)),  # cut
        ((1, 2.0), (2, 1.5), (3, 1.0)),  # without a loss that was not finite
    ],
)
def test_an_incomplete_curve_of_an_old_record_is_refused(curve: Any) -> None:
    record = edit(work=Work("samples", 4, 32))
    with pytest.raises(CurveError) as caught:
        of_record(with_losses(record, loss_curve=curve))
    assert BASE.record_id in caught.value.message
    assert caught.value.code is ExitCode.DATA


def test_a_run_without_training_has_no_curve() -> None:
    record = edit(work=Work("samples", 2, 16), config={"infer": {}})
    for each in (
        edit(quality=None),
        with_losses(loss_curve=()),
        with_losses(losses=Losses(0, 0, ()), loss_curve=()),
        with_losses(record, loss_curve=((0, 2.0), (1, 1.0))),
    ):
        with pytest.raises(CurveError):
            of_record(each)


# Files


@pytest.mark.parametrize(
    "text",
    [
        "step,loss\n1,6.5\n2,6.25\n",
        "\ufeffStep, Loss \r\n1, 6.5\r\n\r\n2,6.25",
        "time,loss,step\n0.1,6.5,1\n0.2,6.25,2\n",
        '"step","loss"\n"1","6.5"\n"2","6.25"\n',
        '{"step": 1, "loss": 6.5}\n\n{"loss": 6.25, "step": 2, "rate": "\u8f6e"}\n',
        '\ufeff{"step": 1, "loss": 6.5}\r\n{"step": 2, "loss": 6.25}',
    ],
)
def test_csv_and_json_lines_are_the_same_curve(text: str) -> None:
    assert dict(of_text(text).losses) == {1: 6.5, 2: 6.25}
    assert not is_record(text.encode())


@pytest.mark.parametrize(
    "text",
    ["step,loss\n7,nan\n", "step,loss\n7,-Infinity\n", '{"step": 7, "loss": NaN}', '{"step": 7, "loss": -Infinity}'],
)
def test_a_loss_that_is_not_finite_is_kept_as_such(text: str) -> None:
    assert dict(of_text(text).losses) == {7: None}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "empty"),
        (b"step,loss\n", "no losses"),
        (b"1,6.5\n2,6.25\n", "line 1"),
        (b"step,loss,loss\n1,6.5,6\n", "line 1"),
        (b"step,loss\n1,6,5\n", "line 2"),  # a decimal comma
        (b"step,loss\n1,6.5\n1,6.5\n", "step 1 again"),
        (b"step,loss\n2,6.5\n1,6.5\n", "after step 2"),
        (b"step,loss\n0,6.5\n1,6.4\n", "counted from 1"),
        ("step,loss\n\u0661,6.5\n".encode(), "integer"),
        (b"step,loss\n1,1_0\n", "not a number"),
        (b"step,loss\n1,1e200\n", "not a number"),
        (b'{"step": 1, "loss": true}\n', "not a number"),
        (b'{"step": 1, "loss": 2, "loss": 3}\n{"step": 2, "loss": 2}\n', "line 1"),
        (b'{"step": 1, "loss": 2}\n{"step": 2}\n', "line 2"),
        (b'{"step": 1, "loss": 2}\n' + b"[" * 100_000 + b"\n", "line 2"),
        (b"step,loss\n1,\xff\n", "byte 12"),
        (b"step,loss\n1," + b"x" * 200_000 + b"\n", "not valid CSV"),
    ],
)
def test_a_file_that_is_no_curve_is_refused(content: bytes, named: str) -> None:
    with pytest.raises(CurveError) as caught:
        of_file(content, "curve.csv")
    assert caught.value.code is ExitCode.DATA
    assert named in caught.value.message
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 300


@settings(max_examples=200)
@given(st.one_of(st.binary(max_size=80), st.text('step,los\n10.-e{}":inf', max_size=80).map(str.encode)))
def test_any_bytes_are_a_curve_or_refused(content: bytes) -> None:
    try:
        found = of_file(content, "curve")
    except CurveError:
        return
    assert found.losses
    assert list(found.losses) == sorted(found.losses)
    assert all(loss is None or math.isfinite(loss) for loss in found.losses.values())


def test_a_record_is_told_from_a_curve() -> None:
    whole = (REPLAYS / "a100-1x8.json").read_bytes()
    assert is_record(whole)
    assert is_record(json.dumps(json.loads(whole), indent=2).encode())
    assert is_record(b"\xef\xbb\xbf {}")
    assert not is_record(b"")
