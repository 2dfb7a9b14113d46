"""`set_algo_parameters` and other names that are taken and change nothing."""

from __future__ import annotations

import pytest

import mspc
from mspc.parallel import get_algo_parameters, reset_algo_parameters, set_algo_parameters


def test_options_are_kept_and_reset() -> None:
    set_algo_parameters(fully_use_devices=False, tensor_slice_align_size=64)
    assert [get_algo_parameters(k) for k in ("fully_use_devices", "tensor_slice_align_size")] == [False, 64]
    reset_algo_parameters()
    assert [get_algo_parameters(k) for k in ("fully_use_devices", "tensor_slice_align_size")] == [True, 16]


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"fully_use_device": True}, ValueError, "set_algo_parameters has no option 'fully_use_device'"),
        ({"fully_use_devices": 1}, TypeError, "set_algo_parameters: fully_use_devices must be of type bool, not 1"),
        ({"algo_approxi_epsilon": 1.5}, ValueError, "algo_approxi_epsilon 1.5 must be in (0, 1]"),
        ({"tensor_slice_align_size": 0}, ValueError, "tensor_slice_align_size 0 must be from 1 to 1024"),
        ({"tensor_slice_align_size": True}, TypeError, "tensor_slice_align_size must be of type int, not True"),
    ],
)
def test_wrong_options_are_refused_and_nothing_is_kept(
    options: dict[str, object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as raised:
        set_algo_parameters(enable_algo_approxi=True, **options)
    assert message in str(raised.value)
    assert get_algo_parameters("enable_algo_approxi") is False


def test_lazy_inline_leaves_a_constructor_as_it_is() -> None:
    def made(self: object) -> None: ...

    assert mspc.lazy_inline(made) is made
    assert mspc.lazy_inline(policy="front")(made) is made
