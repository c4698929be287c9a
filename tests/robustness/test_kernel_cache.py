"""Compiled kernels on disk: damaged ones are compiled anew, a full disk is no fault, other users' files are not read."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import numba
import numpy as np
import pytest

from prefixsim.kernel_cache import SUFFIX, KernelCache
from prefixsim.paths import own_folder
from robustness.driving import SCRIPT


def plus(a, b):
    return a + b


def compiled(folder: Path, function=plus):
    """A dispatcher as in a new process."""
    dispatcher = numba.njit(function)
    dispatcher._cache = KernelCache(function, folder)
    return dispatcher


def hits(dispatcher) -> int:
    return sum(dispatcher._cache_hits.values())


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The file of `plus` on whole numbers."""
    assert compiled(tmp_path)(2, 3) == 5
    (path,) = tmp_path.iterdir()
    assert path.suffix == SUFFIX
    return path


def test_a_second_process_compiles_nothing(kept):
    again = compiled(kept.parent)
    assert again(2, 3) == 5
    assert hits(again) == 1
    assert again(2.0, 3) == 5.0
    assert hits(again) == 1
    assert len(list(kept.parent.iterdir())) == 2


@pytest.mark.parametrize("kind", ["empty", "cut", "zero", "random", "bit", "longer", "folder", "loop", "fifo"])
def test_damaged_files_are_compiled_anew(kept, kind):
    raw = kept.read_bytes()
    kept.unlink()
    if kind == "folder":
        (kept / "below").mkdir(parents=True)
    elif kind == "loop":
        kept.symlink_to(kept)
    elif kind == "fifo":
        os.mkfifo(kept)
    else:
        at = len(raw) * 2 // 3
        damaged = {
            "empty": b"",
            "cut": raw[:at],
            "zero": bytes(len(raw)),
            "random": os.urandom(len(raw)),
            "bit": raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :],
            "longer": raw + b"x",
        }
        kept.write_bytes(damaged[kind])
    again = compiled(kept.parent)
    assert again(2, 3) == 5
    assert hits(again) == 0
    if kind != "folder":
        once_more = compiled(kept.parent)
        assert once_more(2, 3) == 5
        assert hits(once_more) == 1
    assert [p.name for p in kept.parent.iterdir()] == [kept.name]


def test_a_file_of_another_signature_or_function_is_not_taken(kept):
    """Whole, and under the wrong name: its key inside says so."""
    other = compiled(kept.parent)
    other(2.0, 3.0)
    (floats,) = set(kept.parent.iterdir()) - {kept}
    shutil.copy(floats, kept)
    again = compiled(kept.parent)
    assert again(2, 3) == 5
    assert isinstance(again(2, 3), int)
    assert hits(again) == 0


