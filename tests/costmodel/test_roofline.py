"""First beliefs from data sheets, against the figures worked out for Kimi K2."""

from __future__ import annotations

import msgspec
import pytest

from costmodel.roofline import (
    Accelerator,
    DataType,
    Deployment,
    DeploymentError,
    ModelShape,
    compute_type,
    host_tokens,
    kv_bytes_per_token,
    kv_tokens,
    prior,
)
from costmodel.terms import compute_ms

MI355X = Accelerator(
    name="MI355X",
    hbm_gb=288,
    hbm_gb_per_s=8000,
    tflops={"fp4": 10066, "fp8": 5033},
    host_gb_per_s=51,
    pool_local_gb_per_s=66,
    pool_remote_gb_per_s=41.8,
    ssd_gb_per_s=12,
    step_ms=0.0,
    usd_per_hour=1.9,
)
KIMI = ModelShape("K2", 61.0, 1.25, 35_136, True, 0.0, {"fp4": 594.0}, 262_144)
DENSE = ModelShape("dense", 65.6, 1.05, 131_072, False, 0.0, {"fp4": 16.0}, 131_072)
EIGHT = Deployment(8, "fp8", "fp4", 1.0, host_gb_per_accelerator=96)


@pytest.mark.parametrize(
    ("tokens", "seconds"), [(8_000, 0.04), (20_000, 0.11), (60_000, 0.51), (100_000, 1.15), (200_000, 3.86)]
)
def test_prefill_of_kimi_on_eight_mi355x(tokens: int, seconds: float) -> None:
    rates = prior(MI355X, KIMI, EIGHT).prefill
    assert compute_ms(rates, tokens, 0) / 1000 == pytest.approx(seconds, abs=0.01)


def test_fp4_halves_the_time() -> None:
    fp4 = prior(MI355X, KIMI, Deployment(8, "fp4", "fp4", 1.0)).prefill
    assert compute_ms(fp4, 100_000, 0) == pytest.approx(compute_ms(prior(MI355X, KIMI, EIGHT).prefill, 100_000, 0) / 2)


def test_a_replicated_kv_fills_every_rank_alike() -> None:
    assert kv_bytes_per_token(KIMI, EIGHT) == 35_136
    assert host_tokens(KIMI, EIGHT) == pytest.approx(2.73e6, rel=0.01)
    assert kv_tokens(MI355X, KIMI, EIGHT) == pytest.approx((288 * 0.85 - 594 / 8) * 1e9 / 35_136, rel=1e-6)
    assert prior(MI355X, KIMI, EIGHT).host.bytes_per_ms == pytest.approx(51e6)


def test_a_sharded_kv_moves_over_every_link() -> None:
    assert host_tokens(DENSE, EIGHT) == pytest.approx(8 * 96e9 / 131_072, rel=1e-3)
    assert prior(MI355X, DENSE, EIGHT).host.bytes_per_ms == pytest.approx(8 * 51e6)


def test_one_more_request_reads_its_context() -> None:
    deployment = Deployment(8, "fp8", "fp4", 1.0, decode_context_tokens=64_000, hbm_share=0.5)
    # 64,000 x 35,136 B at half of 8 TB/s.
    assert prior(MI355X, KIMI, deployment).decode.itl_ms_per_running == pytest.approx(0.562, abs=0.001)


def test_one_more_request_reads_its_experts_in_the_type_of_the_weights() -> None:
    mixture = msgspec.structs.replace(KIMI, expert_gelements_per_request=20.0)

    def expert_ms(weight_type: str) -> float:
        deployment = Deployment(8, "fp8", weight_type, 1.0, decode_context_tokens=0, hbm_share=0.5)
        return prior(MI355X, mixture, deployment).decode.itl_ms_per_running

    # 10 GB of fp4 on eight at half of 8 TB/s; fp8 and bf16 are twice and four times as large.
    assert [expert_ms(each) for each in ("fp4", "fp8", "bf16")] == pytest.approx([0.3125, 0.625, 1.25])


def test_what_does_not_fit_says_so() -> None:
    with pytest.raises(DeploymentError, match="use more accelerators") as fault:
        kv_tokens(MI355X, KIMI, Deployment(2, "fp8", "fp4", 1.0))
    assert fault.value.key == "accelerators"
    with pytest.raises(DeploymentError, match="MI355X: tflops knows no 'int8': choose one of fp4, fp8") as fault:
        prior(MI355X, KIMI, Deployment(8, "int8", "fp4", 1.0))
    assert fault.value.key == "compute_type"
    with pytest.raises(DeploymentError, match="K2: weights_gb knows no 'fp8': choose one of fp4") as fault:
        kv_tokens(MI355X, KIMI, Deployment(8, "fp8", "fp8", 1.0))
    assert fault.value.key == "weight_type"
    with pytest.raises(ValueError, match="mfu must be positive"):
        Deployment(8, "fp8", "fp4", 1.0, mfu=0.0)


@pytest.mark.parametrize(
    ("has", "weights", "chosen"),
    [
        ({"fp4", "fp8", "bf16"}, DataType.FP4, DataType.FP8),
        ({"fp4", "fp8", "bf16"}, DataType.FP8, DataType.FP8),
        ({"fp4", "fp8", "bf16"}, DataType.BF16, DataType.BF16),
        ({"bf16", "fp32", "int8"}, DataType.FP4, DataType.BF16),
        ({"bf16", "fp32"}, DataType.FP32, DataType.FP32),
    ],
)
def test_matrices_are_as_wide_as_weights_and_no_fp4(has: set[str], weights: DataType, chosen: DataType) -> None:
    assert compute_type(msgspec.structs.replace(MI355X, tflops=dict.fromkeys(has, 1.0)), weights) is chosen


def test_weights_wider_than_the_accelerator_computes_want_a_choice() -> None:
    with pytest.raises(DeploymentError, match="no tflops as wide as weights in bf16: choose one of fp4, fp8") as fault:
        compute_type(MI355X, DataType.BF16)
    assert fault.value.key == "compute_type"
