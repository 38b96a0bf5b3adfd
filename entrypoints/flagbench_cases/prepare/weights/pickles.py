"""Unpickles what torch.save wrote without executing any of it: only opcodes for plain values and tensors have an
effect.

A tensor becomes a `TensorRef`, a description. Storages are neither read nor trusted while unpickling.
"""

import pickle
from typing import Any, BinaryIO, Dict, NamedTuple, Sequence, Tuple, Type

import torch

MAX_PICKLE_BYTES = 64 * 2**20
"""Limit of a pickle without its storages, bytes. A checkpoint with a thousand tensors has about 100 kB; a malicious
pickle can take fifty bytes of memory per byte."""
MAX_NAME_BYTES = 1000
MAX_ARGUMENTS = 64


class StorageRef(NamedTuple):
    """A storage referenced by a pickle: its key in the file, and its declared type and size."""

    key: str
    dtype: torch.dtype
    numel: int


class TensorRef(NamedTuple):
    """A tensor described by a pickle, in elements of its storage."""

    storage: StorageRef
    offset: int
    size: Tuple[int, ...]
    stride: Tuple[int, ...]


class Refused(pickle.UnpicklingError):
    """The pickle contains something that does not belong in a checkpoint of tensors."""


class Table(dict):
    """Replaces OrderedDict. The attributes of a state dict (`_metadata`) are ignored."""

    def __init__(self, *arguments: Any) -> None:
        if arguments:  # by copying a table repeatedly, a small file could use up all memory
            raise Refused("it copies a table")
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        pass


class Ignored:
    """Replaces an object that is not a tensor, such as program arguments: accepts anything and does nothing."""

    __slots__ = ()

    def __new__(cls, *arguments: Any, **options: Any) -> "Ignored":
        return object.__new__(cls)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        """For a list."""

    def extend(self, values: Any) -> None:
        """For a list."""

    def add(self, value: Any) -> None:
        """For a set."""


class Builder:
    """A function that a pickle may call. It has no attributes that a pickle could set."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise Refused("it modifies %s" % self._name)

    def __setstate__(self, state: Any) -> None:
        raise Refused("it modifies %s" % self._name)

    def __call__(self, *arguments: Any) -> Any:
        return _BUILDS[self._name](*arguments)


class StorageType(NamedTuple):
    """Replaces torch's storage class of one dtype."""

    dtype: torch.dtype


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> TensorRef:
    if not isinstance(storage, StorageRef) or not _is_count(offset):
        raise Refused("it describes an invalid tensor")
    if not _are_counts(size) or not _are_counts(stride) or len(size) != len(stride):
        raise Refused("it describes an invalid tensor")
    return TensorRef(storage, offset, tuple(size), tuple(stride))


def _parameter(data: Any, *_: Any) -> TensorRef:
    if not isinstance(data, TensorRef):
        raise Refused("it describes a parameter that is not a tensor")
    return data


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def _are_counts(values: Any) -> bool:
    return isinstance(values, tuple) and len(values) <= 64 and all(_is_count(value) for value in values)


def _size(values: Any = ()) -> Tuple[int, ...]:
    if not _are_counts(values):
        raise Refused("it describes an invalid shape")
    return values  # type: ignore[no-any-return]


_BUILDS = {"_rebuild_tensor": _tensor, "_rebuild_tensor_v2": _tensor, "_rebuild_parameter": _parameter, "Size": _size}

STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}

