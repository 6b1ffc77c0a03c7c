"""Puts the compiled kernels for CPUs into a wheel, where JAXTERN_NATIVE=1; pyproject.toml has all else of the package.

Such a wheel is for one kind of machine and any Python 3. It is built without isolation, as the kernels need the header
of an installed jaxlib. Other wheels, as those that pip makes of a clone or an sdist, compile the kernels at first use.
"""

import os
import platform
import runpy
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

CARRIES_NATIVE = os.environ.get("JAXTERN_NATIVE") == "1"


class BuildPy(build_py):
    """Compiles the library beside its sources, once for every level of processors."""

    def run(self) -> None:
        super().run()
        if not CARRIES_NATIVE or self.editable_mode:
            return
        native = runpy.run_path(str(Path(__file__).with_name("kernels") / "native" / "library.py"))
        for level in native["LEVELS"][platform.machine()]:
            target = Path(self.build_lib, "jaxtern", "kernels", "native", f"native-{level}.so")
            compiler = [*native["find_compiler"](), *native["FLAGS"], "-s", f"-march={level}"]
            subprocess.run([*compiler, *native["INPUTS"], "-o", str(target)], check=True)


class NativeDistribution(Distribution):
    """Of a platform where it carries the library, which setuptools does not know of."""

    def has_ext_modules(self) -> bool:
        return CARRIES_NATIVE


class BdistWheel(bdist_wheel):
    """For any Python 3, which loads the library by ctypes."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


setup(distclass=NativeDistribution, cmdclass={"build_py": BuildPy, "bdist_wheel": BdistWheel})
