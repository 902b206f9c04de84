"""The guide's program runs."""

import pathlib

GUIDE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "embedding-python.md"


def test_the_guides_program_runs():
    code = GUIDE.read_text().split("```python\n")[1].split("```")[0]
    names = {}
    exec(compile(code, str(GUIDE), "exec"), names)
    assert names["x"].grad.shape == (2, 16, 256)
    assert names["norm"].weight.grad.dtype == names["weight"].dtype
