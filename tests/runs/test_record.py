import csv
import json

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


def test_without_files_the_text_is_the_record():
    record = Record({"cell": "linen_mtp"})
    record.add(ROWS[0])
    assert json.loads(record.text()) == {"cell": "linen_mtp", "steps": ROWS[:1]}
