"""The HTML report as a file: its words, its bounds, what it does with poor, hostile and damaged run folders."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from run_folders import HOSTILE, write_run

from prefixsim.errors import InputError, OutputError, PrefixsimError
from prefixsim.records import LEDGER_PARTS
from prefixsim.report.collect import collect
from prefixsim.report.folder import open_run
from prefixsim.report.html import SIZE_LIMIT, write_report
from prefixsim.report.tables import read_chunks


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run"), n=200)


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", n=24)


class Outline(HTMLParser):
    """Headings, ids, text and links of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_data(self, data: str) -> None:
        if self.inside not in ("script", "style"):
            self.words.append(data.replace("\N{NO-BREAK SPACE}", " "))


def page_of(folder: Path) -> str:
    return write_report(folder).read_text()


def without_plotly(page: str) -> str:
    return re.sub(r"<script>.*?</script>", "<script></script>", page, flags=re.DOTALL)


def payload(page: str) -> list[dict[str, object]]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found.group(1))


def test_answer_comes_first_and_every_part_is_there(run_folder: Path) -> None:
    page = page_of(run_folder)
    text = " ".join(Outline(page).words)
    summary = json.loads((run_folder / "summary.json").read_text())
    best = max(summary["engines"].values(), key=lambda e: e["hit_rate"])
    answer = text.index(f"{100 * best['hit_rate']:.1f} % of prompt tokens from cache")
    assert answer < text.index("The engines side by side") < text.index("Where every prompt token went")
    assert {f["id"] for f in payload(page)} >= {
        "hit-rate-over-time",
        "kv-use-over-time",
        "running-over-time",
        "waiting-over-time",
        "evictions-over-time",
        "ttft-distribution",
        "itl-distribution",
        "e2e-distribution",
        "hit-rate-by-group",
        "hit-rate-by-turn",
        "hit-rate-by-length",
        "capacity-curves",
    }
    for value in ("vendor datasheet", "fitted on batches up to 256", "looks like a timestamp", "seed: 1"):
        assert value in text
    for hit in summary["ceiling_tokens"].values():
        assert f"{hit:,}" in text[text.index("Ceilings:") :]
    for engine in summary["engines"].values():
        for part in LEDGER_PARTS:
            if engine["ledger"][part]:
                assert f"{engine['ledger'][part]:,}" in text


def test_self_contained(run_folder: Path) -> None:
    page = page_of(run_folder)
    assert len(page.encode()) < SIZE_LIMIT
    assert page.count("plotly.js v") == 1
    for _, attributes in Outline(without_plotly(page)).tags:
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
    assert "default-src 'none'" in page


def test_headings_labels_and_tables_for_readers_without_eyes(run_folder: Path) -> None:
    outline = Outline(without_plotly(page_of(run_folder)))
    headings = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch(r"h[1-6]", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(headings))
    plots = [a for t, a in outline.tags if "plot" in (a.get("class") or "").split()]
    assert plots
    assert all(a["role"] == "img" and len(a["aria-label"] or "") > 40 for a in plots)
    ids = [a["id"] for _, a in outline.tags if "id" in a]
    assert len(ids) == len(set(ids))
    links = {(a["href"] or "")[1:] for t, a in outline.tags if t == "a"}
    assert links <= set(ids)
    buttons = {a["data-csv"] for t, a in outline.tags if t == "button" and "data-csv" in a}
    assert {f["id"] for f in payload(page_of(run_folder))} <= buttons <= set(ids)
    assert all(a.get("scope") or "data-skip" in a for t, a in outline.tags if t == "th")


