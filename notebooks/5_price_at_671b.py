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
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/nnxlab/nnxlab/blob/main/notebooks/5_price_at_671b.ipynb)
#
# # Bug 3 at full size
#
# **Claim.** `deepseek3-tiny` shows a tenth of the model replicated and fits anywhere. At DeepSeek-V3's
# own 671 B parameters the same renaming makes every chip of a 512-chip slice hold six times as much,
# and the TPU's own compiler refuses the training step that it accepts without the bug.
#
# | takes | on |
# |---|---|
# | about 20 seconds; a minute more where the TPU's compiler is installed | two CPU cores |
# | about 20 seconds | a TPU chip's host |
#
# **Devices.** None. The price is arithmetic on shapes; the compiler is asked about chips that are
# not there.
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
import importlib.util

from nnxlab import chips, reference
from nnxlab.model import config
from nnxlab.scale import compile_command, pictures, price, program, slices

# %%
MESH, SIZES = {"fsdp": 512}, [2**n for n in range(3, 13)]
weights = price.weights(config.DEEPSEEK3_671B)

# %% [markdown]
# ## 1. The model
#
# All of it, abstractly: names, shapes and logical axes, before and after one broken forward. The
# published size, with and without the biases that only take part in choosing experts.

# %%
table = price.price(weights, MESH)
biases = table["path"].str.endswith(price.ROUTING_BIAS)
print(f"{table['elements'].sum():,} parameters")
print(f"{table['elements'][~biases].sum():,} without the routing biases")
assert table["elements"].sum() == 671_026_419_200
assert table["elements"][~biases].sum() == 671_026_404_352
print("PASS: the published model")

# %% [markdown]
# ## 2. What each chip holds
#
# On 512 chips under fsdp, in float32, parameters by group. The experts keep their sharded axis, since
# the name that the bug drops from them is `exp`, which this mesh does not shard; everything else in
# the layers is on every chip.

# %%
print(f"{'GiB a chip':16}{'declared':>10}{'broken':>10}{'factor':>9}")
for row in price.by_group(table).itertuples():
    gib = f"{row.fixed / chips.GIB:10.3f}{row.broken / chips.GIB:10.3f}"
    print(f"{row.group:16}{gib}{row.factor:9.1f}")

# %%
held = {state: price.bytes_per_chip(table, state) for state in ("fixed", "broken")}
hbm = chips.CHIPS["v5p"].hbm_bytes
for state, bytes_of in held.items():
    total = bytes_of["total_bytes_per_chip"]
    print(
        f"{state:8}{total / chips.GIB:7.1f} GiB with gradients and AdamW, {total / hbm:.0%} of v5p"
    )
assert held["fixed"]["total_bytes_per_chip"] < hbm < held["broken"]["total_bytes_per_chip"]
print("PASS: it fits 512 chips of v5p, and with the bug it does not")

# %% [markdown]
# ## 3. More chips
#
# Under fsdp alone 512 chips are the end, since the low ranks of attention are 512 and 1,536 wide; from
# there on a tensor axis takes the rest. Sharding is meant to make this line fall with the chips. With
# the bug it flattens, since what is replicated does not get smaller, until the tensor axis cuts it.
# (Activations are not counted.)

# %%
curve = slices.curve(weights, MESH, sorted({*SIZES, *chips.CHIPS["v5p"].slices}))
for kind in ("v5e", "v6e", "v4", "v5p"):
    needed = {state: slices.smallest(curve, chips.CHIPS[kind], state) for state in held}
    shown = [f"{state} {found['chips'] if found else 'none'}" for state, found in needed.items()]
    print(f"smallest slice of {kind}: {', '.join(shown)}")
assert needed["broken"]["chips"] >= 8 * needed["fixed"]["chips"]
print("PASS: the bug costs at least eight times the chips of v5p")

# %% tags=["nbval-ignore-output"]
pictures.price(curve[curve["chips"].isin(SIZES)], table, "deepseek3-671b in float32")

# %% [markdown]
# The kind of mesh matters. With an expert axis the experts lose their sharding too; with a tensor axis
# part of the damage is undone, because `mlp` and the heads are cut by it.

# %%
for axes in ({"fsdp": 64, "expert": 8}, {"fsdp": 128, "tensor": 4}):
    priced = price.price(weights, axes)
    one, other = (price.bytes_per_chip(priced, s)["total_bytes_per_chip"] for s in held)
    mesh = ",".join(f"{axis}={size}" for axis, size in axes.items())
    print(f"{mesh:16}{one / chips.GIB:8.1f} -> {other / chips.GIB:6.1f} GiB a chip")

