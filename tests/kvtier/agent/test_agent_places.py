"""What stands where an agent was to make something: it is refused with the key, and nothing that is there is touched."""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_rig import agent_here, config_of

from kvtier.agent.config import parse_config
from kvtier.agent.host_room import shut_places, wrong_places
from kvtier.agent.places import CannotStart
from kvtier.control.grpc_control import GrpcControl
from kvtier.settings.address import AddressTaken, authority

Blocked = Callable[[Path, dict[str, Any]], str]


def file_as_socket(folder: Path, config: dict[str, Any]) -> str:
    config["socket"] = str(folder / "precious.txt")
    return r"^socket: \S+/precious\.txt is there and is no socket: choose another path, or remove it$"


def directory_as_socket(folder: Path, config: dict[str, Any]) -> str:
    config["socket"] = str(folder)
    return r"^socket: \S+ is there and is no socket"


def link_as_socket(folder: Path, config: dict[str, Any]) -> str:
    (folder / "link").symlink_to("nowhere")
    config["socket"] = str(folder / "link")
    return r"^socket: \S+/link is there and is no socket"


def socket_below_a_file(folder: Path, config: dict[str, Any]) -> str:
    config["socket"] = str(folder / "precious.txt" / "agent.sock")
    return r"^socket: \S+/precious\.txt is no directory"


def socket_of_too_many_bytes(folder: Path, config: dict[str, Any]) -> str:
    config["socket"] = str(folder / ("long" * 30))
    return r"^socket: \S+ has \d+ bytes, and the path of a Unix socket 107 at most: choose a shorter one$"


def file_as_ssd(folder: Path, config: dict[str, Any]) -> str:
    config["ssd"]["directory"] = str(folder / "precious.txt")
    return r"^ssd\.directory: \S+/precious\.txt"


def ssd_below_a_file(folder: Path, config: dict[str, Any]) -> str:
    config["ssd"]["directory"] = str(folder / "precious.txt" / "l4" / "a")
    return r"^ssd\.directory: \S+/precious\.txt"


BLOCKED = [
    file_as_socket,
    directory_as_socket,
    link_as_socket,
    socket_below_a_file,
    socket_of_too_many_bytes,
    file_as_ssd,
    ssd_below_a_file,
]


@pytest.fixture(params=BLOCKED, ids=lambda blocked: blocked.__name__)
def refused(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[dict[str, Any], str]:
    """A configuration, and how it is refused."""
    (tmp_path / "precious.txt").write_text("years of work")
    config = config_of(tmp_path, ssd={})
    return config, request.param(tmp_path, config)


def test_what_is_in_the_way_is_told_before_the_start(refused: tuple[dict[str, Any], str]) -> None:
    config, told = refused
    (fault,) = wrong_places(parse_config(config))
    assert re.search(told, fault), fault


async def test_what_is_in_the_way_stays_as_it_is(refused: tuple[dict[str, Any], str], tmp_path: Path) -> None:
    config, told = refused
    before = set(os.listdir(tmp_path))
    with pytest.raises(CannotStart, match=told):
        async with agent_here(config):
            pass
    assert (tmp_path / "precious.txt").read_text() == "years of work"
    assert set(os.listdir(tmp_path)) >= before


async def test_the_socket_of_an_agent_that_was_killed_is_no_obstacle(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(config["socket"])
    assert wrong_places(parse_config(config)) == []
    async with agent_here(config) as agent:
        assert stat.S_ISSOCK(os.stat(agent.config.socket).st_mode)
    assert "a.sock" not in os.listdir(tmp_path)


def test_folders_that_are_not_there_yet_are_no_fault(tmp_path: Path) -> None:
    config = config_of(tmp_path, ssd={"directory": str(tmp_path / "new" / "l4")}) | {"socket": str(tmp_path / "run" / "a.sock")}
    assert wrong_places(parse_config(config)) == shut_places(parse_config(config)) == []


def test_folders_that_others_own_are_warned_of(tmp_path: Path) -> None:
    config = config_of(tmp_path, ssd={"directory": "/sys/new/l4"}) | {"socket": "/proc/new/a.sock"}
    told = run_as_nobody(config)
    assert told == [
        "warning: socket: this user may not write to /proc",
        "warning: ssd.directory: this user may not write to /sys",
    ]


def run_as_nobody(config: dict[str, Any]) -> list[str]:
    """Root may write everywhere."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65_534)
    try:
        return shut_places(parse_config(config))
    finally:
        os.seteuid(was)


@pytest.mark.parametrize("section", ["listen", "control"])
async def test_a_port_is_one_agents(tmp_path: Path, section: str) -> None:
    """gRPC by itself would let both have it, and gateways would ask now one and now the other."""
    first = config_of(tmp_path, control={"host": "127.0.0.1"})
    async with agent_here(first) as agent:
        assert agent.control is not None
        port = agent.port if section == "listen" else agent.control.port
        second = config_of(tmp_path, node="b", control={"host": "127.0.0.1"}) | {section: {"host": "127.0.0.1", "port": port}}
        told = rf"^{section}\.port: cannot listen on 127\.0\.0\.1:{port} \(Address already in use\)$"
        with pytest.raises(AddressTaken, match=told):
            async with agent_here(second):
                pass


@pytest.mark.parametrize("section", ["listen", "control"])
@pytest.mark.parametrize("host", ["192.0.2.1", "a..b", "nowhere.invalid"])
async def test_a_host_that_is_not_here_is_told_by_its_key(tmp_path: Path, section: str, host: str) -> None:
    config = config_of(tmp_path) | {section: {"host": host}}
    with pytest.raises(AddressTaken, match=rf"^{section}\.host: cannot listen on {re.escape(host)}:0 \("):
        async with agent_here(config):
            pass


async def test_gateways_are_answered_over_ipv6(tmp_path: Path) -> None:
    async with agent_here(config_of(tmp_path, control={"host": "::1"})) as agent:
        assert agent.control is not None
        control = GrpcControl("a", authority("::1", agent.control.port), 5.0)
        assert (await control.report()).node == "a"
        await control.close()
