"""`deal`: a parallel loop for numba on the threads that torch already has.

Numba's own thread pools sleep between two loops, and waking them costs 50 to 150 µs where a step has some
hundred loops; a pool that spins would fight torch's. The OpenMP runtime that torch brings exports
`GOMP_parallel(function, data, threads, flags)` (the ABI of GCC's libgomp, which LLVM's libomp keeps too). A loop
run through it starts and joins in about 2 µs, has as many threads as `torch.set_num_threads` says, and idles as
torch idles. Where the symbol is missing the loop runs on the calling thread.
"""

import ctypes
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch  # noqa: F401  (loads the OpenMP runtime)
from llvmlite import binding, ir
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

# Compiled loops call these; where they lead is decided in each process, see `_entry` and `_number_entry`.
_SYMBOL, _THREADS, _CREW, _PLACE = (
    "headrace_team", "headrace_threads", "headrace_crew", "headrace_place",
)  # fmt: skip
_VOID, _POINTER = ir.VoidType(), ir.IntType(8).as_pointer()
_I32, _I64 = ir.IntType(32), ir.IntType(64)


def _cache_folder() -> Path:
    """Where compiled kernels are kept: another folder for other sources.

    Left alone, numba looks at the file of the outermost function only, and would go on running what it once
    inlined from another file.
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()
    return Path(config.CACHE_DIR or Path.home() / ".cache/headrace/kernels") / digest[:16]


config.CACHE_DIR = str(_cache_folder())

_Work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Team = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
_Number = ctypes.CFUNCTYPE(ctypes.c_int)


def jit(function: F, freedom: frozenset[str] = frozenset(), nogil: bool = False) -> F:
    """`numba.njit` as all kernels want it: cached on disk, no exceptions from arithmetic.

    What is computed is rounded as it is written, so that a kernel that was just compiled, one that comes from disk and
    one that was put into another say the same to the last bit. LLVM then vectorises no sums: see `vectors.dot`.
    """
    compiled: F = njit(cache=True, error_model="numpy", fastmath=set(freedom), nogil=nogil)(function)
    return compiled


def without_lock(function: F) -> F:
    """`jit` for what takes so long that other threads of Python shall run meanwhile."""
    return jit(function, nogil=True)


def for_maxima(function: F) -> F:
    """`jit` for the largest of some numbers. It vectorises only where NaN and the sign of zero are of no concern:
    among NaNs the answer is any of them or any other."""
    return jit(function, frozenset({"nnan", "nsz"}))


def alone(work: int, data: int, threads: int, flags: int) -> None:
    """The stand-in for GOMP_parallel: the whole loop on the calling thread."""
    _Work(work)(data)


def _entry(library: Any) -> Any:
    return getattr(library, "GOMP_parallel", None) or _Team(alone)


def _number_entry(library: Any, name: str, alone: int) -> Any:
    return getattr(library, name, None) or _Number(lambda: alone)


_library = ctypes.CDLL(None)
_team = _entry(_library)
_entries = {
    _SYMBOL: _team,
    _THREADS: _number_entry(_library, "omp_get_max_threads", 1),
    _CREW: _number_entry(_library, "omp_get_num_threads", 1),
    _PLACE: _number_entry(_library, "omp_get_thread_num", 0),
}
for _name, _function in _entries.items():
    binding.add_symbol(_name, ctypes.cast(_function, ctypes.c_void_p).value)


def _number(builder: Any, name: str) -> Any:
    """What a function of OpenMP without arguments says, in 64 bits."""
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I32, []), name)
    return builder.sext(builder.call(function, []), _I64)


def _asking(name: str) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def asked(_: Any) -> Any:
        def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return _number(builder, name)

        return types.int64(), lower

    return asked


# How many threads a loop that begins here will have; how many run the loop that this is in; which of them this one is.
threads, crew, place = _asking(_THREADS), _asking(_CREW), _asking(_PLACE)


@intrinsic  # type: ignore[untyped-decorator]
def deal(typing_context: Any, body: Any, count: Any, arguments: Any) -> Any:
    """deal(body, count, arguments): run body(i, *arguments) for each i in range(count), in any order.

    For use inside `jit` functions. `body` is a `jit` function without a result. What one thread has written another
    gets from far where cores do not share a cache, the next i like the rows of a matrix. So three items of four are
    dealt out: each thread has a run of them, the same in each loop over as many. The rest idle threads fetch, so that
    uneven work balances itself. Raises MemoryError when a body fails, which only an allocation can.
    """
    signature = (types.int64, *arguments.types)
    body.dispatcher.compile(signature)
    compiled = body.dispatcher.overloads[signature]

    def lower(context: Any, builder: Any, _: Any, values: Any) -> Any:
        context.add_linking_libs([compiled.library])
        fields = cgutils.unpack_tuple(builder, values[2])
        shared = _Shared(builder, values[1], fields)
        function = _outline(context, builder, compiled, signature, shared)
        # One item needs no team; otherwise 0 means as many threads as torch has been set to.
        threads = builder.select(builder.icmp_signed("<=", values[1], _I64(1)), _I32(1), _I32(0))
        team_type = ir.FunctionType(_VOID, [function.type, _POINTER, _I32, _I32])
        team = cgutils.get_or_insert_function(builder.module, team_type, _SYMBOL)
        builder.call(team, [function, builder.bitcast(shared.at, _POINTER), threads, _I32(0)])
        with builder.if_then(builder.icmp_signed("!=", builder.load(shared.field(builder, 1)), _I64(0))):
            context.call_conv.return_user_exc(builder, MemoryError, ("a parallel loop failed",))
        return context.get_dummy_value()

    return types.void(body, types.int64, arguments), lower


@jit
def following(item: int, count: int) -> Any:
    """The item that this thread is likely to come to next in a loop of `deal`; `count` or more: none."""
    each = 3 * count // (4 * crew())
    if item >= crew() * each:
        return item + crew()
    if (item + 1) % each:
        return item + 1
    return crew() * each + place()


class _Shared:
    """What the threads of one loop share, on the caller's stack: next i, failed, count, the arguments."""

    def __init__(self, builder: Any, count: Any, fields: list[Any]) -> None:
        self.arguments = len(fields)
        self.type = ir.LiteralStructType([_I64, _I64, _I64, *(field.type for field in fields)])
        self.at = cgutils.alloca_once(builder, self.type)
        for place, value in enumerate([_I64(0), _I64(0), count, *fields]):
            builder.store(value, self.field(builder, place))

    def field(self, builder: Any, place: int, base: Any = None) -> Any:
        return cgutils.gep_inbounds(builder, base or self.at, 0, place)


