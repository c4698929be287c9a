"""What the compile decorators add to Numba's."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher

from prefixsim.jit import _MARKER, kernel


@kernel
def _scaled(x, by):
    return x * by


@kernel
def _caller(xs):
    return _scaled(xs[0], 0) + _scaled(xs[0], 3) + _scaled(xs[0], xs[1]) + _scaled(xs[0], xs.shape[0])


@pytest.mark.skipif(not isinstance(_caller, Dispatcher), reason="kernels run as plain Python")
def test_a_constant_is_no_reason_to_compile_again() -> None:
    _caller._cache = _scaled._cache = NullCache()
    assert _caller(np.array([5, 7], dtype=np.int64)) == 5 * (0 + 3 + 7 + 2)
    assert len(_scaled.signatures) == 1


def test_only_sources_of_kernels_decide_which_compiled_ones_are_valid() -> None:
    for line in (
        "from prefixsim.jit import kernel",
        "from prefixsim.jit import inline_kernel, kernel",
        "# prefixsim.jit",
    ):
        assert _MARKER.search(line.encode())
    for line in (
        "from prefixsim.jit import compile_seconds",
        "from prefixsim.jit import kernel_hash",
        "import prefixsim",
    ):
        assert not _MARKER.search(line.encode())
