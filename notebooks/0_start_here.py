# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/nnxlab/nnxlab/blob/main/notebooks/0_start_here.ipynb)
#
# # Three silent bugs: start here
#
# **Claim.** Three bugs of MaxText's Flax NNX path, fixed in its pull request #4525, can be
# reproduced in a small model on your machine, and so can their fixes.
#
# | takes | on |
# |---|---|
# | about 40 seconds | two CPU cores |
# | about 30 seconds | a TPU chip and its host |
#
# **Devices.** None in particular: 8 CPU devices are made where there are no 8 TPU chips.
#
# **Verdict to expect.** `PASS` three times.

# %% tags=["nbval-ignore-output"]
# Does nothing where nnxlab is installed. On Colab: installs the pinned set before jax is imported.
import importlib.util
import os
import subprocess
import sys

SOURCE = "https://github.com/nnxlab/nnxlab/tree/main"  # as in pyproject.toml, project.urls
if importlib.util.find_spec("nnxlab") is None:
    repository, revision = SOURCE.split("/tree/")
    raw = repository.replace("//github.com", "//raw.githubusercontent.com")
    on_tpu = any(map(os.path.exists, ("/dev/accel0", "/dev/vfio/0")))
    wanted = [f"nnxlab @ git+{repository}@{revision}", *(["jax[tpu]"] if on_tpu else [])]
    pip = [sys.executable, "-m", "pip", "install", "-q", "-c", f"{raw}/{revision}/requirements.txt"]
    subprocess.run([*pip, *wanted], check=True)
    if "jax" in sys.modules:
        raise RuntimeError(
            "nnxlab is installed now, but an older jax is loaded: restart the "
            "session (Runtime > Restart session), then run all cells again."
        )

# %% [markdown]
# ## What this is
#
# MaxText trains DeepSeek-V3 with *multi-token prediction* (MTP): beside the next token the model
# predicts the one after it, and the second prediction's loss is added to the first's. Three things
# went wrong when that ran on Flax NNX, and none of them at the place where the mistake was made.
#
# | notebook | what goes wrong | what you see |
# |---|---|---|
# | [1_mtp_loss_is_zero](1_mtp_loss_is_zero.ipynb) | a filter takes a subclass's variables | `mtp_loss` is 0.0 at every step |
# | [2_qwix_needs_targets](2_qwix_needs_targets.ipynb) | quantizing runs a forward, without targets | a `TypeError` deep in `jnp.roll` |
# | [3_scan_axis_moves](3_scan_axis_moves.ipynb) | a scan axis' name is hardcoded | nothing; weights are replicated |
#
# Two more show the price. [4_four_training_runs](4_four_training_runs.ipynb) trains NNX and Linen,
# plain and quantized, with the bugs and without; [5_price_at_671b](5_price_at_671b.ipynb) goes to
# DeepSeek-V3's full size and asks the TPU's own compiler.
#
# Everything that the notebooks show is imported from the package `nnxlab`: the model, the broken
# code, the fixed code beside it, and the instruments that look for the same faults in your model.

# %%
from nnxlab import devices, figures, sharding, verdict
from nnxlab.cases.finding import Finding
from nnxlab.model import config, port

# %% [markdown]
# One call gives the mesh: TPU chips if there are eight, else CPU devices. It comes before any other
# work, because jax can be given more CPU devices only until it starts.

# %% tags=["nbval-ignore-output"]
mesh = devices.mesh("fsdp=8")
print(devices.describe(mesh))

# %% [markdown]
# ## The specimen
#
# The model is DeepSeek-V3 in MaxText's own layout: the same weights under the same names, with the
# same logical axes. Its smallest sizes reproduce MaxText's numbers to a relative 1e-4
# (notebook 1 checks it), its largest is the published model, counted here without allocating it.

# %%
for name in ("deepseek3-small", "deepseek3-tiny", "deepseek3-671b"):
    print(f"{name:16} {port.count_parameters(config.CONFIGS[name]):>15,} parameters")
assert port.count_parameters(config.DEEPSEEK3_671B) == 671_026_419_200

# %% tags=["nbval-ignore-output"]
counts = {
    name: sharding.count_by_group(config.CONFIGS[name])
    for name in ("deepseek3-small", "deepseek3-tiny", "deepseek3-671b")
}
figures.parameters_by_group(counts)

# %% [markdown]
# The tiny model keeps the depth and the vocabulary of the large one and shrinks its width, so half of
# it is embedding and output head; the large one is almost all experts. Both stack their layers, and
# so both have every one of the three bugs.

# %% [markdown]
# ## The verdict
#
# Each case makes claims about the broken code and about the fixed code and checks them here and
# now. The small size is enough for that; `nnxlab verify` does the same for 61 layers.


# %%
def show(finding: Finding) -> None:
    print(f"{finding.case}\n  broken:  {finding.broken_shows}\n  fixed:   {finding.fixed_shows}")
    print(f"  verdict: {finding.verdict}, {len(finding.broken + finding.fixed)} claims\n")


findings = list(verdict.verify(config="small"))
for finding in findings:
    show(finding)
assert verdict.all_hold(findings)

# %% [markdown]
# ## What to do now
#
# Read the notebooks in any order; each ends with a check for your own code. On a command
# line, `nnxlab verify --json` prints every figure behind the table, and `nnxlab parity` compares
# both implementations with MaxText.
