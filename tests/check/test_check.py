"""`prefixsim check`: what an expectation and a baseline mean, what is said when they fail, in every form."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prefixsim.errors import InputError
from prefixsim.paths import data_dir
from prefixsim.report.checks import CheckResult, FileResult, as_dict, text
from prefixsim.report.github import github_annotations
from prefixsim.report.junit import junit_xml
from prefixsim.report.markdown import markdown
from prefixsim.scenario.expect import Baseline, BaselineMetric, BaselineScenario, read_baseline, write_baseline
from prefixsim.scenario.models import Expect
from prefixsim.study.baseline import better, compare, default_tolerance, reasons
from prefixsim.study.check import check, expect, unknown

SUMMARY = {
    "ceiling": {"token": 0.8, "16": 0.75},
    "prompt_tokens": 1000,
    "engines": {
        "vllm": {"hit_rate": 0.5, "saturated": False, "ttft_s": {"p99": 0.2, "p50": None}, "ledger": {"new": 500}}
    },
}


@pytest.mark.parametrize(
    ("bounds", "ok"),
    [
        ({"at_least": 0.5}, True),
        ({"at_least": 0.51}, False),
        ({"at_most": 0.5}, True),
        ({"at_most": 0.49}, False),
        ({"equals": 0.5}, True),
        ({"equals": 0.6}, False),
        ({"equals": 0.6, "within": 0.11}, True),
        ({"equals": 0.6, "within": 0.09}, False),
        ({"within": [0.4, 0.6]}, True),
        ({"within": [0.6, 0.7]}, False),
        ({"at_least": 0.4, "at_most": 0.45}, False),
    ],
)
def test_bounds(bounds, ok):
    assert expect(Expect(metric="vllm.hit_rate", **bounds), [SUMMARY]).ok is ok


def test_booleans_and_absent_values():
    assert expect(Expect(metric="vllm.saturated", equals=False), [SUMMARY]).ok
    assert not expect(Expect(metric="vllm.saturated", equals=True), [SUMMARY]).ok
    absent = expect(Expect(metric="vllm.ttft_s.p50", at_most=1), [SUMMARY])
    assert (absent.ok, absent.found) == (False, "without a value in this run")


def runs(*rates):
    return [{"engines": {"vllm": {"hit_rate": r}}} for r in rates]


def test_repeats_fail_only_when_chance_cannot_explain_it():
    noisy = runs(0.44, 0.56, 0.48, 0.47, 0.50)  # mean 0.49, interval about +- 0.055
    assert expect(Expect(metric="vllm.hit_rate", at_least=0.5), noisy).ok
    assert not expect(Expect(metric="vllm.hit_rate", at_least=0.6), noisy).ok
    steady = runs(0.490, 0.491, 0.489, 0.490, 0.490)
    result = expect(Expect(metric="vllm.hit_rate", at_least=0.5), steady)
    assert not result.ok
    assert "+-" in result.found


@pytest.mark.parametrize(
    ("metric", "was", "now", "ok"),
    [
        ("vllm.hit_rate", 0.5, 0.4985, True),
        ("vllm.hit_rate", 0.5, 0.497, False),
        ("vllm.hit_rate", 0.5, 0.9, True),  # better is no failure
        ("vllm.ttft_s.p99", 0.2, 0.204, True),
        ("vllm.ttft_s.p99", 0.2, 0.21, False),
        ("vllm.ttft_s.p99", 0.2, 0.01, True),
        ("vllm.steps", 1000, 900, False),  # neither way is better: any change counts
        ("vllm.steps", 1000, 1020, True),
    ],
)
def test_baseline_knows_which_way_is_worse(metric, was, now, ok):
    old = BaselineMetric(value=was, tolerance=default_tolerance(metric, was))
    assert compare(metric, old, now, 0.0).ok is ok
    assert compare(metric, old, now, abs(was)).ok  # a wide interval explains everything


@pytest.mark.parametrize(
    ("metric", "was", "now", "ok", "said"),
    [
        ("v.saturated", 0, 0, True, "v.saturated is false, expected false (was false)"),
        ("v.saturated", 0, 1, False, "v.saturated is true, expected false (was false)"),
        ("v.saturated", 1, 0, True, "v.saturated is false, expected true or false (was true)"),
        ("v.odd", 1, 0, False, "v.odd is false, expected true (was true)"),
    ],
)
def test_a_baseline_spells_booleans(metric, was, now, ok, said):
    result = compare(metric, BaselineMetric(value=was), now, 0.0, boolean=True)
    assert (result.ok, result.message) == (ok, said)


def test_which_way_is_better():
    assert [better(m) for m in ("ceiling.token", "v.output_tokens_per_s", "v.evicted_tokens", "v.steps")] == [
        1,
        1,
        -1,
        0,
    ]


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("vllm.hit_rat", "did you mean 'vllm.hit_rate'?"),
        ("vlm.hit_rate", "did you mean 'vllm.hit_rate'?"),
        ("ceiling.tokn", "did you mean 'ceiling.token'?"),
        ("vllm.ttft_s", "is a group of metrics"),
    ],
)
def test_unknown_metrics_get_the_nearest_name(metric, said):
    assert said in (unknown(SUMMARY, metric) or "")


def test_an_unknown_metric_says_how_to_list_all():
    assert "`prefixsim check --metrics` lists all" in (unknown(SUMMARY, "xyz") or "")


def test_known_metrics_are_known():
    assert unknown(SUMMARY, "vllm.hit_rate") is None
    assert unknown(SUMMARY, "vllm.ttft_s.p50") is None


RESULTS = [
    FileResult(
        "a,b:c.yaml",
        "bad <name>",
        checks=(
            CheckResult("vllm.hit_rate", "expect", True, "0.5", "at least 0.4", 3, 5),
            CheckResult("ceiling.token", "baseline", False, "0.1", "at least 50 %|x", 4, 7),
        ),
        reasons=("template `support` now differs at token 37\x1b",),
    ),
    FileResult("x.yaml", "x", error="x.yaml:2:3: no\nsuch key", problems=(("x.yaml", 2, 3, "no\nsuch key"),)),
]


def test_terminal_form_says_everything():
    shown = text(RESULTS)
    assert "FAILED ceiling.token" in shown
    assert "why: template `support` now differs at token 37" in shown
    assert "1 held, 1 failed, 1 could not be run" in shown


def test_junit_is_xml_with_the_right_counts():
    root = ET.fromstring(junit_xml(RESULTS))
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("3", "1", "1")
    failure = root.find(".//failure")
    assert failure is not None
    assert "token 37" in (failure.text or "")
    assert root.find(".//testcase[@line='4']") is not None
    assert root.find(".//error") is not None


def test_github_annotations_point_at_the_line_and_cannot_be_broken():
    first, second = github_annotations(RESULTS).splitlines()
    assert first.startswith("::error file=a%2Cb%3Ac.yaml,line=4,col=7,title=")
    assert "50 %25|x%0Atemplate" in first
    assert second.startswith("::error file=x.yaml,line=2,col=3,")
    assert github_annotations([]) == ""


def test_markdown_cells_cannot_be_broken():
    shown = markdown(RESULTS)
    assert "at least 50 %\\|x" in shown
    assert "\x1b" not in shown
    assert "bad &lt;name>" in shown


def test_json_form():
    data = as_dict(RESULTS)
    assert (data["held"], data["failed"], data["could_not_run"]) == (1, 1, 1)
    assert data["files"][0]["checks"][1]["line"] == 4


def baseline_of(**change):
    entry = BaselineScenario(
        run_id="1", prefixsim="0", prompt_tokens=1000, metrics={"vllm.hit_rate": BaselineMetric(value=0.5)},
        ledger={"vllm": {"new": 400, "evicted": 100, "hit_device": 500}},
    )  # fmt: skip
    return entry.model_copy(update=change)


def test_reasons_name_what_grew():
    summary = {"prompt_tokens": 1000, "engines": {"vllm": {"ledger": {"new": 400, "evicted": 300, "hit_device": 300}}}}
    assert reasons(baseline_of(), summary, [], same_run=False) == [
        "ledger of vllm: `evicted` 100 -> 300 tokens (+20.0 points)"
    ]
    unchanged = {
        "prompt_tokens": 1000,
        "engines": {"vllm": {"ledger": {"new": 400, "evicted": 100, "hit_device": 500}}},
    }
    assert "the program computes something else now" in reasons(baseline_of(), unchanged, [], same_run=True)[0]


def test_baseline_file_round_trip_and_faults(tmp_path):
    path = tmp_path / "b.json"
    write_baseline(path, Baseline(scenarios={"s": baseline_of()}))
    assert read_baseline(path).scenarios["s"].metrics["vllm.hit_rate"].value == 0.5
    for content, said in (
        ("{", "not a JSON baseline"),
        ('{"schema_version": 7}', "schema version 7"),
        ("[]", "schema version None"),
        ('{"schema_version": 1, "scenarios": {"s": {"run": 1}}}', "scenarios.s.run"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=said):
            read_baseline(path)
    with pytest.raises(InputError, match="--update-baseline makes it"):
        read_baseline(tmp_path / "none.json")


# ---- end to end --------------------------------------------------------------------------------------------------

SMALL = """\
name: small
workload:
  generator: sessions
  arrivals: {process: poisson, rate_per_s: 4}
  requests: 60
  templates:
    - name: support
      segments:
