"""Fits: they find numbers that are known, shrug off outliers, and the tables' reader refuses bad rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prefixsim.errors import InputError
from prefixsim.hardware.calibrate.fit import decode_us, fit_folder
from prefixsim.hardware.calibrate.tables import read_table
from prefixsim.hardware.fitting import Errors, fit_log, held_out
from prefixsim.hardware.gemm import Chip, GemmNumbers, gemm_us
from prefixsim.hardware.load import load_gpu

H100 = Chip(989.4e12, 3350e9, 132)


def grid() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    m, n, k = np.meshgrid([1, 16, 128, 1024, 8192], [1024, 4096, 16384], [1024, 4096, 8192], indexing="ij")
    return m.ravel().astype(float), n.ravel().astype(float), k.ravel().astype(float)


def test_fit_finds_the_numbers_that_made_the_data() -> None:
    m, n, k = grid()
    true = np.array([5.0, 0.7, 0.85, 2.0, 100.0, 0.0])

    def model(v: np.ndarray) -> np.ndarray:
        return gemm_us(GemmNumbers.from_vector(v), H100, m, n, k, weight_bytes=2, act_bytes=2)

    observed = model(true)
    observed[::11] *= 3.0  # outliers
    bounds = [(0, 50), (0.02, 1), (0.02, 1), (0.5, 8), (0, 1000), (0, 0.01)]
    found = fit_log(model, observed, [1, 0.5, 0.5, 1.5, 10, 0.001], bounds, scale=0.02)
    assert found.params[:3] == pytest.approx(true[:3], rel=0.06)


def test_fit_refuses_a_start_out_of_bounds() -> None:
    with pytest.raises(ValueError, match="outside the bounds"):
        fit_log(lambda v: v, np.ones(1), [2.0], [(0, 1)])
    with pytest.raises(ValueError, match="no rows"):
        fit_log(lambda v: v, np.ones(0), [0.5], [(0, 1)])


def test_errors_by_hand() -> None:
    e = Errors.of(np.array([1.1, 0.9, 1.0]), np.ones(3))
    assert e.mape_pct == pytest.approx(20 / 3)
    assert e.bias_pct == pytest.approx(0)


def test_held_out_takes_whole_keys_about_a_quarter_and_never_none() -> None:
    keys = [f"{i}" for i in range(400) for _ in range(3)]
    out = held_out(keys)
    assert 0.18 < out.mean() < 0.32
    assert all(len(set(out[i : i + 3])) == 1 for i in range(0, len(out), 3))
    assert held_out(["a", "b", "c", "d"]).sum() >= 1


def test_gemm_formula_against_the_roofline() -> None:
    g = GemmNumbers(3.0, 0.8, 0.9, 2.5, 0.0, 0.0)
    m = np.array([1.0, 16384.0])
    found = gemm_us(g, H100, m, 8192, 8192, weight_bytes=2, act_bytes=2)
    assert found[0] > 8192 * 8192 * 2 / (3350e9 * 0.9) * 1e6, "weights are read"
    assert found[1] > 2 * 16384 * 8192 * 8192 / (989.4e12 * 0.8) * 1e6, "FLOPs are done"
    assert found[1] < 1.1 * 2 * 16384 * 8192 * 8192 / (989.4e12 * 0.8) * 1e6


def test_decode_formula_limits() -> None:
    v = np.array([10.0, 2.0, 0.9, 0.0])
    one = decode_us(v, H100, np.array([1.0]), np.array([1.0]), np.array([1.0]))[0]
    assert one == pytest.approx(10.0, abs=0.1)
    many = decode_us(v, H100, np.array([256.0]), np.array([8192.0]), np.array([8.0]))[0]
    assert many == pytest.approx(256 * 8192 * 8 * 512 / (3350e9 * 0.9) * 1e6, rel=0.02)


def write(folder: Path, *rows: str) -> Path:
    header = "gpu,backend,ver,kernel_source,gemm_dtype,m,n,k,latency_us"
    (folder / "gemm.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("h100,vllm,1,x,bfloat16,1,2,3,-5", r"gemm.csv:3: latency_us: expected a number, not negative"),
        ("h100,vllm,1,x,bfloat16,1,2,3,0", r"latency_us"),
        ("h100,vllm,1,x,bfloat16,1,2,3,nan", r"latency_us"),
        ("h100,vllm,1,x,bfloat16,1,1e300,3,5", r"gemm.csv:3: n: "),
        ("h100,vllm,1,x,bfloat16,1,two,3,5", r"gemm.csv:3: n: "),
        ("h100,vllm,1,x,bfloat16,1", r"gemm.csv:3: expected 9 columns, found 6"),
    ],
)
def test_bad_row_is_refused_with_its_line(row: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        read_table(write(tmp_path, "h100,vllm,1,x,bfloat16,1,2,3,5", row), "gemm")


def test_missing_column_and_empty_and_absent(tmp_path: Path) -> None:
    assert read_table(tmp_path, "gemm") is None
    (tmp_path / "gemm.csv").write_text("gpu,m\n")
    with pytest.raises(InputError, match="missing columns"):
        read_table(tmp_path, "gemm")
    with pytest.raises(InputError, match="has no rows"):
        read_table(write(tmp_path), "gemm")
    (tmp_path / "gemm.csv").unlink()
    (tmp_path / "gemm.csv.gz").write_bytes(b"not gzip")
    with pytest.raises(InputError, match="cannot be read"):
        read_table(tmp_path, "gemm")


def test_tables_without_the_gpu(tmp_path: Path) -> None:
    write(tmp_path, "h100,vllm,1,x,bfloat16,1,2,3,5")
    with pytest.raises(InputError, match=r"no rows of GPU 'h10'.*did you mean 'h100'"):
        fit_folder(tmp_path, "h10", load_gpu("h100-sxm-80g"), date="2026-01-01")


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "table", "mape", "p90"), [("h100-sxm-80g", "h100", 5, 10), ("a100-sxm-80g", "a100", 6, 12)]
)
def test_whole_steps_of_shapes_not_fitted(name: str, table: str, mape: float, p90: float, shared: Path) -> None:
    from prefixsim.hardware.calibrate.whole_steps import whole_step_errors

    found = whole_step_errors(shared / "gpu", table, load_gpu(name))
    assert found is not None
    assert found.unseen.n > 1000
    assert found.unseen.mape_pct < mape
    assert found.unseen.p90_pct < p90


@pytest.mark.parametrize("loops_in_cache", [False, True])
def test_rows_read_from_the_cache_are_not_taken_for_memory(loops_in_cache: bool, tmp_path: Path) -> None:
    """A table made by looping over one input: what fits the cache is read at three times the memory's peak."""
    base = load_gpu("l40s")
    chip = Chip(base.device.peak_dense_bf16_tflops.value * 1e12, base.device.mem_bandwidth_gb_per_s.value * 1e9, 142)
    true, rows = np.array([10.0, 2.0, 0.8, 0.1]), []
    for nq, nkv in ((32, 8), (40, 8), (24, 8), (20, 4), (24, 4), (16, 4), (12, 2), (10, 2), (8, 1)):
        for b in (1, 2, 4, 8, 16, 32, 64, 128):
            for kv in (128, 1024, 2048, 4096, 8192, 16384):
                size = b * kv * nkv * 512
                t = float(decode_us(true, chip, *(np.array([float(x)]) for x in (b, kv, nkv)))[0])
                if loops_in_cache and size <= 64e6:
                    t = 10.0 + size / (3 * chip.bandwidth) * 1e6
                rows.append(f"l40s,vllm,1,x,{b},{nq},{nkv},{kv - 1},{t}")
    header = "gpu,backend,ver,kernel_source,batch_size,num_heads,num_key_value_heads,step,latency_us"
    (tmp_path / "decode_attention.csv").write_text("\n".join([header, *rows]) + "\n")
    profile, report = fit_folder(tmp_path, "l40s", base, date="2026-01-01")
    assert profile.decode_attention.eff_bw_ratio.value == pytest.approx(0.8, rel=0.03)
    assert report.sections["decode_attention"].errors.mape_pct < 5
