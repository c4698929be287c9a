"""What a file claims is not believed: bombs, frames, shapes, pickles, pipes, names."""

from __future__ import annotations

import ast
import gzip
import io
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from prefixsim.engines.vllm.groups import read_rows
from prefixsim.errors import InputError, TraceError
from prefixsim.hardware.calibrate.tables import COLUMNS, read_table
from prefixsim.report.study_html import write_study_report
from prefixsim.report.tables import read_chunks
from prefixsim.scenario.workload import Trace
from prefixsim.workload.load import load_trace
from prefixsim.workload.text import tokenizers
from robustness.driving import deadline, for_people, prefixsim
from robustness.fuzzing import memory
from robustness.scenarios import SMALL

SIM = Path(__file__).parents[2] / "sim" / "prefixsim"
ROW = b'{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]}\n'


def read_trace(path: Path) -> int:
    with deadline(60), memory():
        return load_trace(Trace(path=str(path), format="mooncake", cache=False)).n


# ---- compressed traces -------------------------------------------------------------------------------------------


def zeros_gz(gib: int) -> bytes:
    """Gzip members that unpack to so many GiB of zeros (10 MB a 10 GiB)."""
    return gzip.compress(bytes(1 << 26)) * (gib << 4)


def zeros_zst(gib: int) -> bytes:
    """A zstd frame of the same (a block of one repeated byte stands for 128 KiB)."""
    block = struct.pack("<I", ((1 << 17) << 3) | (1 << 1))[:3] + b"\0"  # type 1: one byte, repeated
    last = struct.pack("<I", (1 << 3) | (1 << 1) | 1)[:3] + b"\0"
    return struct.pack("<I", 0xFD2FB528) + bytes([0, 7 << 3]) + block * (gib << 13) + last


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_bomb_of_zeros_is_refused(tmp_path, ending):
    if ending == "zst":
        pytest.importorskip("zstandard")
    path = tmp_path / f"t.jsonl.{ending}"
    path.write_bytes(zeros_gz(10) if ending == "gz" else zeros_zst(10))
    with pytest.raises(TraceError, match=r"expands more than|longer than 64 MiB"):
        read_trace(path)


def test_gzip_members_follow_one_another_and_a_cut_one_is_refused(tmp_path):
    path, member = tmp_path / "t.jsonl.gz", gzip.compress(ROW)
    path.write_bytes(member * 3)
    assert read_trace(path) == 3
    for raw in (member[:-3], member + member[:-3], member[:12], member + b"garbage"):
        path.write_bytes(raw)
        with pytest.raises(TraceError, match=r"t.jsonl.gz"):
            read_trace(path)


