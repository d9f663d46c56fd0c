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
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/nnxlab/nnxlab/blob/main/notebooks/2_qwix_needs_targets.ipynb)
#
# # Bug 2: quantizing crashes in `jnp.roll`
#
# **Claim.** qwix quantizes an NNX model by *running* it once, with exactly the inputs that it is
# given. MaxText gave it no targets; the MTP block shifts them with `jnp.roll`, and there was
# nothing to shift. A fix that only avoids the crash leaves the MTP layer unquantized.
#
# | takes | on |
# |---|---|
# | about 40 seconds | two CPU cores |
# | about 30 seconds | a TPU chip |
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

from nnxlab import audit, figures, quantization, training
from nnxlab.cases import qwix_targets
from nnxlab.model import config, inputs, nnx_model

# %% [markdown]
# ## 1. Reproduce
#
# A small DeepSeek-V3 with one MTP layer and MaxText's `fp8_full` rules (e4m3 forward, e5m2
# backward). The call passes three inputs, as MaxText's did. The model is abstract: shapes for values.

# %%
sizes = config.DEEPSEEK3_SMALL.replace(mtp_num_layers=1)
abstract = nnx_model.abstract(sizes)
print(inspect.getsource(qwix_targets.broken))

# %% tags=["raises-exception"]
qwix_targets.broken(abstract, quantization.fp8_full())

# %%
error = qwix_targets.error_of(qwix_targets.broken, abstract, quantization.fp8_full())
assert error == qwix_targets.EXPECTED_ERROR
print("PASS: the very error that MaxText raised")

# %% [markdown]
# ## 2. Why
#
# The message names neither qwix nor a target. The call stack does: quantizing calls the whole model.

# %%
path = qwix_targets.call_path(qwix_targets.broken, abstract, quantization.fp8_full())
print(" -> ".join(path))
assert path[-1] == "roll_left"

# %% [markdown]
# Two things are immune. Without MTP layers nothing reads the targets, and a Linen model is only
# wrapped: qwix refuses inputs for it, and its forward first runs when the model is initialised,
# where a guard supplies the targets.

# %%
without_mtp = nnx_model.abstract(sizes.replace(mtp_num_layers=0))
assert not qwix_targets.error_of(qwix_targets.broken, without_mtp, quantization.fp8_full())
assert not qwix_targets.linen_error(sizes, quantization.fp8_full())
print("PASS: mtp_num_layers=0 and Linen raise nothing")

# %% [markdown]
# ## 3. The tempting fix
#
# `if targets is not None:` around the MTP block stops the crash. It also stops the MTP block from
# running, and what does not run is not quantized. No error, no warning.

# %%
print(inspect.getsource(qwix_targets.GuardedDeepSeek.__call__))
guarded = quantization.fp8_full()
qwix_targets.broken(qwix_targets.abstract_guarded(sizes), guarded)
print("MTP modules quantized:", len(qwix_targets.mtp_modules(guarded)))
assert not qwix_targets.mtp_modules(guarded)
print("PASS: no crash, and no MTP module quantized")

# %% [markdown]
# ## 4. Fix
#
# The PR passes dummy targets where there are MTP layers. Here the inputs come from one place that
# knows which arguments a config needs; a missing one is named before anything is traced.

# %%
print(inspect.getsource(inputs.needed))
print(inspect.getsource(quantization.quantize))

# %% tags=["raises-exception"]
quantization.quantize(abstract, quantization.int8(), inputs.dummy(sizes)._replace(targets=None))

# %% [markdown]
# Quantize for real now, with both rule sets, and see what the rules reached.

# %%
model = nnx_model.create(sizes)
for name, make in quantization.PROVIDERS.items():
    provider = make()
    quantized = qwix_targets.fixed(model, provider)
    unused = quantization.unused_rules(provider)
    print(
        f"{name}: {len(qwix_targets.mtp_modules(provider))} MTP modules, {len(unused)} unused rules"
    )
    assert qwix_targets.mtp_modules(provider) and not unused
print("PASS: every rule applied, and the MTP layer is quantized")

# %% [markdown]
# ## 5. What qwix leaves behind
#
# The forward that quantizes also sows. qwix's own result still carries those variables; in a train
# state they are a structure that the next step does not have. `quantize` puts everything back that
# is neither a parameter nor a statistic of qwix.

# %%
by_qwix = audit.quantized.leftovers(
    abstract, qwix_targets.fixed_as_in_pr(abstract, quantization.int8())
)
print("\n".join(by_qwix))
by_us = audit.quantized.leftovers(model, quantized)
assert by_qwix and not by_us
print(f"PASS: {len(by_qwix)} leftovers by qwix alone, {len(by_us)} by quantize")

# %% [markdown]
# ## 6. Does MaxText's own rule reach its MTP layer?
#
# MaxText 0.2.4 quantizes what matches `decoder/.*layers.*`. The MTP block's path begins with
# `mtp_block/`. Applied to this model, whose paths are MaxText's, that rule reaches none of it.
# (It names no `einsum` either, so the experts of a dense matmul stay in full precision.)

# %%
as_maxtext, ours = quantization.maxtext_fp8_full(), quantization.fp8_full()
for provider in (as_maxtext, ours):
    qwix_targets.fixed_as_in_pr(abstract, provider)
print("rule:", quantization.MAXTEXT_LAYERS)
print("MTP modules by MaxText's rule:", len(qwix_targets.mtp_modules(as_maxtext)))
print("MTP modules by ours:          ", len(qwix_targets.mtp_modules(ours)))
assert not qwix_targets.mtp_modules(as_maxtext)
print("PASS: MaxText's rule quantizes no MTP module")

# %% tags=["nbval-ignore-output"]
runs = {"guarded forward": guarded, "MaxText's rule": as_maxtext, "quantize": ours}
reached = {label: {path for path, _ in provider.quantized} for label, provider in runs.items()}
figures.reached(sorted(set().union(*reached.values())), reached)
# %% [markdown]
# ## 7. Verify: the quantized model still learns
#
# One forward and backward of the int8 model against the float one, from the same weights. The
# losses must be near each other and must not be equal: equal would mean that nothing was quantized.

# %%
batch = inputs.synthetic(sizes)
plain = training.nnx_loss_and_gradients(model, batch)
eight_bit = training.nnx_loss_and_gradients(quantized, batch)
difference = abs(eight_bit.mtp_loss - plain.mtp_loss) / plain.mtp_loss
print(f"mtp_loss: float32 {plain.mtp_loss:.3f}, int8 within 5 %: {bool(difference < 0.05)}")
assert 0 < difference < 0.05
assert training.norm(g for p, g in eight_bit.gradients.items() if p.startswith("mtp_block.")) > 0
print("PASS: quantized, and close")

# %% [markdown]
# ## Take it home
#
# After quantizing a model of your own, ask two questions: what is new in it, and which matrices
# did no rule reach? For this model the second list is what the rules leave out on purpose.

# %%
assert not audit.quantized.leftovers(model, quantized)
print("\n".join(audit.quantized.unreached(quantized, ours.quantized)))
