"""Prometheus text as engines serve it on `/metrics`: a thin reading layer over prometheus_client's parser. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from engine_adapters.base import AdapterError
from engine_adapters.counts import rank_of


class Sample(NamedTuple):
    labels: Mapping[str, str]
    value: float


class Metrics:
    """The samples of the named series of one scrape. Histogram buckets and unasked series are not kept."""

    def __init__(self, text: str, wanted: frozenset[str], origin: str) -> None:
        self._series: dict[str, list[Sample]] = {}
        lines = [line for line in text.splitlines() if _series_of(line) in wanted]
        try:
            for family in text_string_to_metric_families("\n".join(lines) + "\n"):
                for sample in family.samples:
                    self._series.setdefault(sample.name, []).append(Sample(sample.labels, sample.value))
        except ValueError as error:
            raise AdapterError(f"{origin} is not Prometheus text: {error}") from error

    def samples(self, name: str) -> list[Sample]:
        return self._series.get(name, [])

    def by_rank(self, name: str, label: str) -> dict[int, float]:
        """A gauge per data-parallel rank; without that label it is rank 0's. Tensor-parallel ranks repeat it: the largest.

        What is no finite number or of no rank is left out.
        """
        gauges: dict[int, float] = {}
        for sample in self.samples(name):
            rank = rank_of(sample.labels.get(label))
            if rank is None or not -math.inf < sample.value < math.inf:
                continue
            gauges[rank] = max(gauges.get(rank, sample.value), sample.value)
        return gauges


def _series_of(line: str) -> str:
    cut = min((at for at in (line.find("{"), line.find(" ")) if at >= 0), default=len(line))
    return line[:cut]
