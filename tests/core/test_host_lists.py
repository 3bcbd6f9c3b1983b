"""Lists of hosts in SLURM's short form."""

import pytest

from samestep.core.errors import UserError
from samestep.core.host_lists import expand_hosts


def test_host_lists_are_expanded() -> None:
    assert expand_hosts("a") == ["a"]
    assert expand_hosts("n[1-3]") == ["n1", "n2", "n3"]
    assert expand_hosts("n[08-10,12],m7,k[1-2]x") == ["n08", "n09", "n10", "n12", "m7", "k1x", "k2x"]
    assert expand_hosts("r[1-2]n[3-4]") == ["r1n3", "r1n4", "r2n3", "r2n4"]


@pytest.mark.parametrize("text", ["n[a-b]", "n[1-]x[", "n[]"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not a list of hosts; write it like node1,node2"):
        expand_hosts(text)
