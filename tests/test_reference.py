import json

from nnxlab import reference


def test_the_numbers_read_off_maxtext_are_complete():
    assert reference.SMALL_DUMP.exists() and reference.SMALL_DUMP.with_suffix(".json").exists()
    table = reference.scan_axis_tiny()
    assert len(table["table"]) == table["variables"] == 32
    assert "fixed nnx_mtp, 20 steps" in reference.maxtext_runs()["full"]


def test_nothing_of_it_names_a_machine():
    for path in reference.SMALL_DUMP.parent.glob("*.json"):
        text = json.dumps(json.loads(path.read_text()))
        assert not [part for part in ("/home/", "/Users/", "/tmp/") if part in text]
