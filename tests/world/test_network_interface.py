"""The interface that gloo uses when a host's own name does not resolve to an address that others can reach."""

import socket
from pathlib import Path

import pytest

from samestep.world import network_interface


def test_every_interface_is_found_by_its_address() -> None:
    assert network_interface.interfaces()["127.0.0.1"] == "lo"
    names = {path.name for path in Path("/sys/class/net").iterdir()}
    assert set(network_interface.interfaces().values()) <= names


def test_routes() -> None:
    assert network_interface.route_to("127.0.0.1") == "127.0.0.1"
    assert network_interface.route_to("no.such.host.invalid") == ""


@pytest.mark.parametrize(
    ("name_resolves_to", "to_master", "to_other", "given", "expected"),
    [
        ("127.0.1.1", "10.0.0.5", "", "", "eth7"),  # the route to the master is known
        ("", "10.0.0.5", "", "", "eth7"),
        ("127.0.1.1", "127.0.1.1", "10.0.0.5", "", "eth7"),  # on the master's own host
        ("10.0.0.9", "10.0.0.5", "", "", ""),  # gloo will find it by itself
        ("127.0.1.1", "10.0.0.5", "", "ib0", "ib0"),  # the user's choice stands
        ("127.0.1.1", "192.0.2.1", "", "", ""),  # an address that no interface has
        ("127.0.1.1", "127.0.1.1", "127.0.0.1", "", ""),  # all hosts are one
    ],
)
def test_the_interface_that_leads_to_the_other_hosts_is_chosen(
    name_resolves_to: str, to_master: str, to_other: str, given: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_interface, "interfaces", lambda: {"127.0.0.1": "lo", "10.0.0.5": "eth7"})
    monkeypatch.setattr(network_interface, "route_from_name", lambda: name_resolves_to)
    monkeypatch.setattr(network_interface, "route_to", {"master": to_master, "other": to_other}.__getitem__)
    env, published = {network_interface.VARIABLE: given} if given else {}, []
    network_interface.choose_interface("master", published.append, lambda: "other", env)
    assert env.get(network_interface.VARIABLE, "") == expected
    assert published == [to_master]


def test_a_name_that_is_not_of_this_host_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "192.0.2.1")
    assert network_interface.route_from_name() == ""
