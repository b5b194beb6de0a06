"""Our catalog of SoCs against what the vendor's library says of each."""

from __future__ import annotations

import pytest

from openhtp.hw.catalog import catalog
from openhtp.vendor.worker import VendorProcess

pytestmark = pytest.mark.vendor


@pytest.mark.parametrize("name", catalog())
def test_a_soc_is_what_the_library_takes_it_for(name: str) -> None:
    soc = catalog()[name]
    with VendorProcess(soc=name, timeout_s=60) as process:
        device = process.info.devices[0]
    if device.soc_model is None:
        pytest.skip(f"the library does not describe model {soc.soc_model}")
    assert (device.soc_model, device.arch, device.vtcm_mb) == (soc.soc_model, soc.arch, soc.vtcm_mb)
