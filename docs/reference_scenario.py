"""docs/scenario.md: every key of scenario, sweep and plan files, from the pydantic models.

What a key means stands in the models (`prefixsim/scenario/`); a class's docstring may end with `Example:` and YAML, which a
test validates. Here is only how the page is laid out.
"""

from __future__ import annotations

import re
from inspect import cleandoc
from typing import Any

from prefixsim.scenario.engine_sglang import SglangOptions
from prefixsim.scenario.engine_vllm import VllmOptions
from prefixsim.scenario.hardware import HardwareSpec
from prefixsim.scenario.models import Scenario
from prefixsim.scenario.not_modelled import NOT_MODELLED
from prefixsim.scenario.study import PlanSpec, StudySpec

DEFERRED = ("Arrivals", "Distribution")
"""Used in many places: they follow the workloads."""
FIRST = ("name", "generator", "kind")
"""Keys that stand first: what a section is called, and which it is."""
TITLES = {
    "Distribution": "Distributions",
    "Mean": "exponential, geometric, poisson",
    "Arrivals": "workload.arrivals",
    "VllmFacts": "engines (vllm).facts",
    "SglangFacts": "engines (sglang).facts",
    "ZippedAxes": "Sweep.axes.zip",
}
"""Of sections whose place in a file is not one, or not the first."""
GUIDES = {
    "TraceWorkload": "[Traces](traces.md)",
    "SessionsWorkload": "[Generated workloads](workloads.md)",
    "FirstRequests": "[Warm start](warm.md)",
    "WarmUp": "[Warm start](warm.md)",
    "HardwareSpec": "[Hardware](hardware.md)",
    "HostLinkOverrides": "[Host memory](tiers.md)",
    "VllmOptions": "[How vLLM is modelled](vllm.md)",
    "SglangOptions": "[How SGLang is modelled](sglang.md)",
    "RoundRobin": "[Fleets and routers](fleet.md)",
    "Expect": "[A gate for prefix caching](ci.md), [the metrics](definitions.md)",
    "Sweep": "[Studies](studies.md)",
    "Plan": "[Studies](studies.md)",
}
"""Pages that explain a section."""
INTRO = """# Scenario reference

<!-- written by docs/generate.py -->

Every key of a scenario file, and of the [sweep](#sweep) and [plan](#plan) files of [studies](studies.md). Names end in their
unit (`_s`, `_tokens`, `_gib`); quantities without one are in tokens or counts. Unknown keys, duplicate keys and values of another
type are refused with file, line, column and the nearest name. `prefixsim validate FILE --resolved` prints a scenario with every default written out;
`prefixsim schema` prints the JSON Schema (`docs/schema/scenario.schema.json`), with which editors complete and check.

A path such as `engines.vllm.block_size` (the member of a list by its `name`, or by number: `engines[0]`) is how `--set`, the axes of a sweep,
and `also:` name a key.
"""
SERVE = """## From a serve command

Option names are the engines' own: `--block-size 32` is `block_size: 32` in the engine's entry, `--no-x` is `x: false`, a flag without a
value is `true`. What belongs to the GPU or the model stands under `hardware`. Thus

    vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2 \\
        --kv-cache-dtype fp8 --gpu-memory-utilization 0.9 --max-num-seqs 256 --no-async-scheduling
    sglang serve --model-path meta-llama/Llama-3.1-8B-Instruct --tp-size 2 \\
        --kv-cache-dtype fp8_e4m3 --mem-fraction-static 0.85 --schedule-policy lpm

are, on H100s,

```yaml
hardware:
  gpu: h100-sxm-80g
  model: llama-3.1-8b
  tensor_parallel_size: 2
  kv_cache_dtype: fp8
engines:
  - name: vllm
    kind: vllm@0.33
    gpu_memory_utilization: 0.9
    max_num_seqs: 256
    async_scheduling: false
  - name: sglang
    kind: sglang@0.5.23
    mem_fraction_static: 0.85
    schedule_policy: lpm
```

`prefixsim hw list` names the GPUs and models; `model:` also takes the path of a Hugging Face `config.json`. What the server prints at
its start replaces estimates: weights, activation and CUDA graphs go into [`hardware.memory`](#hardwarememory), or straight the size of the KV cache into
`num_gpu_blocks_override` (vLLM) or `max_total_tokens` (SGLang). Several servers are `replicas:` behind a `router:`; that is also how to write
`--data-parallel-size`. The engines bound a request by the model's context length where `--max-model-len` or `--context-length` does not say
it; here only the pool bounds it, so set the key where it matters.
"""
SHARED_FLAGS = {
    "hardware.tensor_parallel_size": ("--tensor-parallel-size", "--tp-size"),
    "hardware.dtype": ("--dtype, --quantization", "--dtype, --quantization"),
    "hardware.kv_cache_dtype": ("--kv-cache-dtype", "--kv-cache-dtype"),
    "hardware.model": ("the model, or --model", "--model-path"),
}
"""Keys that both engines' flags stand for: (vLLM's, SGLang's)."""
NO_FLAG = {"name", "kind", "facts", "layout", "sliding_window"}
"""Keys of an engine that no flag sets: of the scenario, or of the model."""
OTHER_FLAGS = {"kv_connector_extra_config": "--kv-transfer-config, in its `kv_connector_extra_config`"}


