"""Profiles: every shipped one reads, says where its numbers come from, and bad ones are refused with their place."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from prefixsim.errors import InputError, NotModelledError, ProfileError
from prefixsim.hardware.calibrate.write import to_yaml
from prefixsim.hardware.load import describe, find_profile, load_gpu, load_hardware, load_model, shipped
from prefixsim.hardware.models import model_from_config
from prefixsim.hardware.profiles import numbers
from prefixsim.paths import data_dir
from prefixsim.scenario.hardware import HardwareSpec

GPUS, MODELS = shipped("gpus"), shipped("models")
H100 = (data_dir("hw_profiles") / "gpus" / "h100-sxm-80g.yaml").read_text()
FITTED = {"a100-sxm-80g", "h100-sxm-80g", "h200", "b200", "l40s", "rtx-4090", "rtx-pro-6000"}

# Parameters in billions, as the models' makers state them.
PARAMETERS = {
    "llama-3.1-8b": 8.03, "llama-3.1-70b": 70.55, "llama-3.1-405b": 405.85, "llama-3.3-70b": 70.55, "qwen2.5-7b": 7.62,
    "qwen2.5-72b": 72.7, "qwen3-8b": 8.19, "qwen3-14b": 14.77, "qwen3-32b": 32.76, "qwen3-30b-a3b": 30.53,
    "qwen3-235b-a22b": 235.09, "mistral-small-24b": 23.57, "mixtral-8x7b": 46.7, "deepseek-v3": 671.0,
    "gpt-oss-20b": 20.91, "gpt-oss-120b": 116.8,
}  # fmt: skip


@pytest.mark.parametrize("name", GPUS)
def test_shipped_gpu(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.name == name
    kinds = {n.kind for _, n in numbers(gpu)}
    assert ("fitted" in kinds) == (name in FITTED)
    assert "measured" not in {n.kind for k, n in numbers(gpu) if not k.startswith(("device.memory", "vllm_memory"))}
    assert ("assumed" in gpu.validity) == (name not in FITTED or name.startswith("rtx"))


@pytest.mark.parametrize("name", MODELS)
def test_shipped_model_has_the_published_number_of_parameters(name: str) -> None:
    assert sum(load_model(name).param_counts().values()) / 1e9 == pytest.approx(PARAMETERS[name], rel=2e-3)


def test_all_of_the_list_are_shipped() -> None:
    assert set(PARAMETERS) == set(MODELS)
    assert FITTED | {"h20", "mi300x", "gb200"} <= set(GPUS)


def test_written_profile_reads_back_equal(tmp_path: Path) -> None:
    gpu = load_gpu("h200")
    path = tmp_path / "again.yaml"
    path.write_text(to_yaml(gpu, "a comment"))
    assert load_gpu(str(path)) == gpu


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (r"mem_bandwidth_gb_per_s: \{value: 3350", "mem_bandwidth_gb_per_s: {value: 0", "must be greater than zero"),
        (r"mem_bandwidth_gb_per_s:", "mem_bandwidth:", r"unknown key \(did you mean 'mem_bandwidth_gb_per_s'\?\)"),
        (r"eff_flops_ratio: \{value: [0-9.]+", "eff_flops_ratio: {value: 1.2", "above 0 and at most 1"),
        (r"peak_dense_bf16_tflops: \{value: 989.4", "peak_dense_bf16_tflops: {value: 1978.9", "sparsity"),
        (r"peak_dense_fp8_tflops: \{value: 1979", "peak_dense_fp8_tflops: {value: 3958", "sparsity"),
        (r"(launch_us: \{value: [0-9.]+), kind: fitted", r"\1", "missing key 'kind'"),
        (r"(launch_us: \{value: [0-9.]+, kind: fitted), source: \"[^\"]*\"", r"\1", "missing key 'source'"),
        (r"kind: datasheet", "kind: guessed", "'datasheet', 'measured', 'fitted' or 'assumed'"),
        (r"sm_count: \{value: 132", "sm_count: {value: many", "valid number"),
    ],
)
def test_bad_profile_is_refused_with_its_place(old: str, new: str, said: str, tmp_path: Path) -> None:
    text = re.sub(old, new, H100, count=1)
    assert text != H100, "the fault was not put in"
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        load_gpu(str(path))
    assert re.search(said, str(caught.value)), str(caught.value)
    assert caught.value.problems[0].file == str(path)
    assert caught.value.problems[0].line is not None


def test_unknown_name_says_the_nearest() -> None:
    with pytest.raises(InputError, match=r"did you mean 'llama-3.1-8b'"):
        find_profile("models", "lama-3.1-8b")
    with pytest.raises(InputError, match="unknown profile"):
        describe("nothing")


def test_working_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "hw_profiles" / "gpus"
    folder.mkdir(parents=True)
    (folder / "h200.yaml").write_text(H100.replace('"h100-sxm-80g"', "h200", 1))
    monkeypatch.chdir(tmp_path)
    assert load_gpu("h200").device.memory_nominal_gib.value == 80


def test_a_copied_profile_has_a_name_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "hw_profiles" / "gpus"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(H100)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProfileError, match=r"mine.yaml:\d+:\d+: name: found 'h100-sxm-80g', expected 'mine'"):
        load_gpu("mine")
    with pytest.raises(ProfileError, match="expected 'mine'"):
        describe("mine")
    (folder / "mine.yaml").write_text(H100.replace('"h100-sxm-80g"', "mine", 1))
    assert load_gpu("mine").name == "mine"  # what was read before is not kept for a file that has changed
    spec = {"gpu": str(folder / "mine.yaml"), "model": "llama-3.1-8b"}
    assert "calls itself" not in load_hardware(HardwareSpec.model_validate(spec)).validity
    (folder / "mine.yaml").write_text(H100)
    validity = load_hardware(HardwareSpec.model_validate(spec)).validity
    assert validity.endswith("The profile mine.yaml calls itself h100-sxm-80g.")


def test_provenance_is_json_with_kind_and_source_of_every_number() -> None:
    found = load_hardware(HardwareSpec(gpu="h200", model="llama-3.1-8b")).provenance()
    again = json.loads(json.dumps(found))
    assert again["gpu"]
    for entry in (*again["gpu"].values(), *again["host"].values()):
        assert entry["kind"] in ("datasheet", "measured", "fitted", "assumed")
        assert entry["source"]


LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip


def config(tmp_path: Path, **change: object) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({k: v for k, v in (LLAMA | change).items() if v is not ...}))
    return path


def test_hugging_face_config(tmp_path: Path) -> None:
    model = model_from_config(config(tmp_path))
    shipped_one = load_model("llama-3.1-8b")
    for name in ("layers", "hidden_size", "intermediate_size", "attention_heads", "kv_heads", "head_dim", "vocab_size"):
        assert getattr(model, name) == getattr(shipped_one, name), name
    assert load_hardware(HardwareSpec(gpu="h100-sxm-80g", model=str(config(tmp_path)))).kv_bytes_per_token == 131_072


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"hidden_size": ...}, ProfileError, "missing key 'hidden_size'"),
        ({"vocab_size": "many"}, ProfileError, "expected a positive integer"),
        ({"num_hidden_layers": True}, ProfileError, "expected a positive integer"),
        ({"mamba_d_state": 16}, NotModelledError, "mamba"),
        ({"layer_types": ["linear_attention", "full_attention"] * 16}, NotModelledError, "linear_attention"),
        ({"quantization_config": {"quant_method": "awq"}}, NotModelledError, "awq"),
        ({"index_topk": 2048}, NotModelledError, "sparse attention"),
    ],
)
def test_config_that_cannot_be_modelled_is_refused(
    change: dict[str, object], error: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        model_from_config(config(tmp_path, **change))


def test_sliding_window_layers_are_read(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"] * 16
    model = model_from_config(config(tmp_path, sliding_window=128, layer_types=kinds))
    assert (model.sliding_window, model.window_layers) == (128, 16)
    assert model_from_config(config(tmp_path, sliding_window=4096, use_sliding_window=False)).window_layers == 0
    assert model_from_config(config(tmp_path, sliding_window=4096)).window_layers == 32


def test_truncated_config(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"hidden_size": 4096,')
    with pytest.raises(ProfileError, match="not valid JSON"):
        model_from_config(path)


def test_validity_says_whether_whole_runs_were_compared() -> None:
    """Kernels within 3 % do not make a run within 3 %: the engine's overheads are this GPU's or another's."""
    for name in FITTED:
        gpu = load_gpu(name)
        here = gpu.engine_vllm.step_us.kind == "fitted"
        assert ("end to end" in gpu.validity) == here, name
        assert ("whole runs (engine overheads of another GPU)" in gpu.validity) != here, name
