"""One run on several processes of this machine, through ``jax.distributed``.

On a TPU pod slice nothing of this is needed: every host runs the same command, and
``jax.distributed.initialize()`` finds the others by itself.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import BinaryIO

import jax

# How a child learns its place; set by ``spawn``, read by ``join``.
COORDINATOR, COUNT, NUMBER = "NNXLAB_COORDINATOR", "NNXLAB_PROCESSES", "NNXLAB_PROCESS_ID"
INTERRUPTED = 130  # what nnxlab exits with on Ctrl-C
_POLL = 0.2  # seconds between two looks at the children


class ProcessError(RuntimeError):
    """A process of a run on several failed; the others were stopped."""


def is_child() -> bool:
    """Whether this process was started by ``spawn``."""
    return COORDINATOR in os.environ


def join() -> bool:
    """Joins the run that ``spawn`` started this process for; before jax starts.

    Returns:
      Whether there is such a run.
    """
    if not is_child():
        return False
    _keep_stdout()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        os.environ[COORDINATOR], int(os.environ[COUNT]), int(os.environ[NUMBER])
    )
    return True


def _keep_stdout() -> None:
    """Leaves stdout to Python: gloo writes a line a rank to file descriptor 1, amid the JSON."""
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stdout = os.fdopen(own, "w", buffering=1)


def spawn(arguments: Sequence[str], processes: int, devices_per_process: int) -> int:
    """Runs ``nnxlab ARGUMENTS`` on several processes; process 0 speaks, the others are quiet.

    Args:
      arguments: The command line of each, without the options that brought us here.
      processes: How many.
      devices_per_process: CPU devices of each.

    Returns:
      The exit code of process 0; none of the processes is left.

    Raises:
      ProcessError: One of them failed; with its number, exit code and what it said last.
    """
    shared = {
        COORDINATOR: f"localhost:{_free_port()}",
        COUNT: str(processes),
        "JAX_NUM_CPU_DEVICES": str(devices_per_process),
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-m", "nnxlab", *arguments]
    children: list[subprocess.Popen] = []
    with contextlib.ExitStack() as files:
        files.callback(_stop, children)
        # Files and not pipes: a pipe that nobody reads stops who writes into it.
        said = [files.enter_context(tempfile.TemporaryFile()) for _ in range(processes)]
        for number in range(processes):
            quiet = {"stdout": subprocess.DEVNULL, "stderr": said[number]} if number else {}
            environment = os.environ | shared | {NUMBER: str(number)}
            children.append(subprocess.Popen(command, env=environment, **quiet))
        return _wait(children, said)


def _wait(children: list[subprocess.Popen], said: list[BinaryIO]) -> int:
    while True:
        codes = [child.poll() for child in children]
        if codes[0] == INTERRUPTED:
            return INTERRUPTED
        for number, code in enumerate(codes):
            if code:
                last = _last_words(said[number]) if number else "see above"
                raise ProcessError(f"process {number} of {len(children)} ended with {code}: {last}")
        if all(code == 0 for code in codes):
            return 0
        time.sleep(_POLL)


def _stop(children: list[subprocess.Popen]) -> None:
    for child in children:
        if child.poll() is None:
            child.terminate()
    for child in children:
        try:
            child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _last_words(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")[-2000:]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]
