"""Finds profiles by name and puts a replica's hardware together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from prefixsim.errors import InputError, NotModelledError, Problem, ProfileError, ScenarioError, nearest
from prefixsim.hardware import memory as mem
from prefixsim.hardware.memory import KvCapacity
from prefixsim.hardware.models import ModelProfile, model_from_config
from prefixsim.hardware.profiles import GpuProfile, HostProfile, numbers
from prefixsim.hardware.steptime import HostCosts, StepCosts
from prefixsim.paths import data_dir
from prefixsim.scenario.engine_sglang import SglangOptions
from prefixsim.scenario.engine_vllm import VllmOptions
from prefixsim.scenario.hardware import HardwareSpec
from prefixsim.scenario.profile_names import find_profile, is_path, profile_names
from prefixsim.scenario.strict_yaml import read, validate

P = TypeVar("P", bound=BaseModel)
_LONG = {
    "bf16": "bfloat16",
    "fp16": "bfloat16",
    "float16": "bfloat16",
    "fp32": "float32",
}  # 16-bit floats cost the same


def read_profile(path: Path, model: type[P], *, by_name: bool = False) -> P:
    """Reads one YAML profile. by_name: it was found by its file's name, which must be its own. Raises ProfileError with
    file, line and key."""
    try:
        at = path.stat()
    except OSError as exc:
        raise ProfileError(Problem(f"cannot be read: {exc.strerror or exc}", file=str(path))) from None
    return _read_profile(path, at.st_ino, at.st_size, at.st_mtime_ns, model, by_name)


@lru_cache(maxsize=64)  # every point of a study asks for the same few
def _read_profile(path: Path, _inode: int, _size: int, _mtime_ns: int, model: type[P], by_name: bool) -> P:
    document = read(path, ProfileError)
    profile = validate(document, model, ProfileError)
    name = getattr(profile, "name", path.stem)
    if by_name and name != path.stem:
        message = f"found {name!r:.80}, expected '{path.stem}' as the file is called: results are labelled with it"
        raise ProfileError(document.problem(("name",), message))
    return profile


def load_gpu(name: str, base_dir: Path | None = None) -> GpuProfile:
    """A GPU profile by name or path."""
    return read_profile(find_profile("gpus", name, base_dir), GpuProfile, by_name=not is_path(name))


def load_model(name: str, base_dir: Path | None = None) -> ModelProfile:
    """A model profile by name or path; a `.json` is read as a Hugging Face config."""
    path = find_profile("models", name, base_dir)
    if path.suffix == ".json":
        return model_from_config(path)
    return read_profile(path, ModelProfile, by_name=not is_path(name))


def load_host(name: str, base_dir: Path | None = None) -> HostProfile:
    """A host profile by name or path."""
    return read_profile(find_profile("hosts", name, base_dir), HostProfile, by_name=not is_path(name))


def load_hardware(spec: HardwareSpec, *, base_dir: Path | None = None) -> Hardware:
    """Loads GPU, model and host of a scenario. Raises InputError, ProfileError, NotModelledError."""
    gpu, model = load_gpu(spec.gpu, base_dir), load_model(spec.model, base_dir)
    model.check_tp(spec.tensor_parallel_size)
    return Hardware(spec=spec, gpu=gpu, model=model, host=load_host(spec.host, base_dir))


@dataclass(frozen=True)
class Hardware:
    """One replica's hardware: `tensor_parallel_size` GPUs with one model."""

    spec: HardwareSpec
    gpu: GpuProfile
    model: ModelProfile
    host: HostProfile

    @property
    def gpu_memory_gib(self) -> float:
        """Nominal memory of one GPU: what the engines' defaults go by."""
        return self.gpu.device.memory_nominal_gib.value

    @property
    def weights_dtype(self) -> str:
        """bfloat16 (any 16-bit float), float32, fp8, fp8_block or mxfp4."""
        asked = self.model.weights_dtype if self.spec.dtype == "auto" else self.spec.dtype
        return _LONG.get(asked, asked)

    @property
    def kv_bytes(self) -> float:
        """Bytes of one cached number."""
        asked = _LONG.get(self.spec.kv_cache_dtype, self.spec.kv_cache_dtype)
        if asked == "auto":
            return 4.0 if self.weights_dtype == "float32" else 2.0
        return {"fp8": 1.0, "bfloat16": 2.0, "float32": 4.0}[asked]

    @property
    def kv_bytes_per_token(self) -> int:
        """KV bytes of one token on one GPU, all layers."""
        per_layer = self.model.kv_elements_per_gpu(self.spec.tensor_parallel_size) * self.kv_bytes
        return round(self.model.layers * per_layer)

    @property
    def usd_per_hour(self) -> float | None:
        """Price of one replica."""
        price = self.spec.usd_per_gpu_hour
        if price is None and self.gpu.price_usd_per_hour is not None:
            price = self.gpu.price_usd_per_hour.value
        return None if price is None else price * self.spec.tensor_parallel_size

    @property
    def validity(self) -> str:
        """How good these numbers are and where they stop; and which profile file calls itself by another's name."""
        given = ((self.spec.gpu, self.gpu.name), (self.spec.model, self.model.name), (self.spec.host, self.host.name))
        others = [
            f"The profile {Path(file).name} calls itself {name}."
            for file, name in given
            if is_path(file) and Path(file).suffix != ".json" and Path(file).stem != name
        ]
        return " ".join([self.gpu.validity, *others])

    def host_costs(self, block_size: int = 16) -> HostCosts:
        """Host costs; hashing by block size (16, 64 or 128 and above: the nearest measured one below)."""
        h = self.host
        hashing = h.hash_ns_per_token_block16 if block_size < 64 else h.hash_ns_per_token_block64
        hashing = h.hash_ns_per_token_block128 if block_size >= 128 else hashing
        return HostCosts(
            hash_ns_per_token=hashing.value,
            match_ns_per_node=h.match_ns_per_node.value,
            insert_ns_per_node=h.insert_ns_per_node.value,
            split_ns_per_node=h.split_ns_per_node.value,
            evict_ns_per_node=h.evict_ns_per_node.value,
            tree_node_bytes=h.tree_node_bytes.value,
        )

    def step_costs(self, family: str, *, block_size: int = 16) -> StepCosts:
        """What a step costs under an engine family ("vllm", "sglang"). Raises NotModelledError where the profile has no
        times for this dtype, TP or engine."""
        from prefixsim.hardware.costs import step_costs

        return step_costs(
            self.gpu,
            self.model,
            dtype=self.weights_dtype,
            kv_bytes=self.kv_bytes,
            tp=self.spec.tensor_parallel_size,
            family=family,
            host=self.host_costs(block_size),
        )

    def kv_capacity(self, options: VllmOptions | SglangOptions) -> KvCapacity:
        """KV cache under an engine's options (overrides `num_gpu_blocks_override`, `max_total_tokens` are not applied).

        Raises DoesNotFitError saying by how much, and what would fit.
        """
        return (self._vllm if isinstance(options, VllmOptions) else self._sglang)(options)  # type: ignore[arg-type]

    def _common(self) -> tuple[float, str, dict[str, mem.Component]]:
        spec, dtype, tp = self.spec, self.weights_dtype, self.spec.tensor_parallel_size
        total = spec.memory.total_gib or self.gpu.device.memory_usable_gib.value
        weights = mem.component(
            spec.memory.weights_gib, mem.weights_gib(self.model, dtype, tp), f"parameters in {dtype} over {tp} GPU(s)"
        )
        return total, f"{self.model.name} ({dtype}, TP {tp}) on {self.gpu.name}", {"weights": weights}

    def _vllm(self, options: VllmOptions) -> KvCapacity:
        spec, tp = self.spec, self.spec.tensor_parallel_size
        total, what, parts = self._common()
        tokens, seqs = mem.vllm_default_limits(self.gpu_memory_gib, self.gpu.device.architecture)
        tokens, seqs = options.max_num_batched_tokens or tokens, options.max_num_seqs or seqs
        old = options.kind == "vllm@0.11"
        activation = mem.vllm_activation_gib(
            self.model,
            self.weights_dtype,
            tp,
            tokens,
            seqs,
            sampler_bytes=mem.VLLM_011_SAMPLER_BYTES if old else mem.VLLM_SAMPLER_BYTES,
        )
        how = f"profiling run of {tokens} tokens, {seqs} sequences (vLLM {'0.11' if old else '>= 0.17'})"
        parts["activation"] = mem.component(spec.memory.activation_gib, activation, how)
        number = self.gpu.vllm_memory.non_torch_tp1_gib if tp == 1 else self.gpu.vllm_memory.non_torch_tp_gib
        outside, how = (mem.VLLM_011_NON_TORCH_GIB[tp > 1], "vLLM 0.11 logs") if old else (number.value, number.source)
        parts["non_torch"] = mem.component(spec.memory.non_torch_gib, outside, how)
        parts["cuda_graphs"] = mem.component(
            spec.memory.cuda_graphs_gib, 0.0, "not counted: no public measurement; vLLM >= 0.21 subtracts its estimate"
        )
        bytes_per_token, note = self._vllm_layout(options)
        return mem.finish(
            total * options.gpu_memory_utilization,
            parts,
            bytes_per_token,
            options.block_size,
            what=what,
            note=note,
            hint=self._hint(parts, total * options.gpu_memory_utilization),
        )

    def with_layout(self, options: VllmOptions) -> tuple[VllmOptions, str]:
        """(options with layout and window as vLLM chooses them for the model, where they are not given; note).

        One full-attention and one window group of equal size, or window layers alone, are modelled; of other models every
        layer is taken to keep every token, as with `--disable-hybrid-kv-cache-manager`. Raises NotModelledError for a layout
        that the model does not have, ScenarioError for another window than the model's.
        """
        model = self.model
        full, windowed = model.layers - model.window_layers, model.window_layers
        own = "full" if not windowed else "swa" if not full else "hybrid" if full == windowed else None
        if options.layout in ("swa", "hybrid") and options.layout != own:
            groups = f"{full} full-attention and {windowed} window layers"
            raise NotModelledError(
                f"engine '{options.name}': layout {options.layout}: {model.name} has {groups}"
                + ("; groups of equal size are modelled" if own is None else f", which is layout {own}")
            )
        if options.layout != "full" and windowed and options.sliding_window not in (None, model.sliding_window):
            raise ScenarioError(
                f"engine '{options.name}': sliding_window {options.sliding_window}: {model.name} has {model.sliding_window}"
            )
        layout, note = options.layout or own or "full", ""
        if layout == "full" and windowed:
            why = "" if options.layout else " (vLLM would make several groups of them: not modelled)"
            note = f"{windowed} of {model.layers} layers have a sliding window: layout full keeps all tokens for them too{why}"
        if layout == "full":
            return options.model_copy(update={"layout": layout}), note
        return options.model_copy(update={"layout": layout, "sliding_window": model.sliding_window}), note

    def _vllm_layout(self, options: VllmOptions) -> tuple[int, str]:
        """(bytes of one token in a block, note)."""
        options, note = self.with_layout(options)
        if options.layout != "hybrid":
            return self.kv_bytes_per_token, note
        half = self.kv_bytes_per_token // 2
        return (
            half,
            "2 groups share the blocks: a token takes a slot in each, in the window group while the window lasts",
        )

    def refuse_windows(self) -> None:
        """Raises NotModelledError for a model with sliding-window layers: SGLang has a pool of its own for them."""
        if self.model.window_layers:
            raise NotModelledError(f"{self.model.name}: sliding-window layers under SGLang are not modelled")

    def _sglang(self, options: SglangOptions) -> KvCapacity:
        self.refuse_windows()
        total, what, parts = self._common()
        tp = self.spec.tensor_parallel_size
        fraction = options.mem_fraction_static or mem.sglang_static_fraction(
            self.gpu_memory_gib, tp, options.chunked_prefill_size
        )
        for name, given in (
            ("activation", self.spec.memory.activation_gib),
            ("non_torch", self.spec.memory.non_torch_gib),
            ("cuda_graphs", self.spec.memory.cuda_graphs_gib),
        ):
            parts[name] = mem.component(given, 0.0, f"inside the {1 - fraction:.1%} that mem_fraction_static leaves")
        return mem.finish(
            total * fraction,
            parts,
            self.kv_bytes_per_token,
            options.page_size,
            what=what,
            hint=self._hint(parts, total * fraction),
        )

    def _hint(self, parts: dict[str, mem.Component], budget: float) -> str:
        """What would fit: the smallest TP, or fp8 weights."""
        fixed = sum(p.gib for name, p in parts.items() if name != "weights")
        dtype, tp = self.weights_dtype, self.spec.tensor_parallel_size
        options = []
        for wider in (2, 4, 8, 16):
            try:
                self.model.check_tp(wider)
            except NotModelledError:
                continue
            if wider > tp and mem.weights_gib(self.model, dtype, wider) + fixed < 0.95 * budget:
                options.append(f"tensor_parallel_size {wider}")
                break
        if dtype in ("bfloat16", "float32") and mem.weights_gib(self.model, "fp8", tp) + fixed < 0.95 * budget:
            options.append("fp8 weights")
        return f"Would fit: {' or '.join(options)}." if options else "No tensor_parallel_size up to 16 makes it fit."

    def provenance(self) -> dict[str, Any]:
        """Every number with kind and source, JSON-able."""
        tp = self.spec.tensor_parallel_size
        return {
            "gpu": _numbers(self.gpu),
            "gpu_provenance": {"name": self.gpu.name, **self.gpu.provenance.model_dump()},
            "host": _numbers(self.host),
            "model": {"kind": self.model.kind, **self.model.model_dump(exclude_none=True, exclude={"kind"})},
            "used": {
                "tensor_parallel_size": tp,
                "weights_dtype": self.weights_dtype,
                "kv_bytes_per_element": self.kv_bytes,
                "kv_bytes_per_token_per_gpu": self.kv_bytes_per_token,
                "memory_overrides_gib": mem.override_dict(self.spec.memory),
            },
            "validity": self.validity,
        }


