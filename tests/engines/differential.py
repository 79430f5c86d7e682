"""One list of wire probes, put to real SGLang and to the emulator; what differs is a fault or stands in `EXCEPTIONS`.

As a script it starts both, prints every difference and which of them is excepted, and ends with 1 if any is not:
`python tests/engines/differential.py [PROBE…]`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from observation import Observation
from probes import PROBES
from stage import Stage, emulated_stage, real_stage

ROOT = Path(__file__).parents[2]
MODEL_DIR = ROOT / "configs" / "models" / "tiny-agent"
ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Difference:
    probe: str
    path: str
    real: object
    emulated: object

    def __str__(self) -> str:
        return f"{self.probe}: {self.path}\n    real     {self.real}\n    emulated {self.emulated}"


@dataclass(frozen=True, slots=True)
class Excepted:
    """A difference that is known and accepted. Patterns are those of a shell."""

    probes: str
    paths: str
    since: str
    why: str

    def covers(self, difference: Difference) -> bool:
        return fnmatchcase(difference.probe, self.probes) and fnmatchcase(difference.path, self.paths)


EXCEPTIONS: tuple[Excepted, ...] = (
    Excepted("*", "*header.x-loadback-emulator", "2026-11-30", "the emulator names itself in every reply"),
    Excepted("*", "*body.metadata.engine", "2026-11-30", "the emulator names itself in every reply"),
    Excepted("*messages*", "*body.engine", "2026-11-30", "the emulator names itself in every reply"),
    Excepted("control", "/model_info.body.engine", "2026-11-30", "the emulator names itself in every reply"),
    Excepted("control", "/model_info.body.embedding.*", "2026-11-30", "facts about embedding models: nothing asks for them"),
    Excepted("control", "/route.header.server", "2026-11-30", "SGLang's bootstrap server is another HTTP library's"),
    Excepted("refusals *", "*.message", "2026-11-30", "pydantic's and FastAPI's own words, with names of files"),
    Excepted("tools*", "decode.usage.*", "2026-11-30", "the model's own words between its tool calls"),
    Excepted(
        "[df]*",  # "decode had more" and "flush"
        "prefill.load.tells_transfer",
        "2026-11-30",
        "SGLang zeroes the last transfer's figures with a flush, and tells some even where decode already had every page",
    ),
    Excepted(
        "n = 2",
        "prefill.usage.prompt_tokens_details.cached_tokens",
        "2026-11-30",
        "SGLang computes the prompt of several samples once beforehand; the gateway never sends a pair more than one sample",
    ),
)


def compare(probe: str, real: Observation, emulated: Observation) -> list[Difference]:
    """All paths on which the two differ, in the order in which the real engine told them."""
    paths = dict.fromkeys([*real, *emulated])
    pairs = ((path, real.get(path, ABSENT), emulated.get(path, ABSENT)) for path in paths)
    return [Difference(probe, path, one, other) for path, one, other in pairs if one != other]


def unexplained(differences: Iterable[Difference]) -> list[Difference]:
    return [found for found in differences if not any(exception.covers(found) for exception in EXCEPTIONS)]


async def observe(stage: Stage, probe: str) -> Observation:
    await stage.fresh()
    return await PROBES[probe](stage)


async def main(chosen: list[str]) -> int:
    names = [name for name in PROBES if not chosen or any(fnmatchcase(name, pattern) for pattern in chosen)]
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        async with real_stage(MODEL_DIR, Path(folder)) as real, emulated_stage(MODEL_DIR, Path(folder)) as emulated:
            for name in names:
                found = compare(name, await observe(real, name), await observe(emulated, name))
                new = unexplained(found)
                faults += len(new)
                print(f"{name}: {len(found)} differences, {len(new)} not excepted", flush=True)
                for difference in new:
                    print(difference, flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
