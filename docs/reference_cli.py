"""docs/cli.md: every command and option, from the commands themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from reference_scenario import cell, flat, slug

GUIDES = {
    "calibrate": "hardware.md", "check": "ci.md", "compare": "studies.md", "compare-metrics": "report.md", "curve": "explain.md",
    "explain": "explain.md", "export": "report.md", "hw": "hardware.md", "kv-capacity": "hardware.md", "plan": "studies.md",
    "replay": "vllm.md", "report": "report.md", "run": "tutorial.md", "schema": "scenario.md", "step-time": "hardware.md",
    "sweep": "studies.md", "trace": "traces.md", "validate": "scenario.md",
}  # fmt: skip
"""Pages that explain a command."""
EXAMPLES = {
    "calibrate": ["prefixsim calibrate --gpu my-gpu", "prefixsim calibrate --host"],
    "check": ["prefixsim check scenarios/*.yaml --baseline baseline.json --junit prefixsim.xml"],
    "compare": ["prefixsim compare runs/before runs/after --engine vllm"],
    "compare-metrics": ["prefixsim compare-metrics runs/mine after.txt --before before.txt"],
    "curve": ["prefixsim curve quickstart --granularity 1,16 --gpu h100-sxm-80g --model llama-3.1-8b"],
    "explain": ["prefixsim explain conversation_trace.jsonl --granularity 16,512"],
    "export": ["prefixsim export runs/mine --format chrome-trace --from 60 --to 90 --out run.json.gz"],
    "hw list": ["prefixsim hw list"],
    "hw show": ["prefixsim hw show h100-sxm-80g"],
    "kv-capacity": [
        "prefixsim kv-capacity --gpu h100-sxm-80g --model llama-3.1-70b --tensor-parallel-size 4 --engine vllm"
    ],
    "plan": ["prefixsim plan scenarios/studies/plan_quick.yaml"],
    "replay": ["prefixsim replay trace.jsonl --engine vllm --mode scheduler --num-gpu-blocks 1000"],
    "report": ["prefixsim report runs/mine --explain"],
    "run": [
        "prefixsim run quickstart --set engines.vllm.block_size=32",
        "prefixsim run mooncake --trace conversation_trace.jsonl",
    ],
    "schema": ["prefixsim schema > scenario.schema.json"],
    "step-time": ["prefixsim step-time --gpu h100-sxm-80g --model llama-3.1-8b --prefill 512@4096 --decode 64x1024"],
    "sweep": ["prefixsim sweep scenarios/studies/block_size.yaml --out runs/blocks --workers 4"],
    "trace convert": ["prefixsim trace convert conversation_trace.jsonl --out native.jsonl"],
    "trace describe": ["prefixsim trace describe conversation_trace.jsonl --html trace.html"],
    "trace fit": ["prefixsim trace fit conversation_trace.jsonl --out like-it.yaml"],
    "trace formats": ["prefixsim trace formats"],
    "validate": ["prefixsim validate mine.yaml --resolved"],
    "warmup": ["prefixsim warmup"],
}
PLACEHOLDERS: dict[Any, str] = {int: "N", float: "X", Path: "PATH"}
INTRO = """# Command line

<!-- written by docs/generate.py -->

Results go to stdout, talk to stderr. Exit codes: 0 fine, 1 a check failed, 2 could not run or was interrupted (the reason on stderr, never a traceback). `--json`
prints results as JSON. `prefixsim COMMAND --help` says what is below; `prefixsim --install-completion` sets up the shell's Tab key.

Where a SCENARIO is asked for, it is a YAML file or the name of one in the [gallery](gallery.md). KEY in `--set KEY=VALUE` is a path such as
`engines.vllm.block_size` or `workload.arrivals.rate_per_s` ([all keys](scenario.md)); VALUE is read as YAML.

| command | what it does |
|---|---|
"""


def page() -> str:
    """The page as Markdown."""
    from prefixsim.cli.app import app, register_commands

    register_commands()
    found = sorted(_commands(typer.main.get_command(app), ""))
    rows = [
        f"| [{name}](#{slug('prefixsim ' + name)}) | {cell(flat(command.help or '').split('. ')[0])} |"
        for name, command in found
    ]
    return INTRO + "\n".join([*rows, *(line for name, command in found for line in _section(name, command))]) + "\n"


def _section(name: str, command: Any) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden and p.name != "help"]
    usage = " ".join([f"prefixsim {name}", *(_metavar(p) for p in arguments), *(["[OPTIONS]"] if options else [])])
    guide = GUIDES.get(name.split(maxsplit=1)[0])
    out = [
        "",
        f"## prefixsim {name}",
        "",
        flat(command.help or "") + (f" See [{guide[:-3]}]({guide})." if guide else ""),
    ]
    out += ["", "```", usage, "", *EXAMPLES[name], "```"]
    if command.params:
        out += ["", "| argument | meaning | default |", "|---|---|---|"]
        out += [f"| `{_metavar(p)}` | {cell(getattr(p, 'help', None) or '')} | |" for p in arguments]
        out += [_row(p) for p in options]
    return out


def _row(option: Any) -> str:
    value = (
        "" if option.is_flag else f" {option.metavar or PLACEHOLDERS.get(option.type_descriptor.annotation, 'TEXT')}"
    )
    names = ", ".join(f"`{n}{value}`" for n in [*option.opts, *option.secondary_opts])
    default = option.default
    if option.is_flag and option.secondary_opts and isinstance(default, bool):
        shown = f"`{(option.opts if default else option.secondary_opts)[0]}`"
    elif default in (None, False, (), [], "", [None]) or callable(default):
        shown = ""
    else:
        shown = f"`{','.join(str(d) for d in default) if isinstance(default, list | tuple) else default}`"
    return f"| {names.replace('|', chr(92) + '|')} | {cell(option.help or '')} | {shown} |"


def _metavar(argument: Any) -> str:
    return str(argument.metavar or str(argument.name).upper()).replace("|", "\\|")


def _commands(group: Any, prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, command in group.commands.items():
        full = f"{prefix}{name}"
        if hasattr(command, "commands"):
            found += _commands(command, f"{full} ")
        elif not command.hidden:
            found.append((full, command))
    return found
