"""What code imports, seen in a process of its own: in that of a test everything is there already."""

import subprocess
import sys


def imported(code: str, *modules: str) -> list[str]:
    """Those of the modules that are there once the code has run, after all that it printed.

    Args:
        code: runs alone, and must not fail.
        modules: what to look for.
    """
    code += f"\nimport sys; print(*(name for name in {modules} if name in sys.modules))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
