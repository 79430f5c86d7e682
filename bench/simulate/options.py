"""The options that commands of `loadback sim` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from costmodel.roofline import DataType


def known_type(name: str) -> DataType:
    if name not in set(DataType):
        raise typer.BadParameter(f"{name!r} is none of {', '.join(DataType)}")
    return DataType(name)


Prefetch = Annotated[
    str, typer.Option(help="on, off, or the one trigger that is on, separated by commas: one policy with a shared pool.")
]
OnePolicy = Annotated[str, typer.Option(help="The policy that places turns.")]
Configs = Annotated[str, typer.Option(help="Configurations of the experiment, separated by commas.")]
Policies = Annotated[str, typer.Option(help="Names separated by commas, or all.")]
Seed = Annotated[int, typer.Option(help="Of clients, beliefs and lots.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")]
Jobs = Annotated[int, typer.Option(min=0, help="Policies simulated at once; 0 = one a core.")]
Topology = Annotated[str, typer.Option(help="1P2D, or 8U for unified workers.")]
Hardware = Annotated[str, typer.Option(help="A file of configs/hardware, or a path.")]
Model = Annotated[str, typer.Option(help="A file of configs/models, or a path.")]
Weights = Annotated[
    DataType | None,
    typer.Option(
        help="What the weights are in, for a --model that has others.", parser=known_type, metavar=f"[{'|'.join(DataType)}]"
    ),
]
Horizon = Annotated[
    float,
    typer.Option(
        min=0,
        help="Virtual seconds in which calls are sent; 0 = the experiment's own. Above the warm-up (600; mooncake 120).",
    ),
]
HostGb = Annotated[float | None, typer.Option(min=0, help="L2 in GB of DRAM an accelerator.")]
Drain = Annotated[float | None, typer.Option(min=0, max=1, help="Share of calls whose last worker is not to be had.")]
Trace = Annotated[Path | None, typer.Option(help="A trace of your own in the shipped one's format.")]
Mfu = Annotated[float, typer.Option(min=0, max=1, help="Share of peak compute that prefill reaches; 0 = the frozen value.")]
Out = Annotated[
    Path | None, typer.Option(help="A folder for Parquet, plots and a page of all; needs the extra loadback\\[sim].")
]
Cost = Annotated[str, typer.Option(help="Guards of the cost policy, as in switch_margin_ms=0,displacement_weight=1.")]
Hindsight = Annotated[
    float, typer.Option(min=0, max=1, help="Share of turns for which every other choice is tried, to tell regret in hindsight.")
]
Assume = Annotated[
    str,
    typer.Option(
        help="As in prior_error=0,load_poll_ms=100. Lags: event_lag_ms, load_poll_ms, load_lag_ms; first beliefs: prior_error; "
        "pauses: resume_gap_s, gap_factor; how long turns wait for another worker: hold_ms; engines that read "
        "their own node's share of L3 alone: own_node=1."
    ),
]
