"""The committed modules are what `scripts/protos` makes of the .proto files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTOS = sorted((ROOT / "kvtier").glob("*/*.proto"))


@pytest.mark.slow
@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.name)
def test_the_module_is_made_of_its_proto(proto: Path, tmp_path: Path) -> None:
    inside = proto.relative_to(ROOT)
    options = ["-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", str(inside)]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options], cwd=ROOT, check=True, timeout=60)
    for suffix in (".py", ".pyi"):
        made = inside.with_name(f"{inside.stem}_pb2{suffix}")
        assert (ROOT / made).read_text() == (tmp_path / made).read_text(), "run scripts/protos"