%s        - {shared: system, tokens: 200}
        - {unique: question, tokens: 40}
  turns: 1
  output_tokens: 5
hardware: {gpu: h100-sxm-80g, model: llama-3.1-8b}
engines:
  - {name: vllm, kind: vllm, block_size: 16}
seed: 1
expect:
  - {metric: ceiling.token, at_least: 0.7}
  - {metric: vllm.hit_rate, at_least: %s}
"""
STAMP = "        - {unique: timestamp, tokens: 12, every: request}\n"


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Runs `prefixsim check` in an empty folder; returns (exit code, stdout)."""
    import typer

    from prefixsim.cli.cmd_check import register
    from prefixsim.errors import PrefixsimError

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)

    def run(*arguments):
        result = CliRunner().invoke(app, ["check", "-q", *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            assert isinstance(result.exception, PrefixsimError), result.exception
            return result.exception.exit_code, str(result.exception)
        return result.exit_code, result.output

    return run


def test_a_timestamp_in_front_fails_with_the_right_reason(command):
    Path("good.yaml").write_text(SMALL % ("", 0.7))
    Path("bad.yaml").write_text(SMALL % (STAMP, 0.7))
    code, out = command("good.yaml", "--baseline", "b.json", "--update-baseline")
    assert code == 0, out
    assert json.loads(Path("b.json").read_text())["scenarios"]["small"]["metrics"]["vllm.hit_rate"]["tolerance"] > 0
    code, out = command("good.yaml", "--baseline", "b.json")
    assert code == 0, out
    code, out = command(
        "bad.yaml", "--baseline", "b.json", "--junit", "j.xml", "--markdown", "s.md", "--github", "--workers", "1"
    )
    assert code == 1, out
    assert "template `support` now differs at token 0" in out
    assert "an id or a timestamp" in out
    assert "ledger of vllm: `new`" in out
    line = (SMALL % (STAMP, 0.7)).splitlines().index("  - {metric: vllm.hit_rate, at_least: 0.7}") + 1
    assert f"::error file=bad.yaml,line={line},col=5," in out
    assert ET.parse("j.xml").getroot().get("failures") == "4"
    assert "template `support` now differs" in Path("s.md").read_text()


def test_exit_codes_and_faults(command):
    Path("good.yaml").write_text(SMALL % ("", 0.7))
    Path("fails.yaml").write_text(SMALL % ("", 0.99))
    Path("broken.yaml").write_text((SMALL % ("", 0.7)).replace("block_size", "blok_size"))
    Path("unknown.yaml").write_text((SMALL % ("", 0.7)).replace("vllm.hit_rate", "vllm.hitrate"))
    assert command("fails.yaml")[0] == 1
    code, out = command("broken.yaml", "good.yaml", "--workers", "1", "--json")
    assert code == 2
    data = json.loads(out)
    assert [f["ok"] for f in data["files"]] == [False, True]
    assert "block_size" in data["files"][0]["error"]
    code, out = command("unknown.yaml")
    assert code == 2
    assert "did you mean 'vllm.hit_rate'?" in out
    assert "unknown.yaml:19:14:" in out
    code, out = command("good.yaml", "--baseline", "none.json")
    assert (code, "--update-baseline makes it" in out) == (2, True)
    write_baseline(Path("other.json"), Baseline(scenarios={"smal": baseline_of()}))
    code, out = command("good.yaml", "--baseline", "other.json")
    assert code == 2
    assert "the baseline has no scenario 'small' (did you mean 'smal'?)" in out
    assert command("good.yaml", "--update-baseline")[0] == 2


def test_repeats_run_different_seeds():
    path = data_dir("scenarios") / "check" / "support.yaml"
    small = {"workload.requests": 60}
    (result,), entries = check([str(path)], overrides=small, repeats=3, workers=1)
    assert result.error is None
    rate = next(c for c in result.checks if c.metric == "vllm.hit_rate")
    assert rate.values["runs"] == 3
    assert rate.values["half_width"] > 0
    assert entries["support-gate"].repeats == 3


def test_what_is_being_done_is_said_before_it_takes_time():
    """The first word is also what says that kernels are compiled: it must not come after them."""
    said = []
    path = data_dir("scenarios") / "claim-c01-position.yaml"
    check([str(path)], workers=1, say=said.append)
    assert said == ["1 run of 1 scenario", f"{path}: seed 0 done"]
    said.clear()
    check(["nowhere.yaml"], say=said.append)
    assert not said


def test_the_project_gates_itself():
    """The shipped scenarios against the committed baseline: a change of the program that moves hits fails here, with reasons.
    Where it is wanted: prefixsim check quickstart scenarios/check/support.yaml --baseline scenarios/check/baseline.json
    --update-baseline."""
    folder = data_dir("scenarios") / "check"
    results = check(
        ["quickstart", str(folder / "support.yaml")], baseline=read_baseline(folder / "baseline.json"), workers=1
    )[0]
    for result in results:
        assert result.ok, (result.error, [c.message for c in result.checks if not c.ok], result.reasons)


def test_the_demonstration_pair():
    folder = data_dir("scenarios") / "check"
    known = read_baseline(folder / "baseline.json")
    files = [str(folder / "support.yaml"), str(folder / "support_timestamp.yaml")]
    good, bad = check(files, baseline=known, workers=1)[0]
    assert good.ok, [c.message for c in good.checks if not c.ok]
    assert not bad.ok
    assert bad.reasons[0].startswith(
        "template `support` now differs at token 0 (1,365 requests with 1,365 different pieces"
    )


def test_metrics_are_listed(command):
    Path("s.yaml").write_text(SMALL % ("", 0.5))
    code, out = command("s.yaml", "--metrics")
    assert code == 0
    listed = dict(line.rsplit(None, 1) for line in out.splitlines())
    assert listed["vllm.saturated"] == "false"
    assert 0.5 < float(listed["vllm.hit_rate"]) < 1
    code, out = command("s.yaml", "--metrics", "--json")
    assert json.loads(out)["s.yaml"]["vllm.saturated"] is False


def test_a_variant_is_tested_where_it_has_expectations_of_its_own(command):
    variants = "also:\n  - {name: one, set: {workload.requests: 5}}\n"
    Path("s.yaml").write_text(SMALL % ("", 0.5) + variants)
    code, out = command("s.yaml")
    assert code == 0
    assert "2 held, 0 failed" in out
    assert "note: not run, as they have no `expect:` of their own: one (under `also:`)" in out
    variants += (
        "  - name: two\n    set: {engines.vllm.block_size: 256}\n    expect: [{metric: vllm.hit_rate, at_least: 0.5}]\n"
    )
    Path("s.yaml").write_text(SMALL % ("", 0.5) + variants)
    code, out = command("s.yaml", "--baseline", "b.json", "--update-baseline")
    assert code == 1
    assert "2 held, 1 failed" in out
    assert "small-two (s.yaml)" in out
    assert set(read_baseline(Path("b.json")).scenarios) == {"small", "small-two"}
    code, out = command("s.yaml", "--json")
    (failed,) = [c for f in json.loads(out)["files"] for c in f["checks"] if not c["ok"]]
    assert (failed["found"], failed["line"]) == ("0", 24)
    Path("s.yaml").write_text((SMALL % ("", 0.5) + variants).replace("block_size: 256", "blok_size: 256"))
    assert command("s.yaml")[0] == 2


def test_two_scenarios_of_one_name_do_not_share_a_baseline_entry(command):
    other = "  - {name: two, set: {workload.requests: 5}, expect: [{metric: vllm.hit_rate, at_least: 0}]}\n"
    Path("a.yaml").write_text(SMALL % ("", 0.5) + "also:\n" + other)
    Path("b.yaml").write_text((SMALL % ("", 0.5)).replace("name: small", "name: small-two"))
    assert command("a.yaml", "b.yaml")[0] == 0
    assert command("a.yaml", "a.yaml", "--baseline", "b.json", "--update-baseline")[0] == 0
    before = Path("b.json").read_text()
    code, out = command("a.yaml", "b.yaml", "--baseline", "b.json", "--update-baseline")
    assert code == 2
    assert "b.yaml: a.yaml has a scenario 'small-two' too" in out
    assert Path("b.json").read_text() == before
    assert command("a.yaml", "b.yaml", "--baseline", "b.json")[0] == 0  # to compare two with one entry is fine
