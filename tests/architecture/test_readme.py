"""The README's example runs as it stands there, and is as short as it promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]


def test_readme_example_runs() -> None:
    example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    lines = [line for line in example.splitlines() if line.strip()]
    assert len(lines) <= 20
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True"
    assert sorted(done.stdout.splitlines()[:-1]) == ["0 0", "1 0", "2 0"]