def test_a_damaged_pickle_is_not_even_opened(kept, tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    body = pickle.dumps(Evil())
    kept.write_bytes(sha256(b"").digest() + body)
    assert compiled(kept.parent)(2, 3) == 5
    assert not (tmp_path / "ran").exists()


def test_where_nothing_can_be_written_it_works_in_memory(tmp_path):
    gone = tmp_path / "gone"
    assert compiled(gone)(2, 3) == 5
    assert not gone.exists()


def test_a_full_disk_is_no_fault(tmp_path):
    """No file may grow beyond 1000 bytes, as on a full disk."""
    code = f"""
import resource, signal, sys
sys.dont_write_bytecode = True
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
import numba
from pathlib import Path
from prefixsim.kernel_cache import KernelCache
def plus(a, b): return a + b
f = numba.njit(plus)
f._cache = KernelCache(plus, Path({str(tmp_path)!r}))
assert f(2, 3) == 5
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_processes_that_compile_at_once_leave_whole_files(tmp_path):
    code = f"""
import numba, numpy as np
from pathlib import Path
from prefixsim.kernel_cache import KernelCache
def plus(a, b): return a + b
f = numba.njit(plus)
f._cache = KernelCache(plus, Path({str(tmp_path)!r}))
for x in (1, 1.5, np.int32(1), np.arange(3)): f(x, x)
print(sum(f._cache_hits.values()))
"""
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    assert [p.wait(60) for p in both] == [0, 0]
    for p in both:
        p.communicate()
    assert len(list(tmp_path.iterdir())) == 4
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert done.stdout == b"4\n"


@pytest.fixture
def caches(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("PREFIXSIM_CACHE_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path


def spare(caches: Path) -> Path:
    return caches / "tmp" / f"prefixsim-cache-{os.geteuid()}"


def test_caches_are_for_this_user_alone(caches):
    folder = own_folder("kernels", "x")
    assert folder == caches / "mine" / "kernels" / "x"
    before = os.umask(0)
    try:
        other = own_folder("others", "y")
    finally:
        os.umask(before)
    assert other is not None
    for p in (folder, folder.parent, other, other.parent):
        assert p.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("level", ["", "kernels", "kernels/x"])
@pytest.mark.parametrize("fault", ["group", "world", "link", "file", "owner"])
def test_a_folder_that_others_could_fill_is_not_used(caches, level, fault):
    assert own_folder("kernels", "x") is not None
    folder = caches / "mine" / level
    if fault in ("group", "world"):
        folder.chmod(0o770 if fault == "group" else 0o707)
    elif fault == "owner":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(folder, 65534, 65534)
    else:
        elsewhere = caches / "elsewhere"
        folder.rename(elsewhere)
        if fault == "file":
            folder.write_text("")
        elif level:
            folder.symlink_to(elsewhere)
        else:
            pytest.skip("the user's cache folder itself may be a link")
    assert own_folder("kernels", "x") == spare(caches) / "kernels" / "x"
    shutil.rmtree(caches / "tmp")
    (caches / "tmp").write_text("")
    assert own_folder("kernels", "x") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make root's folders")
def test_what_root_has_prepared_is_read(caches, monkeypatch):
    """As in a container whose image was warmed up, and that runs as another user."""
    folder = own_folder("kernels", "x")
    assert folder is not None
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr("prefixsim.paths.tempfile.TemporaryFile", None)  # may not be written to
    spare(caches).mkdir(parents=True)
    os.chown(spare(caches), 12346, 12346)
    assert own_folder("kernels", "x") is None
    (folder / "plus.kernel").write_text("")
    assert own_folder("kernels", "x") == folder
    folder.chmod(0o777)
    assert own_folder("kernels", "x") is None


def test_the_spare_folder_is_used_by_its_owner_alone(caches):
    """Its name can be guessed, and anybody can make it first."""
    (caches / "mine").write_text("")
    spare(caches).mkdir(parents=True)
    spare(caches).chmod(0o777)
    assert own_folder("kernels") is None
    spare(caches).chmod(0o700)
    assert own_folder("kernels") == spare(caches) / "kernels"


def test_arrays_of_kinds_are_told_apart(tmp_path):
    """A kernel for contiguous arrays must not be handed strided ones."""
    dispatcher = compiled(tmp_path)
    a = np.arange(10)
    for x in (a, a[::2], a.astype(np.int32), np.broadcast_to(a, (2, 10))):
        assert np.array_equal(dispatcher(x, x), x + x)
    again = compiled(tmp_path)
    for x in (a, a[::2], a.astype(np.int32), np.broadcast_to(a, (2, 10))):
        assert np.array_equal(again(x, x), x + x)
    assert hits(again) == 4


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can become another user")
@pytest.mark.slow
def test_a_user_whose_folders_are_read_only(tmp_path):
    """Home, working folder and cache belong to root: results are right, kernels are kept below $TMPDIR, messages say what is
    wrong. (The user may read everything, as Python itself may lie in root's home.)"""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    temporary.chmod(0o1777)
    (home / "s.yaml").write_text("name: s\nworkload: {generator: random\n")
    env = {"HOME": str(home), "TMPDIR": str(temporary), "PATH": os.environ["PATH"]}
    words = [
        "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=+dac_read_search",
        "--ambient-caps=+dac_read_search", sys.executable, "-c",
        SCRIPT.replace("run_app()", "from prefixsim.jit import kernel_cache_dir; print(kernel_cache_dir()); run_app()"),
    ]  # fmt: skip
    done = subprocess.run([*words, "hw", "list"], env=env, cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(temporary / "prefixsim-cache-65534" / "kernels"))
    done = subprocess.run([*words, "run", "quickstart"], env=env, cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "runs" in done.stderr
    assert "Permission denied" in done.stderr
    assert "simulating" not in done.stderr


def test_what_older_versions_have_left_goes_when_a_newer_one_compiles(tmp_path):
    now, month = time.time(), 31 * 86_400
    kernels = tmp_path / "kernels"
    older, used, other, beside = (kernels / n for n in ("0" * 16, "1" * 16, "notes", "a" * 17))
    for folder in (older, used, other, beside):
        folder.mkdir(parents=True)
        assert compiled(folder)(2, 3) == 5
    for folder in (older, used, other, beside):
        os.utime(folder, (now - month, now - month))
    (kernels / ("2" * 16)).symlink_to(other)
    assert compiled(used)(2, 3) == 5  # read, not compiled: in use
    assert used.stat().st_mtime > now - 60
    os.utime(kernels / ("2" * 16), (now - month, now - month), follow_symlinks=False)
    new = kernels / ("f" * 16)
    new.mkdir()
    assert compiled(new)(2, 3) == 5
    assert {p.name for p in kernels.iterdir()} == {"1" * 16, "2" * 16, "f" * 16, "notes", "a" * 17}
    assert list(other.iterdir())
