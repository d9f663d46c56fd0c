import csv
import json

import pytest

from nnxlab.runs.record import Record

ROWS = [{"step": 0, "loss": 2.0}, {"step": 1, "loss": 1.5}]


def test_every_step_is_on_disk_as_soon_as_it_is_added(tmp_path):
    record = Record({"cell": "nnx_mtp"}, tmp_path / "run.json", tmp_path / "run.csv")
    for count, row in enumerate(ROWS, 1):
        record.add(row)
        stored = json.loads((tmp_path / "run.json").read_text())
        assert stored == {"cell": "nnx_mtp", "steps": ROWS[:count]}
        with (tmp_path / "run.csv").open() as file:
            assert [float(line["loss"]) for line in csv.DictReader(file)] == [
                row["loss"] for row in ROWS[:count]
            ]
    record.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.csv", "run.json"]


def test_a_resumed_run_goes_on_in_its_files(tmp_path):
    files = tmp_path / "run.json", tmp_path / "run.csv"
    first = Record({}, *files)
    for row in [*ROWS, {"step": 2, "loss": 9.0}]:
        first.add(row)
    first.close()
    resumed = Record({}, *files, resumed_at=2)  # the last save was before step 2
    assert len(files[1].read_text().splitlines()) == 4  # and nothing is lost before there is more
    resumed.add({"step": 2, "loss": 1.25})
    resumed.close()
    assert [row["loss"] for row in json.loads(files[0].read_text())["steps"]] == [2.0, 1.5, 1.25]
    assert files[1].read_text() == "step,loss\n0,2.0\n1,1.5\n2,1.25\n"
    assert [row["step"] for row in json.loads(resumed.text())["steps"]] == [2]


@pytest.mark.parametrize("text", ["", "no record", "a,b\n1,2\n"])
def test_a_file_that_is_no_record_is_not_written_over_on_resuming(tmp_path, text):
    path = tmp_path / "notes.csv"
    path.write_text(text)
    for files in ((None, path), (path, None)):
        if text or files[0]:
            with pytest.raises(ValueError, match="notes.csv is no record of a run"):
                Record({}, *files, resumed_at=1)
    assert path.read_text() == text


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path):
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "run.csv")
    record = Record({}, None, link)
    record.add(ROWS[0])
    record.close()
    assert link.is_symlink() and (tmp_path / "run.csv").read_text() == "step,loss\n0,2.0\n"


def test_one_file_for_both_is_refused(tmp_path):
    with pytest.raises(ValueError, match="name two files"):
        Record({}, tmp_path / "same", tmp_path / "same")


def test_without_files_the_text_is_the_record():
    record = Record({"cell": "linen_mtp"})
    record.add(ROWS[0])
    assert json.loads(record.text()) == {"cell": "linen_mtp", "steps": ROWS[:1]}
