"""Kernels of two roles with `setmaxnreg`, as PTX text, whose registers can be as full as a test wants.

A warpgroup keeps some values in a loop of waits and asks for few registers, the others keep more and ask for many. Each
loads its values, computes with them each turn, and stores them in the end.
"""

from __future__ import annotations

BOUNDS = ".reqntid 384\n.maxnreg 168"
"""Three warpgroups: one may have 24 registers, and two 240."""


def roles(small: int, large: int, *, asked: tuple[int, int] = (24, 240), bounds: str = BOUNDS) -> str:
    """The kernel `roles(from, to, turns)`, with 1024 bytes for each thread in both. `small`, `large`: values kept."""
    return f"""
.version 8.0
.target sm_90a
.address_size 64
.visible .entry roles(.param .u64 from, .param .u64 to, .param .u32 turns)
{bounds}
{{
	.reg .b32 %r<8>;
	.reg .b64 %rd<8>;
	.reg .pred %p<2>;
	ld.param.u64 %rd1, [from];
	ld.param.u64 %rd2, [to];
	ld.param.u32 %r1, [turns];
	mov.u32 %r2, %tid.x;
	mul.wide.u32 %rd3, %r2, 1024;
	add.u64 %rd1, %rd1, %rd3;
	add.u64 %rd2, %rd2, %rd3;
	shr.u32 %r3, %r2, 7;
	add.u32 %r4, %r3, 1;
	setp.ne.u32 %p1, %r3, 0;
	@%p1 bra $large;
{_role("small", f"dec.sync.aligned.u32 {asked[0]}", small)}
$large:
{_role("large", f"inc.sync.aligned.u32 {asked[1]}", large)}
}}
"""


def _role(name: str, ask: str, kept: int) -> str:
    values = range(kept)
    load = "\n".join(f"	ld.global.u32 %{name}{n}, [%rd1+{4 * n}];" for n in values)
    work = "\n".join(f"	mad.lo.u32 %{name}{n}, %{name}{n}, %{name}{(n + 1) % kept}, %turn_{name};" for n in values)
    store = "\n".join(f"	st.global.u32 [%rd2+{4 * n}], %{name}{n};" for n in values)
    return f"""	.reg .b32 %{name}<{kept}>, %turn_{name};
	.reg .pred %again_{name};
	setmaxnreg.{ask};
{load}
	mov.u32 %turn_{name}, 0;
$turn_{name}:
	bar.sync %r4, 128;
{work}
	add.u32 %turn_{name}, %turn_{name}, 1;
	setp.lt.u32 %again_{name}, %turn_{name}, %r1;
	@%again_{name} bra $turn_{name};
{store}
	ret;"""
