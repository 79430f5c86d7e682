"""Which table of ids a node has; what the tables do is tested side by side in tests/hip_ext."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kvtier.store import ids


def test_without_loadback_hip_pages_are_looked_up_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "native_module", lambda: None)
    assert isinstance(ids.make_ids(), ids.PortableIds)


def test_an_older_loadback_hip_does_as_well_and_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ids, "native_module", SimpleNamespace)
    assert isinstance(ids.make_ids(), ids.PortableIds)
    assert "build it anew" in caplog.text


def test_a_newer_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "native_module", lambda: SimpleNamespace(IdTable=lambda: "native"))
    assert ids.make_ids() == "native"
