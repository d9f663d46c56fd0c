import importlib.util

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from nnxlab import devices
from nnxlab.scale import collectives

TPU = """
ENTRY %main {
  %all-gather.281 = bf16[1,64,80]{2,1,0:T(8,128)(2,1)S(1)} all-gather(%fusion.82), channel_id=271
  %all-gather.9 = f32[8,4]{1,0} all-gather(%p), dimensions={0}
  %start = (f32[2]{0}, f32[16]{0}, u32[], u32[]) all-gather-start(f32[2]{0} %x), dimensions={0}
  %done = f32[16]{0} all-gather-done((f32[2]{0}, f32[16]{0}) %start)
  %sum = (f32[4]{0}, s8[2,2]{1,0}) all-reduce(%a, %b), to_apply=%add
  %move = pred[7]{0} collective-permute(%c), metadata={op_name="all-to-all(x)"}
  %f = f32[3]{0} fusion(%all-gather.9), calls=%all-reduce.clone
}
"""


def test_each_is_counted_once_with_the_bytes_of_its_result():
    assert collectives.by_kind(TPU) == {
        "all-gather": {"count": 3, "bytes": 2 * 64 * 80 + 4 * 32 + 4 * 16},
        "all-reduce": {"count": 1, "bytes": 4 * 4 + 4},
        "collective-permute": {"count": 1, "bytes": 7},
    }


# As the TPU's compiler wrote it for the step of deepseek3-tiny on v6e:2x4, shortened.
SCATTER = """
%all-reduce-scatter.6.clone.1 (input.16: f32[1280,64]) -> f32[1280,8] {
  %all-reduce.157 = f32[1280,64]{0,1:T(8,128)} all-reduce(%input.16), channel_id=57, to_apply=%add
  ROOT %cut = f32[1280,8]{0,1:T(8,128)S(1)} dynamic-slice(%all-reduce.157, %constant.4003, %m)
}
%all-reduce-scatter.11 (a.3: f32[64,16], b.3: f32[4,128]) -> (f32[8,16], f32[4,16]) {
  %both = (f32[64,16]{1,0:T(8,128)}, f32[4,128]{1,0}) all-reduce(%a.3, %b.3), to_apply=%add
}
ENTRY %main (p: f32[1280,64]) -> f32[1280,8] {
  %fusion.1527 = f32[1280,8]{0,1} fusion(%p), kind=kCustom, calls=%all-reduce-scatter.6.clone.1
  %sum = f32[5]{0} all-reduce(%q), to_apply=%add
}
"""


def test_a_reduce_scatter_that_the_tpu_writes_as_a_fusion_is_one():
    assert collectives.by_kind(SCATTER) == {
        "all-reduce": {"count": 1, "bytes": 4 * 5},
        "reduce-scatter": {"count": 2, "bytes": 4 * (1280 * 8 + 8 * 16 + 4 * 16)},
    }


# As written for v5e:2x4, shortened: started, run beside a matmul, done; then two of one channel.
ASYNC = """
%fused_computation.1910 (p.1: bf16[1,8,64]) -> (bf16[1,8,64], bf16[1,64,64]) {
  %all-gather.1 = bf16[1,64,64]{2,1,0:T(8,128)(2,1)S(1)} all-gather(%p.1), channel_id=273
  ROOT %c.1 = (u32[]) custom-call(%all-gather.1), custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion.2214 (p.2: bf16[1,8,64]) -> (f32[128], bf16[1,64,64]) {
  %all-gather.2 = bf16[1,64,64]{2,1,0:T(8,128)(2,1)S(1)} all-gather(%p.2), channel_id=273
}

%fused_computation.1912 (p.3: bf16[1,8,64]) -> bf16[1,64,64] {
  %all-gather.3 = bf16[1,64,64]{2,1,0:T(8,128)(2,1)} all-gather(%p.3), channel_id=273
  ROOT %c.3 = bf16[1] custom-call(%all-gather.3), custom_call_target="AsyncCollectiveDone"
}

ENTRY %main (p: f32[4]) -> f32[4] {
  %all-to-all.1 = f32[4]{0} all-to-all(%p), channel_id=9
  %all-to-all.2 = f32[4]{0} all-to-all(%all-to-all.1), channel_id=9
}
"""


def test_an_asynchronous_one_counts_once_however_many_fusions_it_runs_beside():
    assert collectives.by_kind(ASYNC) == {
        "all-gather": {"count": 1, "bytes": 2 * 64 * 64},
        "all-to-all": {"count": 2, "bytes": 2 * 4 * 4},
    }


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("((f32[2]{0}, f32[3]{0}), (f32[16]{0:T(8)}, f32[24]{0})) all-gather-start(%a, %b)", 40),
        ("(f32[2]{0}, f32[2]{0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%a)", 2),
        ("(f32[2]{0}, f32[3]{0}) all-reduce-start(%a, %b)", 5),  # carries results alone
        ("f32[7]{0} all-reduce-start(%a)", 7),
    ],
)
def test_a_start_counts_its_results_however_many(line, count):
    (found,) = collectives.by_kind(f"  %x = {line}").values()
    assert found == {"count": 1, "bytes": 4 * count}


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the TPU's compiler: make tpu"
)
def test_the_tpu_compiler_sums_a_sharded_gradient_by_reduce_scatter():
    mesh = devices.tpu_topology("v6e:2x4")
    rows = NamedSharding(mesh, PartitionSpec("fsdp"))
    x, y = (jax.ShapeDtypeStruct((1024, n), jnp.float32, sharding=rows) for n in (512, 256))
    gradient = jax.jit(lambda x, y: x.T @ y, out_shardings=rows).lower(x, y)
    with devices.quiet():
        text = gradient.compile().as_text()
    assert collectives.by_kind(text) == {
        "reduce-scatter": {"count": 1, "bytes": 4 * 512 * 256 // 8}
    }


@pytest.mark.parametrize(("dtype", "width"), [("f32", 4), ("bf16", 2), ("f8e4m3fn", 1), ("s8", 1)])
def test_every_dtype_has_its_width(dtype, width):
    text = f"%x = {dtype}[5,3]{{1,0}} all-gather(%y)"
    assert collectives.by_kind(text)["all-gather"]["bytes"] == 15 * width


def test_a_real_program_has_what_its_shardings_ask_for(mesh):
    split, whole = (NamedSharding(mesh, PartitionSpec(axis)) for axis in ("fsdp", None))
    gather = jax.jit(lambda x: x + 1, in_shardings=split, out_shardings=whole)
    text = gather.lower(jnp.zeros((16, 4))).compile().as_text()
    assert collectives.by_kind(text) == {"all-gather": {"count": 1, "bytes": 16 * 4 * 4}}
    local = jax.jit(lambda x: x + 1, in_shardings=split, out_shardings=split)
    assert collectives.by_kind(local.lower(jnp.zeros((16, 4))).compile().as_text()) == {}