def page() -> str:
    """The page as Markdown."""
    out = [INTRO, "## Sections\n"]
    bodies = []
    titles: dict[str, str] = {}
    for heading, model in (("Scenario", Scenario), ("Sweep", StudySpec), ("Plan", PlanSpec)):
        sections = _Sections(model, heading, titles)
        out += sections.map()
        bodies.append(sections.text())
    out += ["", SERVE, _flags(), *bodies]
    return "\n".join(out).rstrip() + "\n"


def slug(title: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _flags() -> str:
    """Flags of `vllm serve` and `sglang serve`, each with its key."""
    out = []
    for engine, column, model in (("vLLM", 0, VllmOptions), ("SGLang", 1, SglangOptions)):
        out += [f"### Flags of {engine}\n", "| flag | key | default here |", "|---|---|---|"]
        hardware = HardwareSpec.model_json_schema()["properties"]
        rows = [
            (_code(flags[column]), f"[`{key}`](#hardware)", _default(hardware[key.partition(".")[2]]))
            for key, flags in SHARED_FLAGS.items()
        ]
        for key, field in model.model_json_schema()["properties"].items():
            if key not in NO_FLAG:
                flag = OTHER_FLAGS.get(key, f"--{key.replace('_', '-')}")
                rows.append((_code(flag), f"[`{key}`](#{slug(f'engines, kind {engine.lower()}')})", _default(field)))
        out += [
            f"| {flag} | {key} | {cell(default.replace('see right', 'see key'))} |"
            for flag, key, default in sorted(rows)
        ]
        out.append("")
    refused = ", ".join(f"`{key}`" for key in sorted(NOT_MODELLED))
    out.append(
        f"Refused, because they change results and are not modelled: {refused}. Flags that change neither memory, batches nor "
        "hits (ports, logging, tokenizers, ...) have no key: leave them out."
    )
    return "\n".join(out)


def _code(flag: str) -> str:
    return re.sub(r"--[\w-]+", r"`\g<0>`", flag)


class _Sections:
    """One file's model and what it refers to, in the order of the page. titles: of all sections so far, by model."""

    def __init__(self, model: Any, heading: str, titles: dict[str, str]) -> None:
        schema = model.model_json_schema(by_alias=True)
        self.definitions: dict[str, Any] = {**schema.get("$defs", {}), heading: schema}
        self.heading, self.titles = heading, titles
        self.groups: dict[str, list[str]] = {}
        """Part of the file -> its sections."""
        self._place(heading, heading, heading)
        self._visit(heading, "" if heading == "Scenario" else heading, heading)

    def _visit(self, name: str, path: str, group: str) -> None:
        for key, value in _body(self.definitions[name]).get("properties", {}).items():
            place = f"{path}.{key}" if path else key
            part = place if group == "Scenario" else group
            for ref in references(value):
                if ref in self.definitions and ref not in self.titles and ref not in DEFERRED:
                    self._place(ref, place, part)
                    self._visit(ref, place, part)
            if place == "workload":
                for ref, its_path, its_part in (
                    ("Arrivals", "workload.arrivals", part),
                    ("Distribution", "", "Distributions"),
                ):
                    self._place(ref, its_path, its_part)
                    self._visit(ref, its_path, its_part)

    def _place(self, ref: str, place: str, part: str) -> None:
        title = TITLES.get(ref) or self._title(ref, place)
        if title in self.titles.values():
            raise ValueError(f"{ref}: a second section {title!r}; name it in TITLES")
        self.titles[ref] = title
        self.groups.setdefault(part, []).append(ref)

    def _title(self, ref: str, place: str) -> str:
        """Where the section stands in a file, and which of several kinds it is."""
        properties = _body(self.definitions[ref]).get("properties", {})
        for key in ("generator", "kind"):
            if key in properties:
                names = properties[key].get("enum") or [properties[key].get("const") or properties[key].get("default")]
                return f"{place}, {key} {names[0]}"
        return f"{place}, {next(iter(properties))}" if place in ("workload", "prime") else place

    def map(self) -> list[str]:
        """A line for each part of the file, with links."""
        links = {
            part: [f"[{_label(self.titles[n])}](#{slug(self.titles[n])})" for n in names]
            for part, names in self.groups.items()
        }
        return [f"- {ls[0]}" if len(ls) == 1 else f"- **{part}**: {' · '.join(ls)}" for part, ls in links.items()]

    def text(self) -> str:
        """All sections."""
        return "\n".join(
            self._section(name, first=name == self.heading) for names in self.groups.values() for name in names
        )

    def _section(self, name: str, *, first: bool) -> str:
        part = _body(self.definitions[name])
        words, _, example = part.get("description", "").partition("Example:")
        out = [f"\n## {self.titles[name]}\n" if first else f"\n### {self.titles[name]}\n"]
        guide = f" See {GUIDES[name]}." if name in GUIDES else ""
        if words.strip():
            out.append(flat(words) + guide + "\n")
        if example:
            out.append(f"```yaml\n{cleandoc(example)}\n```\n")
        if part.get("properties"):
            out += ["| key | type | default | meaning |", "|---|---|---|---|"]
        required = part.get("required", [])
        properties = part.get("properties", {})
        for key in sorted(properties, key=lambda k: (k not in FIRST, k not in required)):
            value = properties[key]
            default = "required" if key in required else _default(value)
            out.append(f"| `{key}` | {cell(self._type(value))} | {cell(default)} | {cell(meaning(value, key))} |")
        return "\n".join(out)

    def _type(self, value: dict[str, Any]) -> str:
        if "$ref" in value:
            name = value["$ref"].rsplit("/", 1)[-1]
            return f"[{_short(self.titles[name])}](#{slug(self.titles[name])})" if name in self.titles else name
        if "const" in value:
            return f"`{value['const']}`"
        if "enum" in value:
            return " / ".join(f"`{v}`" for v in value["enum"])
        for key in ("anyOf", "oneOf", "allOf"):
            if key in value:
                names = [v for v in value[key] if "enum" not in v or len(value[key]) < 3]  # a router's name alone
                found = dict.fromkeys(t for v in names if (t := self._type(v)) != "null")
                if {"boolean", "string", "mapping"} <= set(found):
                    return "any"
                return ", ".join(t for t in found if t != "integer" or "number" not in found)
        if value.get("type") == "array":
            return f"list of {self._type(value['items'])}" if value.get("items") else "list"
        if value.get("type") == "object":
            inner = value.get("additionalProperties")
            return f"mapping to {self._type(inner)}" if isinstance(inner, dict) else "mapping"
        return str(value.get("type", "any"))


def _body(part: dict[str, Any]) -> dict[str, Any]:
    """The object among the forms that a section may have."""
    return next((p for p in part.get("anyOf", []) if "properties" in p), part)


def references(value: Any) -> list[str]:
    """Names of the definitions that a piece of schema refers to, in order."""
    if isinstance(value, dict):
        own = [value["$ref"].rsplit("/", 1)[-1]] if "$ref" in value else []
        return own + [r for v in value.values() for r in references(v)]
    return [r for v in value for r in references(v)] if isinstance(value, list) else []


def _label(title: str) -> str:
    """A title in the map: the kind alone where there are several."""
    return re.sub(r"^[\w.]+, (generator |kind |)", "", title) if not title.startswith("exponential") else title


def _short(title: str) -> str:
    """A title as the name of a type."""
    if title in ("Distributions", TITLES["Mean"]):
        return "distribution" if title == "Distributions" else "mean"
    return re.split(r", (?:generator |kind )?|\.", title)[-1]


def _default(value: dict[str, Any]) -> str:
    default = value.get("default")
    if default is None:
        told = "default" in value.get("description", "").lower() or re.search(
            r"\(0\.\d+: ", value.get("description", "")
        )
        return "see right" if told else "none"
    if isinstance(default, dict) and default:
        given = {k: v for k, v in default.items() if v is not None}
        if set(given) == {"constant"}:
            return f"`{given['constant']:g}`"
        inner = {k: {n: x for n, x in v.items() if x is not None} for k, v in given.items() if isinstance(v, dict)}
        if inner:
            return "`" + ", ".join(f"{k}: {v}" for k, v in inner.items()).replace("'", "") + "`"
        return f"`{given['kind']}`" if "kind" in given else "its defaults"
    if default in ("", [], {}):
        return "empty"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def meaning(value: dict[str, Any], key: str = "") -> str:
    """A key's description and its limits."""
    names = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    parts = [value] + [v for k in ("anyOf", "oneOf") for v in value.get(k, []) if "$ref" not in v]
    found = dict.fromkeys(f"{sign} {_number(p[name])}" for p in parts for name, sign in names.items() if name in p)
    words = flat(value.get("description", "")) or {"generator": "Names the section.", "kind": "Names it."}.get(key, "")
    return " ".join(filter(None, [words, f"({', '.join(found)})" if found else ""]))


def _number(value: float) -> str:
    if value == 1 << 63:
        return "2^63"
    return f"{value:,}" if isinstance(value, int) and abs(value) < 10**9 else f"{value:g}"


def flat(text: str) -> str:
    """The text on one line."""
    return re.sub(r"\s+", " ", text.replace("\b", "")).strip()


def cell(text: str) -> str:
    return flat(text).replace("|", "\\|").replace("<", "&lt;")
