"""Says what is left out where PyTorch or a GPU is not there."""

import importlib.util
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

NEEDS_TORCH = [
    "test_functional.py",
    "test_gated.py",
    "test_module.py",
    "test_compile.py",
    "test_guide.py",
]

MISSING = importlib.util.find_spec("torch") is None
if MISSING:
    collect_ignore = NEEDS_TORCH


def pytest_terminal_summary(terminalreporter):
    if MISSING:
        names = ", ".join(NEEDS_TORCH)
        terminalreporter.write_line(f"SKIPPED, for PyTorch is not installed: {names}")