def _outline(context: Any, builder: Any, compiled: Any, signature: Any, shared: _Shared) -> Any:
    """A function `void (void *shared)` that runs its own items, and then fetches what is left."""
    name = builder.module.get_unique_name(f"{builder.function.name}.shared")
    function = ir.Function(builder.module, ir.FunctionType(_VOID, [_POINTER]), name=name)
    function.linkage = "internal"
    inner = ir.IRBuilder(function.append_basic_block("entry"))
    base = inner.bitcast(function.args[0], shared.type.as_pointer())
    count = inner.load(shared.field(inner, 2, base))
    arguments = [inner.load(shared.field(inner, 3 + place, base)) for place in range(shared.arguments)]
    callee = context.declare_function(builder.module, compiled.fndesc)

    def run(item: Any) -> None:
        status, _ = context.call_conv.call_function(inner, callee, types.none, signature, [item, *arguments])
        with inner.if_then(status.is_error, likely=False):
            inner.atomic_rmw("or", shared.field(inner, 1, base), _I64(1), "monotonic")

    crew = _number(inner, _CREW)
    each = inner.sdiv(inner.mul(count, _I64(3)), inner.mul(crew, _I64(4)))
    own, dealt = inner.mul(_number(inner, _PLACE), each), inner.mul(crew, each)
    with cgutils.for_range_slice(inner, own, inner.add(own, each), _I64(1), _I64) as (item, _):
        run(item)
    fetch, work, done = (function.append_basic_block(block) for block in ("fetch", "work", "done"))
    inner.branch(fetch)
    inner.position_at_end(fetch)
    fetched = inner.atomic_rmw("add", shared.field(inner, 0, base), _I64(1), "monotonic")
    item = inner.add(dealt, fetched)
    inner.cbranch(inner.icmp_signed("<", item, count), work, done)
    inner.position_at_end(work)
    run(item)
    inner.branch(fetch)
    inner.position_at_end(done)
    inner.ret_void()
    return function
