from __future__ import annotations

import pytest

from openhtp.core.errors import InvalidArgument
from openhtp.core.units import KIB, MIB
from openhtp.hw.catalog import catalog, find_soc


def test_every_entry_is_sensible():
    assert len(catalog()) >= 30
    for soc in catalog().values():
        assert 68 <= soc.arch <= 99
        assert soc.vtcm_mb in (2, 4, 8, 12, 16)
        assert 1 <= soc.hvx <= 8
        assert 1 <= soc.hmx <= 2
        assert soc.cores in (1, 2)
        assert soc.soc_model > 0
        fields = {"arch", "vtcm_mb", "hvx", "hmx", "cores"}
        assert set(soc.estimated) <= fields


@pytest.mark.parametrize("name", ["SM8650", "sm8650", "Snapdragon 8 Gen 3", 57, "57"])
def test_a_soc_has_several_names(name):
    soc = find_soc(name)
    assert (soc.name, soc.arch_name, soc.vtcm_bytes, soc.hvx, soc.hmx) == ("SM8650", "v75", 8 * MIB, 4, 1)


def test_an_unknown_soc_names_its_neighbours():
    with pytest.raises(InvalidArgument, match="SM8650"):
        find_soc("SM8651")
    with pytest.raises(InvalidArgument):
        find_soc("toaster")


@pytest.mark.parametrize(
    ("name", "sharing", "windowing", "granule"),
    [
        ("SM8350", False, False, MIB),
        ("SM8550", True, False, MIB),
        ("SM8750", True, True, MIB),
        ("SM8850", True, True, 64 * KIB),
    ],
)
def test_features_follow_the_architecture(name, sharing, windowing, granule):
    soc = find_soc(name)
    assert soc.has_vtcm_sharing is sharing
    assert soc.may_have_vtcm_windowing is windowing
    assert soc.vtcm_granule_bytes == granule
    assert soc.dma_gbs > 0


def test_how_many_sessions_a_program_has_depends_on_the_chip():
    assert {name: find_soc(name).process_domains for name in ("SM8350", "SM8450", "SM8550", "SM8650")} == {
        "SM8350": 1,
        "SM8450": 1,
        "SM8550": 4,
        "SM8650": 4,
    }
