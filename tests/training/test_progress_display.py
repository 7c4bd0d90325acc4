"""Progress shows small speeds, and a line every 30 seconds."""

from __future__ import annotations

import pytest

from nosology.training.progress_display import ProgressDisplay


@pytest.mark.parametrize(("speed", "shown"), [(0.214, "0.21 notes/s"), (12.6, "13 notes/s"), (1234.5, "1,234 notes/s")])
def test_progress_does_not_round_a_small_speed_to_zero(speed, shown, capsys):
    ProgressDisplay("tiny", 1, 10, 0).end_epoch(0, 10, 0.5, {}, speed)
    assert f"  {shown}  " in capsys.readouterr().err


def test_long_epoch_prints_a_line_every_30_seconds(monkeypatch, capsys):
    now = [1000.0]
    monkeypatch.setattr("nosology.training.progress_display.time.monotonic", lambda: now[0])
    display = ProgressDisplay("tiny", 2, 100, 0)
    for step in range(1, 11):
        now[0] += 10
        display.update(0, step, 0.5, 20.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("tiny: epoch 1/2, step 3 of 100  loss 0.5  20 notes/s  0:16:10 left, until ")
    assert [line.split("  ")[0].split(", ")[1] for line in lines] == [f"step {step} of 100" for step in (3, 6, 9)]
    display.end_epoch(0, 10, 0.5, {}, 20.0)
    now[0] += 20
    display.update(1, 12, 0.5, 20.0)
    assert len(capsys.readouterr().err.splitlines()) == 1, "the line of the epoch counts"
    silent = ProgressDisplay("tiny", 2, 100, 0, silent=True)
    now[0] += 60
    silent.update(1, 12, 0.5, 20.0)
    assert capsys.readouterr().err == ""
