"""Prints what the package needs, without its extras, and what `make dist` needs."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())
needs = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["dist"]]
sys.stdout.write("\n".join(need.partition(";")[0].strip() for need in needs) + "\n")
