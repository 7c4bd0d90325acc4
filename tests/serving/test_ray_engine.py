"""The coder on a Ray cluster of two workers says what it says here."""

import json
import os
import subprocess
import sys

import pytest

from nosology.core import ConfigError
from nosology.serving.coder import Coder
from tests.conftest import small_notes

# A process of its own: Ray's threads and its log handlers would outlive a test.
PROGRAM = """
import json, sys
from nosology.core import Note
from nosology.serving.ray_engine import code_on_ray
notes = [Note(**row, extra={"age": 4} if row["id"] == "n3" else {}) for row in map(json.loads, sys.stdin)]
for note_id, codes in code_on_ray(notes, bundle=sys.argv[1], top=3, workers=2):
    print(json.dumps([note_id, json.loads(codes)]))
"""


@pytest.mark.timeout(180)
def test_two_workers_give_the_same_in_the_same_order(small_bundle):
    notes = small_notes(150, seed=3)
    lines = "\n".join(json.dumps({"id": note.id, "text": note.text}) for note in notes)
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(small_bundle)],
        input=lines,
        capture_output=True,
        text=True,
        env={**os.environ, "RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"},
        timeout=170,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("[")]
    assert [note_id for note_id, _ in found] == [note.id for note in notes]
    coder = Coder.load(small_bundle)
    for (_, codes), suggestions in zip(found, coder.code_all((note.text for note in notes), 3)):
        assert codes == [json.loads(json.dumps(item.to_json())) for item in suggestions]


def test_the_engine_must_be_one_that_is_there(small_bundle, tmp_path):
    from nosology.cli.coder_commands import code

    (tmp_path / "n.txt").write_text("x")
    for engine, as_json in (("spark", True), ("ray", False)):
        with pytest.raises(ConfigError, match=rf"--engine must be local, or ray with --json.*got '{engine}'"):
            code(small_bundle, [str(tmp_path / "n.txt")], as_json=as_json, engine=engine)
