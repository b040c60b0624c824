"""Map the folders of this checkout to the package `viva`: `engine/` is `viva.engine`.

Each top-level folder with an `__init__.py` belongs to the package. The description for package indexes is the README
without its pictures, which are only in the checkout. Everything else is in pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

root = Path(__file__).parent
folders = sorted(init.parent.name for init in root.glob("*/__init__.py"))
readme = re.sub(r"!\[[^\]]*\]\([^)]*\)\n*", "", (root / "README.md").read_text(encoding="utf-8"))
packages = {"viva" if name == "viva" else f"viva.{name}": name for name in folders}

setup(
    long_description=readme,
    long_description_content_type="text/markdown",
    package_dir=packages,
    packages=[
        *packages,
        *(f"{package}.{name}" for package, folder in packages.items() for name in find_packages(folder)),
    ],
)