def test_names_stay_text(fresh: Path) -> None:
    summary = json.loads((fresh / "summary.json").read_text())
    evil = "</script><img src=x onerror=alert(1)>"
    summary["name"] = evil
    summary["engines"] = {evil: summary["engines"]["vllm"], "sglang": summary["engines"]["sglang"]}
    summary["engines"][evil]["notes"] = [evil]
    summary["hardware"]["provenance"] = {evil: {"value": evil, "source": evil}}
    summary["workload"]["kind"] = evil
    (fresh / "summary.json").write_text(json.dumps(summary))
    text = (fresh / "requests.csv").read_text().replace("vllm", f'"{evil}"')
    (fresh / "requests.csv").write_text(text)
    page = without_plotly(page_of(fresh))
    assert not any(tag in ("img", "iframe") for tag, _ in Outline(page).tags)
    assert evil not in page
    assert HOSTILE not in page
    groups = next(f for f in payload(page_of(fresh)) if f["id"] == "hit-rate-by-group")
    assert HOSTILE in groups["data"][0]["y"]  # raw here, escaped where it is drawn


def test_figures_hold_the_numbers_of_the_files(run_folder: Path) -> None:
    run = open_run(run_folder)
    data, absent = collect(run)
    assert absent == []
    for name, engine in run.summary["engines"].items():
        d = data[name]
        for sums in (d.groups, d.turns, d.lengths, d.replicas):
            assert sum(s.prompt for s in sums.values()) == engine["prompt_tokens"]
            assert sum(s.cached for s in sums.values()) == engine["cached_tokens"]
            assert sum(s.requests for s in sums.values()) == engine["requests"]
        for metric in ("ttft", "e2e", "itl"):
            assert d.latency[metric].quantile(0.5) == pytest.approx(engine[f"{metric}_s"]["p50"], rel=0.05)
        line = d.timeline
        assert line is not None
        assert (line.evicted_per_s * np.diff(line.edges)).sum() == pytest.approx(engine["evicted_tokens"])
        assert line.hit_rate_so_far[-1] == pytest.approx(engine["hit_rate"])


def test_long_timelines_are_thinned_with_their_peak_and_sums_kept(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = collect(open_run(fresh))
    monkeypatch.setattr("prefixsim.report.collect.TIMELINE_ROWS", 40)
    thinned, _ = collect(open_run(fresh))
    for name in whole:
        a, b = whole[name].timeline, thinned[name].timeline
        assert a is not None
        assert b is not None
        assert len(b.running[0]) < len(a.running[0])
        assert b.running[1].max() == a.running[1].max()
        assert b.kv[1].max() == a.kv[1].max()
        assert (b.evicted_per_s * np.diff(b.edges)).sum() == pytest.approx((a.evicted_per_s * np.diff(a.edges)).sum())
        assert b.hit_rate_so_far[-1] == pytest.approx(a.hit_rate_so_far[-1])


def test_times_in_nanoseconds_are_read_as_well(fresh: Path) -> None:
    path = fresh / "gaps.csv"
    before = collect(open_run(fresh))[0]["vllm"].latency["itl"].quantile(0.5)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    lines = ["engine,gap_ns,count", *(f"{r['engine']},{round(float(r['gap_s']) * 1e9)},{r['count']}" for r in rows)]
    path.write_text("\n".join(lines) + "\n")
    assert collect(open_run(fresh))[0]["vllm"].latency["itl"].quantile(0.5) == before


def test_npz_tables_are_read_like_csv(fresh: Path) -> None:
    before, _ = collect(open_run(fresh))
    rows = list(csv.DictReader((fresh / "requests.csv").read_text().splitlines()))
    words = ("engine", "id", "group", "session", "tenant")
    arrays = {k: np.array([r[k] for r in rows], dtype=str if k in words else float) for k in rows[0]}
    np.savez(fresh / "requests.npz", **arrays)
    (fresh / "requests.csv").unlink()
    after, _ = collect(open_run(fresh))
    for name in before:
        assert after[name].groups == before[name].groups
        assert (after[name].latency["ttft"].counts == before[name].latency["ttft"].counts).all()


@pytest.mark.parametrize(
    "missing",
    ["scenario.resolved.yaml", "requests.csv", "timeline.csv", "gaps.csv", "curves.json", "divergence.json"],
)
def test_a_missing_piece_is_said(fresh: Path, missing: str) -> None:
    (fresh / missing).unlink()
    text = " ".join(Outline(without_plotly(page_of(fresh))).words)
    assert missing.partition(".")[0] in text[text.index("Not in this report") :]


def test_summary_alone_is_enough(fresh: Path) -> None:
    for path in fresh.iterdir():
        if path.name != "summary.json":
            path.unlink()
    text = " ".join(Outline(without_plotly(page_of(fresh))).words)
    assert "nothing over time can be drawn" in text
    assert "of prompt tokens from cache" in text


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("summary.json", b'{"engines": {"a": {', "is not whole JSON"),
        ("summary.json", b"", "is empty"),
        ("summary.json", b"[1]", "expected a mapping, found list"),
        ("summary.json", b"{}", "no mapping of engines"),
        ("summary.json", b'{"engines": {"a": 3}}', "engines.a"),
        ("summary.json", b"\xff\xfe\x00", "is not JSON"),
        ("summary.json", b"[" * 100_000, "nested too deeply"),
        ("summary.json", b'{"engines": ' + b"9" * 10_000 + b"}", "is not JSON"),
        ("requests.csv", b"", "is empty"),
        ("requests.csv", b"engine,status\nvllm,3\n", "no column 'cached_tokens'"),
        ("requests.csv", b"engine,status,cached_tokens,lookup_tokens\nvllm,3,7\n", "expected 4 cells, found 3"),
        (
            "requests.csv",
            b"engine,status,cached_tokens,lookup_tokens\nvllm,3,seven,9\n",
            "expected a number, found 'seven'",
        ),
        ("requests.csv", b'engine,"' + b"x" * 200_000, "is not CSV"),
        ("gaps.csv", b"engine,gap_s,count\n" + b"1," * 700_000, "longer than 1 MiB"),
        ("timeline.csv", b"engine,replica\n\x00,\x00\n", "no column 'start_s'"),
        ("gaps.csv", b"engine,gap_s,count\nvllm,0.1,\xff\n", "expected a number"),
        ("curves.json", b'{"curves": [', "is not whole JSON"),
        ("divergence.json", b"{}", "expected a list"),
    ],
)
def test_damaged_folders_say_which_file(fresh: Path, name: str, content: bytes, says: str) -> None:
    (fresh / name).write_bytes(content)
    with pytest.raises(InputError, match=re.escape(says)) as caught:
        write_report(fresh)
    assert name in str(caught.value) or "engines" in str(caught.value)
    assert not (fresh / "report.html").exists()


