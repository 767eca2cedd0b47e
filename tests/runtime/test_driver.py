"""What the CUDA driver is asked for."""

from __future__ import annotations

import pytest

from fusedsl.runtime import driver


@pytest.mark.parametrize("cluster", [1, 4, 16])
def test_clusters_are_asked_for(cluster: int) -> None:
    binary = driver.Binary(1, 256, 4096, True, False, (), {}, cluster=cluster)
    found = {a.id: [int(v) for v in a.value] for a in driver._attributes(binary)}
    early = driver._DEPENDENT_LAUNCH
    assert found.pop(early)[0] == 1
    if cluster == 1:
        assert not found
    else:
        # three dimensions of 32 bits each
        assert found == {driver._CLUSTER: [1 << 32 | cluster, 1] + [0] * 6}
