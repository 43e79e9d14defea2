"""NVML in a process of its own: where the driver's library crashes or hangs, that costs what it was
asked, not the program that asks.

:func:`start` forks a helper while the program has one thread. The helper loads no library: it forks
again for the first question and tells how that process ended, which else answers all questions. A
function of NVML in which it ended is from then on one that the driver does not have, and the
question is asked again, by another process.

In a program that runs for months (``lasting``) what went wrong is tried anew after a pause that
grows.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import resource
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FunctionType
from typing import Any, Final, NoReturn, TypeVar

T = TypeVar("T")

SILENCE: Final = 10.0
"""Seconds that one call may take. Starting NVML may take all the time that a question has: without
persistence mode the driver initialises each GPU first.
"""
LAST_WAIT: Final = 1.0
"""Seconds after SIGKILL. What is there then sits in the driver."""
_FIRST_PAUSE: Final = 30.0
_LONGEST_PAUSE: Final = 3600.0
"""Seconds until what crashed or hung is tried anew, where the program lasts."""
_LOOK: Final = 0.5
_STARTS: Final = "nvmlInit"
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_NAME: Final = 24
_ROOM: Final = 128
STUCK: Final = "it hangs in the driver and cannot be ended"
"""What :func:`ask` says where a process that asked NVML is there long after SIGKILL."""
_ANSWERED: Final = 77
"""Exit status of a process that has answered; a library may end it with any other."""


class _Pipe:
    """One end of a pair that carries messages, each with its length before it. Raises EOFError once
    the other end is closed. (multiprocessing's takes longer to import than a GPU to be asked.)
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send_bytes(self, message: bytes) -> None:
        self._end.sendall(len(message).to_bytes(8, "little") + message)

    def recv_bytes(self) -> bytes:
        return self._exactly(int.from_bytes(self._exactly(8), "little"))

    def send(self, message: Any) -> None:
        self.send_bytes(pickle.dumps(message))

    def recv(self) -> Any:
        return pickle.loads(self.recv_bytes())  # noqa: S301 (of our own process)

    def poll(self, seconds: float) -> bool:
        """Whether there is something to receive, or an end, within ``seconds``."""
        poll = select.poll()  # a select takes no descriptor above 1023
        poll.register(self._end, select.POLLIN)
        return bool(poll.poll(1000 * seconds))

    def _exactly(self, size: int) -> bytes:
        read = bytearray()
        while len(read) < size:
            if not (part := self._end.recv(size - len(read))):
                raise EOFError
            read += part
        return bytes(read)


class _Helper:
    """Of this process: the helper's other end, ``gone`` (why there is none any more), ``stuck``
    (the other end of one that waits for a process in the driver), and ``seen``, memory in which
    who asks the library writes its id, how many calls it has made, the number of the question and
    the name of the last call.
    """

    pipe: _Pipe | None = None
    stuck: _Pipe | None = None
    gone = ""
    pid = 0
    lasting = False
    renewed = False
    pause = _FIRST_PAUSE
    again = 0.0  # when what went wrong is tried anew, by the monotonic clock
    seen: mmap.mmap
    say: Callable[[str], object]
    turn = threading.Lock()
    number = 0  # of the question
    avoided: frozenset[str] = frozenset()
    hung: frozenset[str] = frozenset()  # those of them that gave no answer
    calls = 0


def without() -> frozenset[str]:
    """Functions of NVML that are not called any more: the library crashed or hung in them."""
    return _Helper.avoided


def renew() -> None:
    """Within a question: have the next one asked by a new process, which loads the library anew."""
    _Helper.renewed = True


def start(say: Callable[[str], object], *, lasting: bool = False) -> None:
    """Fork the helper. What is asked without one is asked in this process. ``say``: where a
    sentence goes about each crash and each silence.
    """
    if threading.active_count() > 1 or _Helper.pipe is not None:
        return  # a lock of another thread's would be held for ever in the copy
    _Helper.say, _Helper.lasting, _Helper.seen = say, lasting, mmap.mmap(-1, _ROOM)
    with suppress(OSError):
        _fork()


def _fork() -> None:
    # The kernel ties a process to the thread that forked it, and one that waits for work may end.
    tied = threading.current_thread() is threading.main_thread()
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            _Helper.pid = os.fork()
        except OSError:
            ours.close()
            raise
        if _Helper.pid == 0:
            ours.close()
            _serve(_Pipe(theirs), tied)
    _Helper.pipe, _Helper.gone = _Pipe(ours), ""


def _retry() -> None:
    """Take up again what did not answer: a helper whose process the driver has let go and, where
    the program lasts, after a pause, the functions that went wrong and a helper that was killed.
    """
    try:
        while _Helper.stuck is not None and _Helper.stuck.poll(0):
            if _Helper.stuck.recv()[1] == "ended":
                _Helper.pipe, _Helper.stuck, _Helper.gone = _Helper.stuck, None, ""
    except (OSError, EOFError):
        _Helper.stuck = None
    if not _Helper.lasting or time.monotonic() < _Helper.again:
        return
    _Helper.avoided = _Helper.hung = frozenset()
    if _Helper.gone and _Helper.stuck is None:
        # Other threads may hold locks that the copy then has for ever; it would not answer, and be
        # replaced like this one.
        with suppress(OSError):
            os.kill(_Helper.pid, signal.SIGKILL)
            os.waitpid(_Helper.pid, 0)
        with suppress(OSError):
            _fork()


def _wait_longer() -> None:
    now = time.monotonic()
    calm = now - _Helper.again > _LONGEST_PAUSE
    _Helper.pause = _FIRST_PAUSE if calm else min(2 * _Helper.pause, _LONGEST_PAUSE)
    _Helper.again = now + _Helper.pause


def ask(
    question: Callable[..., T],
    *given: Any,
    patience: float,
    otherwise: Callable[[str], T],
    silence: float | None = None,
) -> T:
    """What ``question``, a function of a module, answers to ``given``; blocks. ``otherwise`` gets
    what NVML did where there is no answer within ``patience`` seconds, or none to be had. A call
    that takes ``silence`` seconds (:data:`SILENCE` if not said) hangs. Who says it asks just that:
    functions that hung before are called again.
    """
    if _Helper.pipe is None and not _Helper.gone:
        return question(*given)
    end = time.monotonic() + patience
    if not _Helper.turn.acquire(timeout=patience):
        return otherwise(f"it is busy with another question for {patience:g} s")
    try:
        _retry()
        while (pipe := _Helper.pipe) is not None:
            avoided = _Helper.avoided - (frozenset() if silence is None else _Helper.hung)
            _Helper.number += 1
            _Helper.seen[:] = bytes(_ROOM)
            pipe.send_bytes(
                _Helper.number.to_bytes(8, "little") + pickle.dumps((question, given, avoided))
            )
            answer = _answer(pipe, end, SILENCE if silence is None else silence)
            if not isinstance(answer, str):
                value: T
                value, bug = answer
                if bug:
                    raise RuntimeError(bug)
                return value
            name = _last()
            _Helper.say(f"NVML: {answer}; what it would say is not known.")
            _wait_longer()
            if not name or name in avoided or time.monotonic() >= end:
                return otherwise(answer)
            _Helper.avoided |= {name}
    except (OSError, EOFError):
        _Helper.pipe, _Helper.gone = None, "the process that asks it is gone"
        _wait_longer()
    finally:
        _Helper.turn.release()
    return otherwise(_Helper.gone)


@contextmanager
def started() -> Iterator[bool]:
    """NVML for the block; whether there is any to ask. Without a binding, a library or a driver
    there is not: a matter of the environment, not of one GPU.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        yield False
        return
    try:
        yield True
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def fabric_info(handle: Any) -> Any:
    """NVML's nvmlGpuFabricInfo of the newest version that both sides know. The first one, of
    drivers before R550, has no ``healthMask``. Raises NVMLError.
    """
    import pynvml

    lacks = (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    failure: Any = None
    for make, call in (
        (pynvml.c_nvmlGpuFabricInfo_v3_t, pynvml.nvmlDeviceGetGpuFabricInfoV),
        (pynvml.c_nvmlGpuFabricInfo_v2_t, pynvml.nvmlDeviceGetGpuFabricInfoV),
        (pynvml.c_nvmlGpuFabricInfo_t, pynvml.nvmlDeviceGetGpuFabricInfo),
    ):
        info = make()
        try:
            # The binding hands a structure on as it is: without byref the driver gets its bytes,
            # not its address, and writes anywhere.
            call(handle, ctypes.byref(info))
        except pynvml.NVMLError as error:
            failure = error if failure is None or failure.value in lacks else failure
        else:
            return info
    raise failure


def field(handle: Any, name: str, scope: int = 0) -> int | None:
    """One field by its name; None where library, driver or GPU lacks it."""
    import pynvml

    if (number := getattr(pynvml, name, None)) is None:
        return None
    try:
        [field_value] = pynvml.nvmlDeviceGetFieldValues(handle, [(number, scope)])
    except pynvml.NVMLError:
        return None
    kinds = {
        pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: field_value.value.uiVal,
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: field_value.value.ulVal,
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: field_value.value.ullVal,
        pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: field_value.value.sllVal,
    }
    return (
        kinds.get(field_value.valueType) if field_value.nvmlReturn == pynvml.NVML_SUCCESS else None
    )


def _answer(pipe: _Pipe, end: float, silence: float) -> tuple[Any, str] | str:
    """The answer and a bug of the question's, or a sentence about how the process ended."""
    calls, since = -1, time.monotonic()
    value: Any
    kind, value, number = "", None, -1
    while number != _Helper.number:  # a process that was killed may have answered before
        while not pipe.poll(max(min(_LOOK, end - time.monotonic()), 0)):
            now = time.monotonic()
            if (seen := int.from_bytes(_Helper.seen[8:16], "little")) != calls:
                calls, since = seen, now
            if now >= end or (now - since >= silence and not _last().startswith(_STARTS)):
                return _ended(pipe, now - since)
        number, kind, value = pipe.recv()
    if kind == "answer":
        answer: tuple[Any, str] = pickle.loads(value)  # noqa: S301 (of our own process)
        return answer
    how = f"by {signal.Signals(-value).name}" if value < 0 else f"with status {value}"
    return f"{_last() or 'the process'} ended {how}"


def _ended(pipe: _Pipe, silent: float) -> str:
    reason = f"{_last() or 'the process'} gave no answer within {silent:.0f} s"
    _Helper.hung |= {_last()}
    pid = int.from_bytes(_Helper.seen[:8], "little")
    if pid > 0:  # 0, while there is none yet, would be this process and its neighbours
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while pipe.poll(LAST_WAIT):
        number, kind, _ = pipe.recv()
        if (number, kind) == (_Helper.number, "ended"):
            return reason
    # The helper waits for it.
    _Helper.stuck, _Helper.pipe, _Helper.gone = pipe, None, STUCK
    return reason


def _last() -> str:
    return _Helper.seen[_NAME:_ROOM].rstrip(b"\0").decode()


def _serve(pipe: _Pipe, tied: bool) -> NoReturn:
    """The helper's life: a process that asks, another where it ended, until
    the program is gone.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the program ends it
    _quietly(tied)
    try:
        _watch()  # while the program still loads its own modules
        while True:
            request = pipe.recv_bytes()
            pid = os.fork()
            if pid == 0:
                _child(pipe, request)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if status != _ANSWERED:
                pipe.send((int.from_bytes(_Helper.seen[16:_NAME], "little"), "ended", status))
    finally:
        os._exit(0)


def _quietly(tied: bool = True) -> None:
    """The library's own words and the program's streams have nothing to do with each other, and
    what crashes leaves no core. ``tied``: end with the thread that forked this process.
    """
    with suppress(OSError, AttributeError):
        if tied:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)


def _child(pipe: _Pipe, request: bytes) -> NoReturn:
    _quietly()
    _Helper.pipe = None
    while True:
        number = int.from_bytes(request[:8], "little")
        _Helper.seen[:8], _Helper.seen[16:_NAME] = os.getpid().to_bytes(8, "little"), request[:8]
        try:
            question, given, _Helper.avoided = pickle.loads(request[8:])  # noqa: S301 (of the program itself)
            answer = pickle.dumps((question(*given), ""))
        except Exception as error:
            answer = pickle.dumps((None, repr(error)))
        try:
            pipe.send((number, "answer", answer))
            if _Helper.renewed:
                break
            request = pipe.recv_bytes()
        except (OSError, EOFError):
            break
    os._exit(_ANSWERED)


def _watch() -> None:
    """Have each function of the binding leave its name before it is called. The binding loads the
    driver's library when NVML is started, which the helper does not do.
    """
    try:
        import pynvml
    except ImportError:
        return  # whoever asks says so
    for name, function in list(vars(pynvml).items()):
        if name.startswith("nvml") and isinstance(function, FunctionType):
            setattr(pynvml, name, _watched(name, function))


def _watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    shown = name.encode().ljust(_ROOM - _NAME, b"\0")

    def call(*given: Any) -> Any:
        if name in _Helper.avoided:
            import pynvml

            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        _Helper.calls += 1
        _Helper.seen[8:16], _Helper.seen[_NAME:] = _Helper.calls.to_bytes(8, "little"), shown
        return function(*given)

    return call