def _numbers(profile: BaseModel) -> dict[str, Any]:
    return {key: number.model_dump(exclude_none=True) for key, number in numbers(profile)}


@cache
def shipped(kind: str) -> tuple[str, ...]:
    """Names of shipped profiles of a kind."""
    return tuple(sorted(p.stem for p in (data_dir("hw_profiles") / kind).glob("*.yaml")))


def hardware_from_options(gpu: str, model: str, tensor_parallel_size: int, **more: Any) -> Hardware:
    """Hardware from command-line options (`memory` entries that are None are left out). Raises InputError."""
    memory = {k: v for k, v in (more.pop("memory", None) or {}).items() if v is not None}
    given = {"gpu": gpu, "model": model, "tensor_parallel_size": tensor_parallel_size, "memory": memory, **more}
    return load_hardware(_model_from(HardwareSpec, given))


def engine_options(kind: str, given: dict[str, Any]) -> VllmOptions | SglangOptions:
    """Engine options from a kind ("vllm", "sglang", with or without version) and those that are not None."""
    family = kind.split("@", maxsplit=1)[0]
    models: dict[str, type[VllmOptions] | type[SglangOptions]] = {"vllm": VllmOptions, "sglang": SglangOptions}
    if family not in models:
        raise InputError(f"--engine: unknown engine {kind!r}{nearest(kind, models)}")
    values = {"name": family, "kind": kind} | {k: v for k, v in given.items() if v is not None}
    return _model_from(models[family], values)


