"""Text from a trained model, made in a process of its own: torch is imported there, never by who asks."""

import subprocess
import sys
from pathlib import Path

from hetplanner.errors import InvalidInput, RunError, last_line

SAMPLER_MODULE = "hetplanner.runtime.model.sample"
TIMEOUT_S = 120.0


def sample_text(
    run_dir: Path, prompt: str, *, tokens: int = 200, temperature: float = 0.8, seed: int = 0, name: str = ""
) -> str:
    """The prompt and how the run's model goes on. Takes seconds: torch is imported anew.

    Args:
        run_dir: directory of a run that has saved its model.
        prompt: travels through a pipe; it reaches no command line.
        tokens: bytes to add.
        temperature: 0 takes the likeliest byte.
        seed: of the draws.
        name: what to call the run in messages.

    Raises:
        InvalidInput: no model was saved, or it does not go on from text.
        RunError: the process failed or took too long.
    """
    place = f"run {name or run_dir.name}"
    if not (run_dir / "model.safetensors").exists():
        raise InvalidInput(f"{place}: has no model yet; it is written when the run ends or is stopped")
    command = [sys.executable, "-m", SAMPLER_MODULE, str(run_dir), "--stdin"]
    command += [f"--tokens={tokens}", f"--temperature={temperature}", f"--seed={seed}"]
    try:
        done = subprocess.run(command, input=prompt.encode(), capture_output=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise RunError(f"{place}: sampling took more than {TIMEOUT_S:g} s; ask for fewer bytes") from None
    if done.returncode:
        message = last_line(done.stderr)
        if done.returncode == InvalidInput.exit_code:
            raise InvalidInput(f"{place}: {message}")
        raise RunError(f"{place}: sampling failed: {message}")
    return done.stdout.decode(errors="replace")