def test_a_damaged_npz_says_so(fresh: Path) -> None:
    (fresh / "gaps.csv").unlink()
    (fresh / "gaps.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(InputError, match=r"not a whole \.npz"):
        write_report(fresh)


def test_no_pickles_are_opened(fresh: Path) -> None:
    (fresh / "gaps.csv").unlink()
    np.savez(fresh / "gaps.npz", engine=np.array([object()]), gap_s=np.zeros(1), count=np.zeros(1))
    with pytest.raises(InputError, match="damaged"):
        write_report(fresh)


def test_what_is_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such run folder"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"no summary\.json"):
        write_report(tmp_path)


def test_odd_but_valid_json_never_breaks_the_page(fresh: Path) -> None:
    summary = json.loads((fresh / "summary.json").read_text())
    rng = np.random.default_rng(5)
    odd = [None, True, -1, 1e308, float("nan"), "x" * 5000, [], {}, [[1]], {"p50": "q"}, 10**400]
    keys = list(summary["engines"]["vllm"])
    for _ in range(25):
        broken = json.loads(json.dumps(summary))
        for key in rng.choice(keys, 4, replace=False):
            broken["engines"]["vllm"][key] = odd[rng.integers(len(odd))]
        for key in rng.choice(
            ["ceiling", "workload", "hardware", "provenance", "timing_s", "run_id", "name"], 2, replace=False
        ):
            broken[key] = odd[rng.integers(len(odd))]
        (fresh / "summary.json").write_text(json.dumps(broken))
        assert "<h1>" in page_of(fresh)


def test_the_page_stays_small_whatever_the_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", n=30)
    summary = json.loads((folder / "summary.json").read_text())
    long = "name-" * 2000
    summary["name"] = long
    model = summary["engines"]["vllm"]
    model["notes"] = [long[:3000] + str(i) for i in range(200)]
    model["replicas"] = [{"capacity_tokens": 1000, "granularity": 16}] * 500
    summary["engines"] = {f"{long[:500]}{i}": model for i in range(30)}
    summary["hardware"] = {f"k{i}": {"value": long, "source": long[:3000]} for i in range(500)}
    (folder / "summary.json").write_text(json.dumps(summary))
    names = list(summary["engines"])
    with (folder / "timeline.csv").open() as f:
        rows = [r for r in csv.DictReader(f) if r["engine"] == "vllm"]
    with (folder / "timeline.csv").open("w", newline="") as f:
        out = csv.DictWriter(f, list(rows[0]))
        out.writeheader()
        for name in names:
            for replica in range(4):
                out.writerows(r | {"engine": name, "replica": str(replica)} for r in rows)
    with (folder / "requests.csv").open() as f:
        rows = [r for r in csv.DictReader(f) if r["engine"] == "vllm"]
    with (folder / "requests.csv").open("w", newline="") as f:
        out = csv.DictWriter(f, list(rows[0]))
        out.writeheader()
        for name in names:
            out.writerows(
                r | {"engine": name, "group": f"{long[:1000]}{i}", "replica": str(i)} for i, r in enumerate(rows)
            )
    (folder / "scenario.resolved.yaml").write_text("a: b\n" * 50_000)
    divergence = [{"group": long[:2000], "lost_tokens": i, "note": long[:2000]} for i in range(1000)]
    (folder / "divergence.json").write_text(json.dumps(divergence))
    assert write_report(folder).stat().st_size < SIZE_LIMIT


def test_reading_is_in_chunks(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefixsim.report.tables.CHUNK_ROWS", 7)
    chunks = list(read_chunks(fresh / "requests.csv", ["turn"], ["id"]))
    assert [c.rows for c in chunks] == [7] * 6 + [6]
    assert [t for c in chunks for t in c.texts["id"]] == [f"r{i}" for i in range(24)] * 2


def test_a_folder_that_cannot_be_written(fresh: Path) -> None:
    with pytest.raises(OutputError, match="could not be written"):
        write_report(fresh, fresh / "no" / "such" / "report.html")
    assert issubclass(OutputError, PrefixsimError)


def test_rendering_is_deterministic(fresh: Path) -> None:
    assert page_of(fresh) == page_of(fresh)


@pytest.mark.parametrize(
    ("scenario", "order"),
    [
        ("engines: [{name: vllm}, {name: sglang}]", ["vllm", "sglang"]),
        ("engines: [{name: sglang}, {name: other}]", ["sglang", "vllm"]),
        ("engines: {a: [", ["sglang", "vllm"]),
        ("engines: [3]", ["sglang", "vllm"]),
        ("- - -", ["sglang", "vllm"]),
        ("[" * 5000, ["sglang", "vllm"]),
        ("engines: [{name: [1]}]", ["sglang", "vllm"]),
    ],
)
def test_engines_stand_in_the_scenarios_order(fresh: Path, scenario: str, order: list[str]) -> None:
    (fresh / "scenario.resolved.yaml").write_text(scenario)
    assert list(open_run(fresh).summary["engines"]) == order


def test_groups_come_from_the_summary_where_there_is_no_requests_table(fresh: Path) -> None:
    summary = json.loads((fresh / "summary.json").read_text())
    whole, _ = collect(open_run(fresh))
    for name, engine in summary["engines"].items():
        engine["groups"] = {
            g: {"requests": s.requests, "prompt_tokens": s.prompt, "cached_tokens": s.cached}
            for g, s in whole[name].groups.items()
        }
    (fresh / "summary.json").write_text(json.dumps(summary))
    (fresh / "requests.csv").unlink()
    data, absent = collect(open_run(fresh))
    assert data["vllm"].groups == whole["vllm"].groups
    assert any("no requests table" in text for text in absent)
    assert "hit-rate-by-group" in {f["id"] for f in payload(page_of(fresh))}
