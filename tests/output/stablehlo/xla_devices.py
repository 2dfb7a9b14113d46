"""Runs modules on as many CPU devices as there are ranks, in a Python with JAX: `python xla_devices.py FOLDER RANKS`.

FOLDER has NAME.mlir with NAME.npz, whose arrays are the arguments in order, along the first dimension those of all
ranks; NAME.out.npz gets the results in the same form."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np


def run(text: str, arguments: list[np.ndarray], ranks: int) -> list[np.ndarray]:
    """The results of a module."""
    import jax  # type: ignore[import-not-found]  # only the process with JAX has it
    from jaxlib import _jax, xla_client  # type: ignore[import-not-found]  # as above

    devices: list[Any] = jax.devices()[:ranks]
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = ranks, 1
    options.device_assignment = xla_client.DeviceAssignment.create(np.arange(ranks).reshape(ranks, 1))
    build = options.executable_build_options
    build.num_replicas, build.num_partitions, build.device_assignment = ranks, 1, options.device_assignment
    program = devices[0].client.compile_and_load(text, _jax.DeviceList(tuple(devices)), options)
    mesh = jax.sharding.Mesh(np.array(devices), ("rank",))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())  # arrays of all ranks have one shape
    given: list[Any] = []
    for rows in arguments:
        parts = [jax.device_put(row, device) for row, device in zip(rows, devices, strict=True)]
        given.append(jax.make_array_from_single_device_arrays(rows.shape[1:], everywhere, parts))
    found = program.execute_sharded(given).disassemble_into_single_device_arrays()
    return [np.stack([np.asarray(part) for part in parts]) for parts in found]


if __name__ == "__main__":
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count}"
    os.environ["JAX_ENABLE_X64"], os.environ["JAX_PLATFORMS"] = "1", "cpu"
    for file in sorted(folder.glob("*.mlir")):
        with np.load(file.with_suffix(".npz")) as arrays:
            results = run(file.read_text(encoding="utf-8"), [arrays[name] for name in arrays.files], count)
        np.savez(file.with_suffix(".out.npz"), *results)
