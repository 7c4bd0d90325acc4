"""curves.csv and TensorBoard files are cut on resume."""

from __future__ import annotations

import csv
import time

import pytest

from nosology.core import DataError
from nosology.training.curves import COLUMNS, TrainingCurves


def read_rows(folder) -> list[dict[str, str]]:
    with (folder / "curves.csv").open() as file:
        return list(csv.DictReader(file))


def add(curves: TrainingCurves, step: int, **metrics: float) -> None:
    curves.add({"step": step, "epoch": 1, "loss": 1 / step, "learning_rate": 0.1, "notes_per_second": 5.0} | metrics)


def test_curves_are_cut_at_the_step_of_a_resumed_run(tmp_path):
    curves = TrainingCurves(tmp_path)
    for step in range(1, 13):
        add(curves, step, **({"map": 0.5} if step == 4 else {}))
    curves.close()
    complete = (tmp_path / "curves.csv").read_text()
    with (tmp_path / "curves.csv").open("a") as file:
        file.write("13,1,0.0")  # an incomplete row
    curves = TrainingCurves(tmp_path, step=6)
    assert [row["step"] for row in read_rows(tmp_path)] == ["1", "2", "3", "4", "5", "6"]
    for step in range(7, 13):
        add(curves, step)
    curves.close()
    assert (tmp_path / "curves.csv").read_text() == complete
    assert [row["map"] for row in read_rows(tmp_path)] == [""] * 3 + ["0.5"] + [""] * 8
    TrainingCurves(tmp_path).close()
    assert read_rows(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\xff\xfe"])
def test_another_file_named_curves_is_an_error(tmp_path, content):
    (tmp_path / "curves.csv").write_bytes(content)
    with pytest.raises(DataError, match=r"curves.csv must start with the columns .*; delete it"):
        TrainingCurves(tmp_path, step=6)


def test_tensorboard_has_no_steps_that_were_cut(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = TrainingCurves(tmp_path)
    for step in range(1, 6):
        add(first, step, map=0.1)
    first.close()
    started = int(time.time())
    while int(time.time()) == started:  # TensorBoard orders files by the second
        time.sleep(0.05)
    second = TrainingCurves(tmp_path, step=3)
    add(second, 4, map=0.2)
    second.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    names = ["dev/map", "train/learning_rate", "train/loss", "train/notes_per_second"]
    assert sorted(events.Tags()["scalars"]) == names
    values = [(event.step, round(event.value, 3)) for event in events.Scalars("dev/map")]
    assert values == [(1, 0.1), (2, 0.1), (3, 0.1), (4, 0.2)]


def test_curves_with_endless_fields_are_read_or_refused(tmp_path, default_field_limit):
    header = ",".join(COLUMNS)
    (tmp_path / "curves.csv").write_text(f"{header}\n{'9' * 5000},0,0,0,0\n1,0,0,0,0\n")
    TrainingCurves(tmp_path, step=6).close()
    assert (tmp_path / "curves.csv").read_text() == f"{header}\n1,0,0,0,0\n"
    (tmp_path / "curves.csv").write_text(f'{header}\n"{"x" * 200_000}')
    with pytest.raises(DataError, match=r"curves\.csv is damaged; delete it"):
        TrainingCurves(tmp_path, step=6)