def test_zstd_frames_follow_one_another_and_a_cut_one_is_refused(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    path, frame = tmp_path / "t.jsonl.zst", zstandard.ZstdCompressor().compress(ROW)
    skippable = struct.pack("<II", 0x184D2A50, 5) + b"hello"
    path.write_bytes(frame + skippable + frame)
    assert read_trace(path) == 2
    path.write_bytes(skippable + frame)
    assert read_trace(path) == 1
    for raw in (
        frame[:-3],
        frame + frame[:-3],
        frame[:6],
        frame + b"garbage",
        frame + skippable[:9],
        frame + frame[:6],
    ):
        path.write_bytes(raw)
        with pytest.raises(TraceError, match=r"t.jsonl.zst"):
            read_trace(path)


@pytest.mark.parametrize("checksum", [False, True])
def test_a_zstd_trace_cut_anywhere_is_refused(tmp_path, checksum):
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "t.jsonl.zst"
    text = b"".join(ROW.replace(b": 0", b": %d" % k) for k in range(400))
    pack = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=False).compressobj()
    frame = b""
    for k in range(0, len(text), 4000):  # many blocks
        frame += pack.compress(text[k : k + 4000]) + pack.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    frame += pack.flush()
    for whole in (frame, zstandard.ZstdCompressor(write_checksum=checksum).compress(text), frame * 2):
        path.write_bytes(whole)
        assert read_trace(path) == 400 * (1 + (whole == frame * 2))
        for size in range(1, len(whole), max(1, len(whole) // 150)):
            if whole == frame * 2 and size == len(frame):
                continue
            path.write_bytes(whole[:size])
            with pytest.raises(TraceError):
                read_trace(path)


def test_operator_tables_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("prefixsim.hardware.calibrate.tables.MAX_ROWS", 20_000)
    texts, numbers = COLUMNS["gemm"]
    path, header = tmp_path / "gemm.csv.gz", ",".join([*texts, *numbers]).encode() + b"\n"
    cells = b"h100,vllm,x,bfloat16,1,2,3,5\n"
    for raw, said in (
        (header + cells * 30_000, r"gemm.csv.gz:20002: more than 20,000 rows"),
        (header + b"x" * (2 << 20) + cells, r"longer than 1 MiB"),
        (header + cells + cells.replace(b"h100", b"h" * 200), r"gemm.csv.gz:3: gpu: a text of more than 100"),
    ):
        path.write_bytes(gzip.compress(raw, 1))
        with deadline(60), memory(), pytest.raises(InputError, match=said):
            read_table(tmp_path, "gemm")


# ---- tables of runs ----------------------------------------------------------------------------------------------


def npz(path: Path, **arrays: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as out:
        for name, raw in arrays.items():
            out.writestr(f"{name}.npy", raw)
    return path


def npy(array: np.ndarray, shape: object = None, descr: object = None) -> bytes:
    """An array's file, with another shape or type claimed."""
    out = io.BytesIO()
    head = {"descr": descr or array.dtype.str, "fortran_order": False, "shape": shape or array.shape}
    np.lib.format.write_array_header_1_0(out, head)  # type: ignore[arg-type]
    return out.getvalue() + array.tobytes()


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return (open, (str(self.path), "w"))


def read_npz(path: Path) -> list[float]:
    with deadline(10), memory(1 << 30):
        return [v for chunk in read_chunks(path, ["x"]) for v in chunk.numbers["x"].tolist()]


def test_arrays_are_what_they_claim(tmp_path):
    good = np.arange(5, dtype=np.int64)
    path = tmp_path / "requests.npz"
    assert read_npz(npz(path, x=npy(good))) == [0, 1, 2, 3, 4]
    trap = pickle.dumps(Trap(tmp_path / "sprung"))
    for raw in (
        npy(good, shape=(10**12,)),
        npy(good, shape=(1 << 62,)),
        npy(good, shape=(-5,)),
        npy(good, shape=(4,)),
        npy(good, shape=(5, 1)),
        npy(good, descr="<i4"),
        npy(good, descr="|V8"),
        npy(good, descr="|S0"),
        npy(np.array([1 + 2j])),
        npy(np.zeros(0, np.uint8), shape=(1,), descr="|O") + trap,
        b"",
        b"\x93NUMPY",
        trap,
        npy(good)[:-1],
    ):
        with pytest.raises(InputError, match=r"requests.npz: x: is damaged"):
            read_npz(npz(path, x=raw))
    assert not (tmp_path / "sprung").exists()
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object))
    with pytest.raises(InputError, match="is damaged"):
        read_npz(npz(path, x=(tmp_path / "o.npy").read_bytes()))
    with pytest.raises(InputError, match="different lengths"):
        list(read_chunks(npz(path, x=npy(good), y=npy(good[:3])), ["x", "y"]))


def test_a_time_that_is_a_signalling_nan_warns_nobody(tmp_path):
    raw = npy(np.array([0x7FF0000000000001], dtype=np.uint64), descr="<f8")
    (chunk,) = read_chunks(npz(tmp_path / "requests.npz", finish_s=raw), ["finish_s"])
    with np.errstate(all="raise"):
        assert np.isnan(chunk.numbers["finish_s"] - chunk.numbers["finish_s"]).all()


@pytest.mark.parametrize("value", ["-1", "inf", "1e300", "x", "-1e-9"])
def test_a_count_that_no_run_can_have_is_refused(tmp_path, value):
    path = tmp_path / "requests.csv"
    path.write_text(f"cached_tokens\n1\n{value}\n")
    with pytest.raises(InputError, match=r"requests.csv:3: cached_tokens: expected a number"):
        list(read_chunks(path, ["cached_tokens"]))


def test_a_negative_time_is_one_that_did_not_come(tmp_path):
    path = tmp_path / "requests.csv"
    path.write_text("finish_s,turn\n-1e-9,-1\n")
    (chunk,) = read_chunks(path, ["finish_s", "turn"])
    assert chunk.numbers["turn"].tolist() == [-1]


# ---- pipes, folders, devices -------------------------------------------------------------------------------------


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_readers_do_not_wait_for_a_pipe(tmp_path, pipe):
    with deadline(10):
        with pytest.raises(TraceError, match="pipe"):
            read_rows(pipe)
        for kind in ("tiktoken", "tokenizers"):
            with pytest.raises(TraceError, match="no such tokenizer file"):
                tokenizers.load(f"{kind}:{pipe}", tmp_path)
        for name in ("study.json", "points.jsonl"):
            folder = tmp_path / name.partition(".")[0]
            folder.mkdir()
            (folder / "study.json").write_text("{}")
            (folder / name).unlink(missing_ok=True)
            os.mkfifo(folder / name)
            with pytest.raises(InputError, match=rf"{name}: not a file of a finished sweep: is a pipe"):
                write_study_report(folder)
        for ending in ("csv", "npz", "parquet"):
            table = tmp_path / f"requests.{ending}"
            os.mkfifo(table)
            with pytest.raises((InputError, OSError), match=r"pipe"):
                list(read_chunks(table, ["x"]))


def test_a_panic_of_a_tokenizer_library_is_an_error_and_an_interrupt_is_none(tmp_path):
    class PanicException(BaseException):
        """What Rust code raises: no Exception."""

    for raised, seen in ((PanicException("out of range"), TraceError), (KeyboardInterrupt(), KeyboardInterrupt)):
        with pytest.raises(seen), tokenizers._faults(tmp_path / "t.json", "cannot encode"):
            raise raised


@pytest.mark.parametrize("layout", [[], ["--layout", "hybrid", "--sliding-window", "8"]], ids=["full", "hybrid"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "absent", "/dev/zero"])
def test_replay_of_what_is_no_file(tmp_path, pipe, kind, layout):
    path = {"pipe": pipe, "folder": tmp_path, "absent": tmp_path / "absent"}.get(kind, Path(kind))
    text = for_people(prefixsim("replay", path, "--engine", "vllm", "--num-gpu-blocks", 50, *layout, seconds=20))
    assert str(path) in text


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ('{"id": "a", "tokens": [1]}\n{', r":2: not JSON"),
        ('{"id": "a", "tokens": [1]}\n\n{"id": "b"}', r":3: tokens: is missing"),
        ('{"id": "a", "tokens": [1e999]}', r":1: tokens: holds something that is not a whole number"),
        ('{"id": "a", "tokens": [99999999999999999999]}', r":1: tokens: holds something"),
        ('{"id": "a", "tokens": [1], "step": -1}', r":1: step: found -1; expected a whole number from 0"),
        ('{"id": "a", "tokens": [1], "step": 99999999999999999999}', r":1: step: found 9999"),
        ('{"id": "a", "tokens": [1], "priority": true}', r":1: priority: found 'True'"),
        ("[1]", r":1: a row is a JSON object"),
        ("\xff", r":1: not JSON"),
    ],
)
def test_rows_of_group_replays_have_their_line(tmp_path, rows, said):
    path = tmp_path / "rows.jsonl"
    path.write_text(rows, encoding="latin-1")
    with pytest.raises(TraceError, match=r"rows.jsonl" + said):
        read_rows(path)


