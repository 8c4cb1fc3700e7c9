"""How kernels are compiled: by numba, when they are first called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Kernel:
    """A function that numba compiles, or loads from its cache, when it is first called.

    Numba is imported then, which takes 0.4 s with what it loads: a process that only plans or commits does without it.
    """

    def __init__(self, function: Any, compiled: Callable[[Any], Any]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._compiled = function, compiled

    @functools.cached_property
    def dispatcher(self) -> Any:
        """Numba's own form of the function."""
        return self._compiled(self._function)

    @property
    def is_compiled(self) -> bool:
        """Whether code of it is in numba's cache: a folder of the package, or of the user where that cannot be written."""
        name = f"{self._function.__module__.rpartition('.')[2]}.{self._function.__qualname__}"
        return any(Path(self.dispatcher.stats.cache_path).glob(f"{name}-*.nbi"))

    @property
    def _numba_type_(self) -> Any:
        """The type that numba asks for where another kernel calls this one."""
        return self.dispatcher._numba_type_

    def __call__(self, *arguments: Any) -> Any:
        return self.dispatcher(*arguments)


def njit(function: Any) -> Any:
    """Compile a kernel, with the code cached on disk; without fast-math, because results must not depend on the machine."""
    return Kernel(function, _compiled_kernel)


def helper(function: Any, **options: Any) -> Any:
    """Compile a function that only kernels call; their cached code includes it.

    Numba would compile it again for each literal argument. Here all integers are of one type, so that it is compiled once.
    """
    return Kernel(function, functools.partial(_compiled_helper, options))


def _compiled_kernel(function: Any) -> Any:
    import numba

    return numba.njit(cache=True, nogil=True, no_cfunc_wrapper=True)(function)


def _compiled_helper(options: dict[str, Any], function: Any) -> Any:
    import numba

    if numba.config.DISABLE_JIT:
        return function
    dispatcher = numba.njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)(function)
    resolve = dispatcher.get_call_template
    dispatcher.get_call_template = lambda types, _: resolve([numba.types.unliteral(each) for each in types], {})
    return dispatcher


def inner(function: Any, **options: Any) -> Any:
    """Compile a helper that is called in inner loops, and that neither allocates nor keeps arrays.

    Numba counts the references to array arguments atomically; without that (``_nrt``) a combine takes a sixth of the time.
    """
    return helper(function, _nrt=False, **options)


def inlined(function: Any) -> Any:
    """As :func:`inner`, and inlined into each caller, so that a constant operation leaves no branch."""
    return inner(function, forceinline=True)