# Besides weights, training programs save arguments, random states, schedules and loss scales. None of these modules
# is ever imported.
IGNORED_ROOTS = ("argparse", "numpy", "deepspeed", "megatron", "apex", "fp16", "loss_scaler", "learning_rates")
IGNORED = {
    "_codecs": ("encode",),
    "builtins": ("bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "object", "set"),
    "collections": ("defaultdict", "deque", "Counter"),
    "torch": ("device",),
}


def replacement_of(module: str, name: str) -> Any:
    """The replacement for `module.name` in a pickle; nothing is imported. Raises Refused for a name without one."""
    module = {"__builtin__": "builtins"}.get(module, module)
    if (module, name) == ("collections", "OrderedDict"):
        return Table
    if (module == "torch._utils" and name in _BUILDS and name != "Size") or (module, name) == ("torch", "Size"):
        return Builder(name)
    if module == "torch" and name in STORAGES:
        return StorageType(STORAGES[name])
    if module == "torch" and isinstance(vars(torch).get(name), torch.dtype):
        return vars(torch)[name]
    if module.split(".")[0] in IGNORED_ROOTS or name in IGNORED.get(module, ()):
        return Ignored
    raise Refused("it uses %s.%s, which is not a tensor" % (module[:60], name[:60]))


class _Bounded:
    """A file with a limit on the bytes read, which never allocates more than there are."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        self._left = limit

    def read(self, count: int) -> bytes:
        """Read `count` bytes. Raises EOFError if there are fewer, Refused beyond the limit."""
        if count > self._left:
            raise Refused(
                "without its tensors it is larger than %d bytes" % MAX_PICKLE_BYTES
                if count < MAX_PICKLE_BYTES
                else "it is truncated"
            )
        piece = self._file.read(count)
        if len(piece) < count:
            raise EOFError("it is truncated")
        self._left -= count
        return piece

    def readline(self) -> bytes:
        """Read a line with its terminator. Raises EOFError at the end of the file."""
        line = self._file.readline(min(self._left, MAX_NAME_BYTES))
        if not line.endswith(b"\n"):
            raise EOFError("it is truncated")
        self._left -= len(line)
        return line


# The opcodes that torch.save writes in protocols 2 to 4. Opcodes of the text protocol, of the extension registry, and
# those that allocate memory in advance are excluded.
_OPCODES = """
    PROTO FRAME STOP MARK POP POP_MARK DUP MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET NONE NEWTRUE NEWFALSE
    BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINSTRING SHORT_BINSTRING
    BINBYTES SHORT_BINBYTES BINBYTES8 EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT
    SETITEM SETITEMS EMPTY_SET ADDITEMS GLOBAL STACK_GLOBAL REDUCE NEWOBJ NEWOBJ_EX BUILD BINPERSID
"""

# The pure Python unpickler: the C implementation allocates memory for any memo index in a file.
_Python: Type[Any] = pickle._Unpickler  # type: ignore[attr-defined]


class _Dispatch(dict):
    """The handlers of the allowed opcodes."""

    def __missing__(self, code: int) -> Any:
        raise Refused("it has the opcode %d, which torch.save does not write" % code)


_KEYS = (str, int, float, bool, type(None), bytes, Ignored)


def check_keys(target: Any, keys: Sequence[Any]) -> None:
    """Raise Refused for dict keys or set members whose hash may be expensive.

    The hash of a tuple covers everything in it: for pairs nested forty levels deep, a trillion items.
    """
    if isinstance(target, (dict, set)):
        for key in keys:
            if type(key) not in _KEYS or (type(key) is int and key.bit_length() > 64):
                raise Refused("it has a key that is neither a name nor a number")


def check_arguments(arguments: Any) -> None:
    """Raise Refused for a call with more arguments than any checkpoint uses, since calls copy them."""
    if not isinstance(arguments, tuple) or len(arguments) > MAX_ARGUMENTS:
        raise Refused("it makes a call with other arguments than torch.save writes")


class TensorUnpickler(_Python):  # type: ignore[misc]
    """Builds only plain values and descriptions of tensors."""

    dispatch = _Dispatch(
        {getattr(pickle, name)[0]: _Python.dispatch[getattr(pickle, name)[0]] for name in _OPCODES.split()}
    )

    def __init__(self, file: BinaryIO, limit: int = MAX_PICKLE_BYTES) -> None:
        super().__init__(_Bounded(file, min(limit, MAX_PICKLE_BYTES)), encoding="utf-8", errors="replace")
        self.storages: Dict[str, StorageRef] = {}

    def load_setitem(self) -> None:
        """Check a key before the dict hashes it."""
        check_keys(self.stack[-3], self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        """Check keys before the dict hashes them."""
        check_keys(self.metastack[-1][-1], self.stack[::2])
        super().load_setitems()

    def load_additems(self) -> None:
        """Check members before the set hashes them."""
        check_keys(self.metastack[-1][-1], self.stack)
        super().load_additems()

    def load_reduce(self) -> None:
        """Check the arguments of a call."""
        check_arguments(self.stack[-1])
        super().load_reduce()

    def load_newobj(self) -> None:
        """Check the arguments of a constructor."""
        check_arguments(self.stack[-1])
        super().load_newobj()

    def load_newobj_ex(self) -> None:
        """Check the arguments and keyword arguments of a constructor."""
        check_arguments(self.stack[-2])
        check_arguments(tuple(self.stack[-1]))
        super().load_newobj_ex()

    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems
    dispatch[pickle.ADDITEMS[0]] = load_additems
    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex

    def find_class(self, module: str, name: str) -> Any:
        """The replacement of a global. Raises Refused for one not needed by a checkpoint."""
        return replacement_of(module, name)

    def persistent_load(self, pid: Any) -> StorageRef:
        """The storage referenced by torch's `("storage", type, key, location, numel[, view])`."""
        if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage" or not isinstance(pid[1], StorageType):
            raise Refused("it references a storage of an unknown kind")
        key, numel = pid[2], pid[4]
        if not isinstance(key, str) or not _is_count(numel):
            raise Refused("it references a storage of an unknown kind")
        if len(pid) > 5 and pid[5] is not None:
            raise Refused("it has a view of a storage, as written by torch before 0.4")
        made = StorageRef(key, pid[1].dtype, numel)
        if self.storages.setdefault(key, made) != made:
            raise Refused("it declares one storage in two ways")
        return made