# ---- profiles by name --------------------------------------------------------------------------------------------

TYPOS = (
    SMALL.replace("h100-sxm-80g", "h100-sxm-80")
    .replace("llama-3.1-8b", "nowhere/config.json")
    .replace("seed: 1", "seed: -1")
)


def test_unknown_profiles_are_found_with_all_other_faults(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(TYPOS + "replicas:\n  - {count: 1, hardware: {gpu: h20O, model: llama-3.1-8b, host: refrence}}\n")
    for command in ("validate", "run", "check", "explain"):
        result = prefixsim(command, path)
        text = for_people(result)
        for said in (
            "s.yaml:2:7: seed: ",
            "s.yaml:3:17: hardware.gpu: unknown profile 'h100-sxm-80' (did you mean 'h100-sxm-80g'?)",
            "s.yaml:3:37: hardware.model: no such profile file: nowhere/config.json",
            "replicas[0].hardware.gpu: unknown profile 'h20O' (did you mean 'h20'?)",
            "replicas[0].hardware.host: unknown profile 'refrence' (did you mean 'reference'?)",
        ):
            assert said in text.replace("  ERROR  ", ""), (command, text)


def test_an_override_is_blamed_for_its_profile(tmp_path):
    (tmp_path / "s.yaml").write_text(SMALL)
    text = for_people(prefixsim("validate", tmp_path / "s.yaml", "--set", "hardware.model=lama-3.1-8b"))
    assert "hardware.model=lama-3.1-8b: hardware.model: unknown profile" in text


def test_a_name_beside_the_scenario_is_known(tmp_path):
    folder = tmp_path / "hw_profiles" / "gpus"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("name: mine\n")
    (tmp_path / "s.yaml").write_text(SMALL.replace("h100-sxm-80g", "mine"))
    assert prefixsim("validate", tmp_path / "s.yaml").code == 0


def test_validating_needs_no_compiler(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(TYPOS)
    code = (
        "import sys\nfrom prefixsim.scenario.load import load_scenario\n"
        "try:\n    load_scenario(sys.argv[1])\nexcept Exception as exc:\n    assert 'unknown profile' in str(exc)\n"
        "assert not {'numba', 'numpy', 'simpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


@pytest.mark.parametrize(
    "text",
    [
        b"name=\xff",
        b"\xff=1",
        b"name=a\x01b",
        b"name=" + b"[" * 5000,
        b"engines..kind=1",
        b"=",
        b".=1",
        b"engines[999999].kind=x",
    ],
)
def test_hostile_overrides_are_refused(tmp_path, text):
    (tmp_path / "s.yaml").write_text(SMALL)
    for_people(prefixsim("validate", tmp_path / "s.yaml", "--set", os.fsdecode(text)))


HUGE = 10**30


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((f"engines.v.{k}", HUGE) for k in ("num_gpu_blocks_override", "max_num_seqs", "max_num_batched_tokens", "max_model_len",
                                             "long_prefill_token_threshold")),
        *((f"engines.s.{k}", HUGE) for k in ("max_total_tokens", "max_running_requests", "chunked_prefill_size", "max_prefill_tokens",
                                             "context_length")),
        ("engines.s.schedule_conservativeness", 1e300), ("workload.max_prompt_tokens", HUGE), ("hardware.memory.total_gib", 1e300),
        ("hardware.host_link.latency_us", 1e300), ("hardware.usd_per_gpu_hour", 1e300),
    ],
)  # fmt: skip
def test_numbers_beyond_any_engine_are_refused_where_they_stand(tmp_path, key, value):
    (tmp_path / "s.yaml").write_text(SMALL)
    text = for_people(prefixsim("validate", tmp_path / "s.yaml", "--set", f"{key}={value}"))
    assert f"{key}={value}" in text
    assert "less than or equal to" in text


# ---- nothing that could run code ---------------------------------------------------------------------------------

FORBIDDEN = {
    ("pickle", "load"), ("pickle", "loads"), ("yaml", "load"), ("yaml", "unsafe_load"), ("yaml", "full_load"), ("np", "load"),
    ("marshal", "load"), ("marshal", "loads"), ("shelve", "open"), ("torch", "load"), ("os", "system"),
}  # fmt: skip


def test_no_reader_runs_what_it_reads():
    found = []
    for path in sorted(SIM.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            f = node.func
            called = (f.value.id, f.attr) if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name) else None
            plain = f.id if isinstance(f, ast.Name) else None
            if called in FORBIDDEN or plain in ("eval", "exec", "__import__"):
                found.append((path.name, node.lineno, called or plain))
    # compiled kernels, which only this user can have written and whose digest is right
    assert [f for f in found if f[0] != "kernel_cache.py"] == []


def test_files_a_person_names_are_opened_in_one_way():
    """`open`, `read_text`, `read_bytes` of paths: only where the file is the program's own, or is written."""
    own = {
        "jit.py", "html.py", "cache.py", "measure.py", "paths.py", "machine.py",  # sources, assets, /proc, the one way itself
    }  # fmt: skip
    found = []
    for path in sorted(SIM.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or path.name in own:
                continue
            f = node.func
            name = f.attr if isinstance(f, ast.Attribute) else f.id if isinstance(f, ast.Name) else ""
            modes = [a.value for a in [*node.args, *(k.value for k in node.keywords)] if isinstance(a, ast.Constant)]
            writes = any(isinstance(m, str) and set(m) & set("wax") and len(m) <= 3 for m in modes)
            on_os = isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name) and f.value.id in ("os", "gzip")
            method = isinstance(f, ast.Attribute) and name in ("read_text", "read_bytes", "fromfile", "from_file")
            if method or (name == "open" and not writes and not on_os):
                found.append((path.name, node.lineno, name))
    assert not [f for f in found if f[0] not in ("tables.py",)], found  # an archive's member
