"""Tests of the table of trials: records are added up, and the new table replaces the old one on its page."""

import pytest

from tests.trials import record, table


def test_recorded_trials_are_added_up_by_kind(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_OUT", str(tmp_path / "counts"))
    record.record("kill", 500)
    record.record("bit flip", 60, 1)
    record.record("bit flip", 40)
    rows = table.read((tmp_path / "counts").read_text().splitlines())
    shown = table.markdown(rows)
    assert shown.endswith("| bit flip | 100 | 1 |\n| kill | 500 | 0 |")
    page = table.within(table.within(table.PAGE.read_text(), "| old |"), shown)
    assert shown in page
    assert "| old |" not in page
    assert page.endswith(table.PAGE.read_text().partition(table.END)[2])


def test_a_run_of_some_trials_keeps_the_rows_of_the_others():
    before = [{"kind": "dice", "count": 6, "bad": 1}, {"kind": "coins", "count": 2, "bad": 0}]
    rows = [{"kind": "dice", "count": 600, "bad": 0}]
    assert table.joined(before, rows) == [before[1], rows[0]]
