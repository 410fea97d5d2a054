"""The compiled kernel. Without a C compiler the package is built all the same, and runs its reference in Python."""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import Extension, setup

SANITIZE = os.environ.get("EDGE_APPLIANCE_SANITIZE", "")
"""Sanitizers to build the kernel with, such as `address,undefined`: an error of memory ends the process."""

try:
    from Cython.Build import cythonize
except ImportError:
    kernel = []
else:
    flags = [f"-fsanitize={SANITIZE}", "-fno-sanitize-recover", "-fno-wrapv", "-g", "-O1"] if SANITIZE else ["-O3"]
    sources = {
        "edge_appliance.core.kernel": ("edge_appliance/core/kernel.pyx", "edge_appliance/core/kernel_*.pxi"),
        "edge_appliance.mqtt_frames": ("edge_appliance/mqtt_frames.pyx", ""),
    }
    extensions = [
        Extension(
            name,
            [source],
            depends=[str(path) for path in sorted(Path().glob(included))] if included else [],
            extra_compile_args=flags,
            extra_link_args=flags if SANITIZE else [],
        )
        for name, (source, included) in sources.items()
    ]
    kernel = cythonize(extensions, quiet=True)
    for extension in kernel:
        extension.optional = True  # Cython's copies do not keep it

setup(ext_modules=kernel)
