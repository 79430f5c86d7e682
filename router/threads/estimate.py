"""How many tokens canonical bytes will be, and how many a reply will have, learned from what engines report."""

from __future__ import annotations

import msgspec

from router.body.recency import RecentMap

_PLAUSIBLE = (1 / 64, 2.0)  # tokens per byte
_WEIGHT = 0.1  # of one more report in a model's averages
_THREAD_WEIGHT = 0.3
_MODELS = 1024


class Rates(msgspec.Struct, eq=False):
    """One model's averages, shared by its threads, which keep their own once they have been measured (`blend`)."""

    tokens_per_byte: float = 0.25  # until measured: four bytes a token
    output_tokens: float = 256.0
    prompts: int = 0  # reports taken in
    outputs: int = 0

    def learn_prompt(self, size: int, prompt_tokens: int) -> float:
        """Take in one report and return its tokens per byte, within what is plausible."""
        low, high = _PLAUSIBLE
        ratio = min(max(prompt_tokens / max(size, 1), low), high)
        self.prompts += 1
        self.tokens_per_byte += max(_WEIGHT, 1 / self.prompts) * (ratio - self.tokens_per_byte)
        return ratio

    def learn_output(self, tokens: int) -> None:
        self.outputs += 1
        self.output_tokens = max(self.output_tokens + max(_WEIGHT, 1 / self.outputs) * (tokens - self.output_tokens), 1.0)


class Estimator:
    """Rates by model name; the names come from clients, so their number is bounded."""

    def __init__(self) -> None:
        self._models: RecentMap[str, Rates] = RecentMap(_MODELS)

    def of(self, model: str) -> Rates:
        rates = self._models.get(model)
        if rates is None:
            rates = Rates()
            self._models.put(model, rates)
        return rates


def blend(average: float, tokens: int) -> float:
    """A thread's moving average of output tokens with one more reply; 0 stands for none yet."""
    return max(average + _THREAD_WEIGHT * (tokens - average) if average else float(tokens), 1.0)