# %% [markdown]
# ## 4. The compiler's word
#
# The TPU's compiler runs on a CPU and compiles for chips by name. **The figures below are a stored
# table**; the cell says on what it was made, and `nnxlab compile --matrix` makes it anew. First the
# training step of `deepseek3-tiny`: the parameters that each chip holds, and its peak.

# %%
stored = reference.tpu_compile()
print(f"stored table, made with {stored['made_on']}\n")
tiny = [r for r in stored["reports"] if r["config"] == "deepseek3-tiny"]
print(f"{'MiB a chip':26}{'parameters':>20}{'peak':>20}{'all-gather':>12}")
for report in tiny:
    fixed, broken = report["fixed"], report["broken"]
    key = "parameter_bytes_per_chip"
    parts = [f"{fixed[k] / 2**20:8.1f} -> {broken[k] / 2**20:5.1f}" for k in (key, "peak_bytes")]
    gathers = [f"{r['collectives']['all-gather']['count']}" for r in (fixed, broken)]
    print(f"{report['topology']:11}{report['cell']:15}{parts[0]:>20}{parts[1]:>20}", end="")
    print(f"{' -> '.join(gathers):>12}")
    assert fixed[key] < broken[key] and fixed["peak_bytes"] < broken["peak_bytes"]
print("PASS: on every slice the broken step holds more")

# %% [markdown]
# Then the 671 B model on `v5p:8x8x8`, with one MTP layer, bfloat16 activations, each layer recomputed
# in the backward pass, and every expert computed for every token (no `ragged_dot`: the dense form
# compiles in two minutes). The forward pass alone still fits with the bug. The training step does not.

# %%
for report in stored["reports"]:
    if report["config"] == "deepseek3-671b":
        print(f"{report['program']}, {report['batch'][0]} rows of {report['batch'][1]} tokens")
        for state in ("fixed", "broken"):
            found = report[state]
            peak = found["peak_bytes"] / chips.GIB if "error" not in found else 0
            print(f"  {state:8}{found.get('error') or f'{peak:.1f} GiB a chip at its peak'}")
assert "RESOURCE_EXHAUSTED" in found["error"] and "error" not in report["fixed"]
print("PASS: the compiler refuses the broken training step and accepts the fixed one")

# %% [markdown]
# Where the TPU's compiler is installed (`pip install "nnxlab[tpu-compile]"`), one row of the table is
# made again here and now, and held against the stored one.

# %% tags=["nbval-ignore-output"]
if importlib.util.find_spec("libtpu") is None:
    print("skipped: libtpu is not installed, the stored table stands alone")
else:
    live = program.report(program.Program(topology="v6e:2x4"))
    (row,) = [r for r in tiny if (r["topology"], r["cell"]) == ("v6e:2x4", "nnx_mtp")]
    for state in ("fixed", "broken"):
        ratio = live[state]["peak_bytes"] / row[state]["peak_bytes"]
        print(f"{state}: peak against the stored table {ratio:.3f}")
        assert abs(ratio - 1) < 0.05
    print(compile_command.table(live).to_string(index=False))

# %% [markdown]
# ## 5. The check that would have slept
#
# MaxText raises when more than 2 % of the parameters are on every chip. At this size that is no check:
# nearly all elements are experts, and what the bug replicates beside them is few elements and many
# bytes on each chip.

# %%
from nnxlab import sharding

mesh = price.abstract_mesh(MESH)
rows = sharding.rows(weights.shapes, weights.after, mesh)
share = sharding.unsharded(rows)["share"]
factor = sharding.times_even_share(rows, mesh.size)
print(f"{share:.2%} of all elements are replicated; each chip holds {factor:.1f} times its share")
sharding.check_sharded(rows, tolerance=0.02)
assert share < 0.02 and factor > 5
print("PASS: a check of the share of elements does not see it")

# %% [markdown]
# ## Take it home
#
# Your model's table needs shapes and names and no chip: any mesh, any size. Ask what each chip holds
# beside its even share; a test can do that on a laptop for the slice that you will rent.

# %% tags=["raises-exception"]
sharding.check_even(rows, mesh.size, limit=1.25, largest=3)
