"""How many tokens canonical bytes will be, and how many a reply will have, learned from what engines report."""

from __future__ import annotations

from router.body.recency import RecentMap

_TOKENS_PER_BYTE = 0.25  # before anything was measured: four bytes a token
_OUTPUT_TOKENS = 256.0
_PLAUSIBLE = (1 / 64, 2.0)
_WEIGHT = 0.1  # of one more report in a model's averages
_THREAD_WEIGHT = 0.3
_MODELS = 1024


class Estimator:
    """Averages per model. Threads keep their own (`blend`) and fall back to these."""

    def __init__(self) -> None:
        self._tokens_per_byte: RecentMap[str, float] = RecentMap(_MODELS)
        self._output_tokens: RecentMap[str, float] = RecentMap(_MODELS)

    def tokens_per_byte(self, model: str) -> float:
        return self._tokens_per_byte.get(model) or _TOKENS_PER_BYTE

    def output_tokens(self, model: str) -> float:
        return self._output_tokens.get(model) or _OUTPUT_TOKENS

    def learn_prompt(self, model: str, size: int, prompt_tokens: int) -> float:
        """Take in one report and return its tokens per byte, within what is plausible."""
        low, high = _PLAUSIBLE
        ratio = min(max(prompt_tokens / max(size, 1), low), high)
        before = self._tokens_per_byte.get(model)
        self._tokens_per_byte.put(model, ratio if before is None else before + _WEIGHT * (ratio - before))
        return ratio

    def learn_output(self, model: str, tokens: int) -> None:
        before = self._output_tokens.get(model)
        self._output_tokens.put(model, max(float(tokens) if before is None else before + _WEIGHT * (tokens - before), 1.0))


def blend(average: float, tokens: int) -> float:
    """A thread's moving average of output tokens with one more reply; 0 stands for none yet."""
    return max(average + _THREAD_WEIGHT * (tokens - average) if average else float(tokens), 1.0)
