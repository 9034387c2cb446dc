"""Messages of the driver and the runtime about a launched kernel, and about a missing device.

The driver's name, the runtime's name and the sentence that both print belong to one row: CuPy shows
a name, PyTorch only the sentence.
"""

from __future__ import annotations

from rtcompile.messages.known import KnownMessage, row

_FIND = (
    "Run with CUDA_LAUNCH_BLOCKING=1, so that the error is raised at the launch that caused it; "
    "`compute-sanitizer python script.py` names the kernel and the thread, with -lineinfo the line."
)

ROWS: tuple[KnownMessage, ...] = (
    row(
        "illegal-address",
        r"CUDA_ERROR_ILLEGAL_ADDRESS|cudaErrorIllegalAddress|illegal memory access was encountered",
        "A kernel read or wrote memory that is not its own: an index beyond an array, a host "
        "pointer, or an array that was freed. The context is lost: start a new process.",
        f"Check indices, and that dtypes and shapes are what the kernel takes. {_FIND}",
        "driver",
    ),
    row(
        "misaligned-address",
        r"CUDA_ERROR_MISALIGNED_ADDRESS|cudaErrorMisalignedAddress|misaligned address",
        "A load or store of 2, 4, 8 or 16 bytes at an address that is no multiple of that: often a "
        "float4* into an array whose offset is odd.",
        f"Give the kernel arrays that begin at a multiple of 16 bytes, or copy by element. {_FIND}",
        "driver",
    ),
    row(
        "launch-failed",
        r"CUDA_ERROR_LAUNCH_FAILED|cudaErrorLaunchFailure|unspecified launch failure",
        "A kernel ended in a fault that the driver does not name: an invalid shared memory "
        "address, a bad TMA descriptor, a trap. The context is lost: start a new process.",
        _FIND,
        "driver",
    ),
    row(
        "illegal-instruction",
        r"CUDA_ERROR_ILLEGAL_INSTRUCTION|cudaErrorIllegalInstruction"
        r"|illegal instruction was encountered",
        "A kernel met an instruction that it may not use so: wgmma or TMA with wrong operands, or "
        "__trap().",
        f"Look at inline PTX and descriptors first. {_FIND}",
        "driver",
    ),
    row(
        "device-assert",
        r"CUDA_ERROR_ASSERT|cudaErrorAssert|device-side assert triggered",
        "An assert() in a kernel failed. The context is lost: start a new process.",
        "stderr has the line, the block and the thread: 'file:line: block: …, thread: … Assertion'. "
        "With PyTorch this is most often an index out of range.",
        "driver",
    ),
    row(
        "launch-timeout",
        r"CUDA_ERROR_LAUNCH_TIMEOUT|cudaErrorLaunchTimeout"
        r"|launch timed out and was terminated",
        "A kernel ran longer than a device with a display allows.",
        "Look for a loop that does not end, split the work over several launches, or use a device "
        "without a display.",
        "driver",
    ),
    row(
        "launch-out-of-resources",
        r"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES|cudaErrorLaunchOutOfResources"
        r"|too many resources requested for launch",
        "A block needs more registers or shared memory than a multiprocessor has.",
        "Launch smaller blocks, or declare __launch_bounds__(threads) and compile again; "
        "`rtcompile inspect` says what the kernel takes, --block THREADS what fits.",
        "driver",
    ),
    row(
        "invalid-configuration",
        r"cudaErrorInvalidConfiguration|invalid configuration argument",
        "A grid or a block that no device can launch: a side of 0, more than 1024 threads in a "
        "block, or more than 65535 blocks in y or z.",
        "Print grid and block before the launch; a size of 0 comes from an empty array.",
        "driver",
    ),
    row(
        "cooperative-launch-too-large",
        r"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE|cudaErrorCooperativeLaunchTooLarge"
        r"|too many blocks in cooperative launch",
        "All blocks of a cooperative launch must run at once, and they do not fit on the device.",
        "Launch at most (blocks per multiprocessor) x (multiprocessors); `rtcompile inspect "
        "--block THREADS` gives the first.",
        "driver",
    ),
    row(
        "invalid-device-function",
        r"cudaErrorInvalidDeviceFunction|CUDA_ERROR_INVALID_HANDLE|invalid device function",
        "The program has no code of that kernel for this device, or the kernel is of another "
        "context.",
        "Compile for the device's architecture (`rtcompile doctor` names it); a module loaded "
        "before fork() or on another device must be loaded again.",
        "driver",
    ),
    row(
        "insufficient-driver",
        r"cudaErrorInsufficientDriver|driver version is insufficient for CUDA runtime",
        "The driver is older than the CUDA runtime that the program uses.",
        "Upgrade the driver, or install packages for an older CUDA (cupy-cuda12x in place of "
        "cupy-cuda13x); `rtcompile doctor` shows both versions.",
        "driver",
    ),
    row(
        "driver-mismatch",
        r"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|cudaErrorSystemDriverMismatch"
        r"|unsupported display driver / cuda driver combination",
        "The driver's library and its kernel module are of different versions: it was upgraded "
        "and the module is still the old one, or a container brings a library of its own.",
        "Restart the machine, or reload the nvidia module; in a container drop its libcuda.",
        "driver",
    ),
    row(
        "no-device",
        r"CUDA_ERROR_NO_DEVICE|cudaErrorNoDevice|no CUDA-capable device is detected",
        "The driver shows no device to this program.",
        "Look at `nvidia-smi` and at CUDA_VISIBLE_DEVICES; a container needs --gpus all. To compile "
        "without a device, name the architecture.",
        "driver",
    ),
    row(
        "device-out-of-memory",
        r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation",
        "The device has no memory left for an array, or for the stacks of a kernel with much local "
        "memory.",
        "Free arrays (with CuPy: cupy.get_default_memory_pool().free_all_blocks()), or use smaller "
        "ones; `nvidia-smi` shows who uses the device.",
        "driver",
    ),
    row(
        "invalid-context",
        r"CUDA_ERROR_(?:INVALID_CONTEXT|CONTEXT_IS_DESTROYED|NOT_INITIALIZED)"
        r"|cudaErrorInitializationError|invalid device context|initialization error",
        "CUDA is used where it was not started: in a child of fork(), or in a thread of the driver "
        "API without a context.",
        "Start processes by multiprocessing's 'spawn' or 'forkserver', or use CUDA in the child only.",
        "driver",
    ),
)
