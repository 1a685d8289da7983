"""_errors.py: one exception for each status of the library; its text is the library's sentence.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations


class MxattnError(Exception):
    """A call refused. `status` is the library's status, the text its sentence."""

    status = -1


class ArgumentError(MxattnError, ValueError):
    """A value outside its range, or an argument missing (MXATTN_ARGUMENT)."""

    status = 1


class ShapeError(MxattnError, ValueError):
    """Sizes that do not fit together (MXATTN_SHAPE)."""

    status = 2


class DtypeError(MxattnError, TypeError):
    """An element type this operation does not take (MXATTN_DTYPE)."""

    status = 3


class LayoutError(MxattnError, ValueError):
    """Tags, strides or a scale layout that do not match (MXATTN_LAYOUT)."""

    status = 4


class AlignmentError(MxattnError, ValueError):
    """A pointer or stride not aligned as the backend needs (MXATTN_ALIGNMENT)."""

    status = 5


class CuSeqlensError(MxattnError, ValueError):
    """cu_seqlens or seqused that break their rules (MXATTN_CU_SEQLENS)."""

    status = 6


class UnsupportedError(MxattnError, NotImplementedError):
    """Legal, but this backend has no kernel for it (MXATTN_UNSUPPORTED)."""

    status = 7


class NoBackendError(MxattnError, RuntimeError):
    """The backend is not in this build, or its device is not there (MXATTN_NO_BACKEND)."""

    status = 8


class WorkspaceError(MxattnError, RuntimeError):
    """Workspace, saved or prepared memory missing or too small (MXATTN_WORKSPACE)."""

    status = 9


class OutOfMemoryError(MxattnError, MemoryError):
    """An allocator had no memory (MXATTN_MEMORY)."""

    status = 10


class DeviceError(MxattnError, RuntimeError):
    """The device or its driver reported an error (MXATTN_DEVICE)."""

    status = 11


class VersionMismatchError(MxattnError, RuntimeError):
    """The library is older than this package and lacks what was asked for (MXATTN_VERSION_MISMATCH)."""

    status = 12


STATUSES = (
    ArgumentError,
    ShapeError,
    DtypeError,
    LayoutError,
    AlignmentError,
    CuSeqlensError,
    UnsupportedError,
    NoBackendError,
    WorkspaceError,
    OutOfMemoryError,
    DeviceError,
    VersionMismatchError,
)
_BY_STATUS = {error.status: error for error in STATUSES}


def raise_status(status: int, sentence: str) -> None:
    """Raises the exception of a status that is not 0."""
    raise _BY_STATUS.get(status, MxattnError)(sentence)
