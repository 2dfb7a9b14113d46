"""`mindspore.numpy.fft`, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from mspc import Tensor
from mspc import numpy as mnp

REAL = np.random.default_rng(4).standard_normal((3, 4)).astype(np.float32)
COMPLEX = (REAL + 1j * REAL[::-1]).astype(np.complex64)


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_along_an_axis(name: str) -> None:
    given = REAL if name in ("rfft", "ihfft") else COMPLEX
    for arguments in ((), (3,), (None, 0), (5, 0, "ortho")):
        found = getattr(mnp.fft, name)(Tensor(given), *arguments).asnumpy()
        np.testing.assert_allclose(found, getattr(np.fft, name)(given, *arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn"])
def test_along_axes(name: str) -> None:
    given = REAL if name.startswith("rfft") else COMPLEX
    for arguments in ((), ((2, 4), (0, 1)), (None, (1, 0), "forward")):
        found = getattr(mnp.fft, name)(Tensor(given), *arguments).asnumpy()
        np.testing.assert_allclose(found, getattr(np.fft, name)(given, *arguments), rtol=1e-4, atol=1e-5)


def test_frequencies_and_shifts() -> None:
    np.testing.assert_allclose(mnp.fft.fftfreq(5, 0.5).asnumpy(), np.fft.fftfreq(5, 0.5), rtol=1e-6)
    np.testing.assert_allclose(mnp.fft.rfftfreq(5).asnumpy(), np.fft.rfftfreq(5), rtol=1e-6)
    np.testing.assert_array_equal(mnp.fft.fftshift(Tensor(REAL), 1).asnumpy(), np.fft.fftshift(REAL, 1))
    np.testing.assert_array_equal(mnp.fft.ifftshift(Tensor(REAL)).asnumpy(), np.fft.ifftshift(REAL))
    assert mnp.fft.hfft2(Tensor(COMPLEX)).shape == (3, 6)
    assert mnp.fft.ihfftn(Tensor(REAL)).shape == (3, 3)
