"""Our catalog of SoCs against what the vendor's library says of each."""

from __future__ import annotations

import pytest

import openhtp as htp
from openhtp.hw.catalog import catalog

pytestmark = pytest.mark.vendor


@pytest.mark.parametrize("name", catalog())
def test_a_soc_is_what_the_library_takes_it_for(name: str) -> None:
    soc = catalog()[name]
    with htp.Backend(library="vendor") as backend:
        try:
            device = backend.create_device(soc=name)
        except htp.UnsupportedFeature as error:
            pytest.skip(error.message)
        chip = device.info()["platform"][0]
    assert (chip["soc_model"], chip["arch"], chip["vtcm_mb"]) == (soc.soc_model, soc.arch, soc.vtcm_mb)