def _model_from(model: type[P], given: dict[str, Any]) -> P:
    try:
        return model.model_validate(given)
    except ValidationError as exc:
        problems = []
        for fault in exc.errors(include_url=False):
            key = ".".join(str(p) for p in fault["loc"])
            found = fault.get("input")
            problems.append(Problem(f"{fault['msg']}, found {found!r:.60}", key=key.replace("_", "-")))
        raise InputError(problems) from None


def summaries() -> dict[str, list[dict[str, str]]]:
    """Name, title, file and (GPUs) validity of every profile, by kind. A profile that cannot be read says so."""
    out: dict[str, list[dict[str, str]]] = {}
    for kind, model in _KINDS.items():
        out[kind] = []
        for name, path in profile_names(kind).items():
            try:
                profile = read_profile(path, model, by_name=True)
                row = {"name": name, "title": str(getattr(profile, "title", "")), "file": str(path)}
                validity = getattr(profile, "validity", None)
                out[kind].append(row | ({"validity": str(validity)} if validity else {}))
            except InputError as exc:
                out[kind].append({"name": name, "title": f"unreadable: {exc.problems[0]}", "file": str(path)})
    return out


def describe(name: str) -> tuple[str, BaseModel]:
    """(kind, profile) of a name or file, whichever kind has it. Raises InputError."""
    if is_path(name):
        path = find_profile("profiles", name)
        if path.suffix == ".json":
            return "models", model_from_config(path)
        found = read(path, ProfileError).data
        keys = set(found) if isinstance(found, dict) else set()
        kind = "gpus" if "device" in keys else "hosts" if "hash_ns_per_token_block16" in keys else "models"
        return kind, read_profile(path, _KINDS[kind])
    for kind, model in _KINDS.items():
        known = profile_names(kind)
        if name in known:
            return kind, read_profile(known[name], model, by_name=True)
    everything = [n for kind in _KINDS for n in profile_names(kind)]
    raise InputError(f"unknown profile {name!r}{nearest(name, everything)}")


_KINDS: dict[str, type[BaseModel]] = {"gpus": GpuProfile, "models": ModelProfile, "hosts": HostProfile}
