"""Tests of the native package run where it is built (scripts/test builds it where there is a C++ compiler); what it shares with
the portable way runs everywhere, for whatever is there."""

from __future__ import annotations

import pytest

from kvtier.copy.base import PageCopies
from kvtier.copy.files import FileTransfers, PortableTransfers
from kvtier.copy.native import NativeCopies, NativeTransfers, native_module
from kvtier.copy.portable import PortableCopies

native = native_module()
collect_ignore_glob = [] if native else ["native_only/*"]
WAYS = ["portable", *([f"{isa}-{threads}" for isa in native.isas() for threads in (1, 3)] if native else [])]

FILE_WAYS = ["portable", *(["uring", "threads"] if native else [])]


def pytest_report_header() -> str:
    return "loadback-hip: " + ("installed" if native else "not installed, portable copies alone are tested")


@pytest.fixture(scope="session", params=WAYS)
def copies(request: pytest.FixtureRequest) -> PageCopies:
    if request.param == "portable":
        return PortableCopies()
    assert native is not None
    isa, threads = request.param.split("-")
    return NativeCopies(native.PageCopier(int(threads), isa))


@pytest.fixture(scope="session", params=FILE_WAYS)
def transfers(request: pytest.FixtureRequest) -> FileTransfers:
    if request.param == "portable":
        return PortableTransfers()
    assert native is not None
    return NativeTransfers(native.FileTransfers(depth=8, threads=3, way=request.param))
