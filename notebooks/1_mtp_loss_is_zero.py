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
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/nnxlab/nnxlab/blob/main/notebooks/1_mtp_loss_is_zero.ipynb)
#
# # Bug 1: `mtp_loss` is 0.0, and nobody says so
#
# **Claim.** `nnx.pop(model, nnx.Intermediate)` also takes the variables of every *subclass* of
# `nnx.Intermediate`. Popped first, it takes the multi-token prediction losses; the pop that wanted
# them gets nothing, and a default turns nothing into a loss of 0.0.
#
# | takes | on |
# |---|---|
# | about 60 seconds | two CPU cores |
# | about 40 seconds | a TPU chip |
#
# **Devices.** One, of any kind.
#
# **Verdict to expect.** `PASS` in every section.

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

# %%
import inspect

from flax import nnx

from nnxlab import audit, figures, parity, reference, training
from nnxlab.cases import capture, mtp_loss
from nnxlab.model import config, inputs, nnx_model, port, sown

# %% [markdown]
# ## 1. Reproduce
#
# A small DeepSeek-V3 with one MTP layer, a batch of random tokens, one forward and backward. The
# model is sound; only the function that collects its losses is the broken one.

# %%
sizes = config.DEEPSEEK3_SMALL.replace(mtp_num_layers=1)
model = nnx_model.create(sizes, seed=0)
batch = inputs.synthetic(sizes, batch=8, length=16, seed=0)

# %%
broken = training.nnx_loss_and_gradients(model, batch, term=mtp_loss.broken)
print("mtp_loss:", float(broken.mtp_loss))
assert broken.mtp_loss == 0.0
print("PASS: mtp_loss is exactly 0.0, and nothing was raised")

# %% [markdown]
# The total loss looks healthy, since it is one: the loss of next-token prediction alone. What
# shows the damage is the gradient. Twenty weights belong to the MTP block, and not one learns.

# %%
gradients = mtp_loss.mtp_gradients(broken)
largest = max(abs(g).max() for g in gradients.values())
print(f"MTP weights: {len(gradients)}, largest gradient element: {float(largest)}")
assert largest == 0.0
print("PASS: the gradient of every MTP weight is exactly 0")

# %% [markdown]
# ## 2. Why
#
# This is all the code there is to it: one pop a type, in an order, and a default.

# %%
print(inspect.getsource(mtp_loss.pop_in_order))
print(inspect.getsource(mtp_loss.loss_or_zero))
print(inspect.getsource(mtp_loss.generic_first))

# %% [markdown]
# nnx matches a filter by `isinstance`, and the first filter that matches wins. The method
# resolution order of the MTP type says who can claim its variables:

# %%
print(" -> ".join(kind.__name__ for kind in sown.mtp_losses.__mro__[:3]))
print("broken order:", [kind.__name__ for kind in mtp_loss.GENERIC_FIRST])
print("PR's order:  ", [kind.__name__ for kind in mtp_loss.SPECIFIC_FIRST])

# %% [markdown]
# The smallest experiment: a module that sows one generic and one MTP value. How many MTP values
# does each spelling find? It is not about `pop`; every function that takes filters does the same.

# %%
found = capture.by_filters()
print(found.to_string(index=False))
assert found["mtp_losses found"].tolist() == [0, 0, 1, 0, 1, 0]
print("PASS: the parent first finds none, the child first finds one")

# %% [markdown]
# ## 3. Fix
#
# The PR pops the specific types first. It mends this model, and keeps two traps: the next subclass
# needs the right place again, and a loss that is missing for another reason is still 0.0.

# %%
print(inspect.getsource(mtp_loss.specific_first))

# %% [markdown]
# The fix here takes the types in any order, pops children before their parents, and has no
# default: a collection that the config promises and the forward did not fill is an error.

# %%
print(inspect.getsource(sown.collect))
print(inspect.getsource(training.required_loss))

# %%
fixed = training.nnx_loss_and_gradients(model, batch, term=mtp_loss.fixed)
in_pr = training.nnx_loss_and_gradients(model, batch, term=mtp_loss.fixed_as_in_pr)
print(f"mtp_loss: broken {broken.mtp_loss:.4f}, PR {in_pr.mtp_loss:.4f}, here {fixed.mtp_loss:.4f}")
assert fixed.mtp_loss == in_pr.mtp_loss > 0
assert broken.loss + fixed.mtp_loss == fixed.loss
print("PASS: the broken total was short by exactly the MTP term")

# %% [markdown]
# ## 4. Verify against Linen
#
# Linen sows into collections by *name*, so there is no order to get wrong. The same weights in the
# Linen model of the package, on the same batch, must give the same loss.

# %%
linen = training.linen_loss_and_gradients(sizes, port.to_linen(model), batch)
print(f"mtp_loss: NNX {fixed.mtp_loss:.4f}, Linen {linen.mtp_loss:.4f}")
assert mtp_loss.agrees(fixed.mtp_loss, linen.mtp_loss, tolerance=1e-6)
print("PASS: equal to a relative 1e-6")

# %% tags=["nbval-ignore-output"]
figures.losses({"broken": broken, "fixed": fixed, "linen": linen})
# %% [markdown]
# ## 5. Verify against MaxText
#
# Agreeing with our own Linen model proves little if both are wrong. The package ships the weights,
# the batch and the results of one step of MaxText's own NNX DeepSeek; both implementations load
# them and are compared in logits, losses and the gradient norm of each of the 52 weights.

# %%
dump = parity.read(reference.SMALL_DUMP)
compared = parity.compare(dump)
worst = compared[["nnx", "linen"]].max(axis=None)
print(f"MaxText's mtp_loss: {dump.results['mtp_loss']:.4f}; {len(compared)} quantities compared")
assert worst <= parity.TOLERANCE
print(f"PASS: no quantity differs by more than a relative {parity.TOLERANCE}")

# %% [markdown]
# ## 6. The fault put back
#
# A forward that sows nothing at all. The default of the PR's helper hides that too; the collector
# of this package names what is missing.


# %%
class Forgetful(nnx.Module):
    config = sizes

    def __call__(self, *batch):
        return None


forgetful = Forgetful()
print("PR's helper:", float(mtp_loss.fixed_as_in_pr(forgetful)))

# %% tags=["raises-exception"]
mtp_loss.fixed(forgetful)

# %% [markdown]
# ## 7. More ways to lose it
#
# flax's newer `nnx.capture` (0.12.6) is meant to replace pop. It has other edges: it sows by exact
# type, deals the result out by `isinstance`, does not see values that are assigned rather than
# sown (as MaxText does it), and finds nothing that was sown inside `jax.lax.scan`.

# %%
captured = capture.by_capture()
print(captured.to_string(index=False))
assert captured["mtp_losses found"].tolist() == [1, 0, 0, 0, 0]
print("PASS: one way finds the value, four lose it without an error")

# %% [markdown]
# ## Take it home
#
# Give your model, the types that your training step pops, in its order, and one batch. The check
# runs an abstract forward and names each sown variable that goes astray.

# %%
audit.sown.check(model, mtp_loss.SPECIFIC_FIRST, *batch)
print("PASS: the PR's order")

# %% tags=["raises-exception"]
audit.sown.check(model, mtp_loss.GENERIC_FIRST, *batch)
