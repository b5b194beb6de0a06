"""Points on disk: whose they are, and what becomes of them when the disk is full."""

from __future__ import annotations

import pytest

from openhtp.sweeping import BadStudy, StoreError, WrongStore, load_results, load_study, store
from openhtp.sweeping.store import FILE, Store
from openhtp.sweeping.study import PointResult, StudyPoint
from tests.sweeping.studies import estimates

STUDY = load_study(estimates())


def row(number, error=None):
    measured = None if error else {"latency_us": 1.5 * number, "energy_class": 3}
    values = {"model": "zoo:tiny_mlp", "soc": "SM8650", "precision": "float", "vtcm_mb": number}
    return PointResult(StudyPoint(number, values), measured, error)


def test_rows_come_back_in_order_and_once(tmp_path):
    with Store(tmp_path) as kept:
        kept.claim(STUDY)
        kept.add([row(7), row(2, "it broke")])
        kept.add([row(7), row(1)])
        assert kept.numbers() == {1, 2, 7}
    with Store(tmp_path) as kept:
        kept.claim(STUDY)
        assert list(kept.rows()) == [row(1), row(2, "it broke"), row(7)]
        assert kept.find(row(7).point.key) == row(7)
        assert kept.find("{}") is None
        assert kept.forget_failed() == 1
        assert kept.numbers() == {1, 7}


def test_a_store_of_another_study(tmp_path):
    with Store(tmp_path) as kept:
        kept.claim(STUDY)
        kept.add([row(1)])
        with pytest.raises(
            WrongStore, match=r"holds another study, 'study' \(1 points\): this one differs in axes"
        ):
            kept.claim(load_study(estimates(axes=estimates()["axes"] | {"vtcm_mb": [1, 2]})))
        assert kept.numbers() == {1}


def test_what_is_wanted_of_the_points_may_change(tmp_path):
    with Store(tmp_path) as kept:
        kept.claim(STUDY)
        kept.claim(load_study(estimates(objectives={"high_us": "min"})))
        assert kept.study().objectives[0].name == "high_us"


def test_a_store_of_another_openhtp(tmp_path, monkeypatch):
    with Store(tmp_path) as kept:
        kept.claim(STUDY)
        monkeypatch.setattr(store, "identity", lambda: "9.9.9+12345678")
        with pytest.raises(WrongStore, match=r"begun by OpenHTP .*, this is 9\.9\.9\+12345678"):
            kept.claim(STUDY)


def test_one_driver_writes(tmp_path):
    with Store(tmp_path) as kept:
        kept.claim(STUDY)
        with pytest.raises(WrongStore, match="another sweep is writing"):
            Store(tmp_path)
        assert load_results(tmp_path).rows == []
    Store(tmp_path).close()


def test_a_full_disk_costs_nothing_that_was_finished(tmp_path):
    with Store(tmp_path) as kept:
        kept.claim(STUDY)
        kept.add([row(number) for number in range(10)])
        pages = kept.database.execute("PRAGMA page_count").fetchone()[0]
        kept.database.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(StoreError, match=r"disk is full.*make room and run"):
            kept.add([row(number) for number in range(10, 5000)])
        assert kept.numbers() == set(range(10))
        kept.database.execute("PRAGMA max_page_count=1000000")
        kept.add([row(10)])
    assert len(load_results(tmp_path).rows) == 11


def test_what_is_no_store(tmp_path):
    with pytest.raises(WrongStore, match="is no store of a sweep"):
        load_results(tmp_path)
    (tmp_path / FILE).write_text("not a database, but long enough to be taken for one" * 20)
    with pytest.raises(WrongStore, match="cannot be read"):
        load_results(tmp_path)


def test_a_study_that_cannot_be_read(tmp_path):
    with Store(tmp_path) as kept:
        kept.claim(STUDY)
        kept.database.execute("UPDATE about SET value = '{}' WHERE name = 'study'")
    with pytest.raises(BadStudy, match="the study in it cannot be read"):
        load_results(tmp_path)
