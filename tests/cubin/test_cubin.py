"""Tests of the cubin reader: its numbers equal those that ptxas reported."""

import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rtcompile import cubin
from rtcompile.extras.resources import KernelReport, kernels_of
from rtcompile.request.arch import supported
from rtcompile.request.values import Arch
from tests.tables import from_table

pytestmark = pytest.mark.needs_compiler

SOURCE = Path(__file__).with_name("kernels.cu").read_text()

ARCHITECTURES = ["sm_75", "sm_80", "sm_90a", "sm_100a", "sm_100f", "sm_120a"]


def printed_by_ptxas(log: str) -> dict[str, tuple[int, int, int]]:
    """Return kernel to registers, static shared memory and stack, from the log of -Xptxas -v."""
    reported = {}
    for part in log.split("Compiling entry function ")[1:]:
        name = part.split("'")[1]
        numbers = [re.search(pattern, part) for pattern in
                   (r"Used (\d+) registers", r"(\d+) bytes smem", r"(\d+) bytes cumulative stack")]  # fmt: skip
        reported[name] = tuple(int(found[1]) if found else 0 for found in numbers)
    return reported


@pytest.fixture(scope="module")
def sample(nvrtc12: Any) -> bytes:
    code = nvrtc12.compile(SOURCE, "-arch=sm_90a").code
    assert code is not None
    return code


def kernels(code: bytes) -> dict[str, KernelReport]:
    return {kernel.name: kernel for kernel in kernels_of(code)[1]}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_resources_are_those_reported_by_ptxas(nvrtc, arch):
    assert Arch.parse(arch) in supported(nvrtc.version)
    outcome = nvrtc.compile(SOURCE, f"-arch={arch}", "-Xptxas=-v")
    assert outcome.code is not None, outcome.log
    assert kernels_of(outcome.code)[0] == Arch.parse(arch)  # with its suffix
    found = {
        name: (kernel.registers, kernel.shared_bytes, kernel.stack_bytes)
        for name, kernel in kernels(outcome.code).items()
    }
    assert found == printed_by_ptxas(outcome.log)
    assert found["shared"][1] == 256
    assert found["stack"][2] > 0


def test_a_kernels_parameters_and_bounds_are_read(nvrtc):
    kernel = kernels(nvrtc.compile(SOURCE, "-arch=sm_90a").code)["shared"]
    assert kernel.parameters == ((0, 8), (8, 4), (16, 24))
    assert kernel.parameter_bytes == 40
    assert kernel.max_threads == 256
    assert kernel.required_threads is None
    assert kernel.constant_bytes == 400
    assert kernel.code_bytes > 0
    source = """struct B { char c[20000]; };
    __global__ void __block_size__((64, 2, 1)) k(int* p, B b) { *p = b.c[*p]; }"""
    _, (kernel,) = kernels_of(nvrtc.compile(source, "-arch=sm_90").code)
    assert kernel.parameters == ((0, 8), (8, 20000))  # more than 4 KB
    assert kernel.required_threads == (64, 2, 1)


def test_kernels_are_distinguished_from_device_functions(nvrtc):
    code = nvrtc.compile(SOURCE, "-arch=sm_80", "-rdc=true").code
    assert set(kernels(code)) == {"empty", "shared", "stack", "_Z7genericIiEvPT_"}
    callee = next(symbol for symbol in cubin.read_symbols(code) if symbol.name == "_Z6calleePi")
    assert callee.section == ".text._Z6calleePi"


def test_a_symbols_size_and_section_are_read(sample):
    symbols = {symbol.name: symbol for symbol in cubin.read_symbols(sample)}
    marker = symbols["marker"]
    assert (marker.size, marker.section) == (8, ".nv.global.init")
    assert symbols["table"].size == 400


def test_a_cubin_of_nvcc_is_read(tmp_path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not on PATH")
    (tmp_path / "k.cu").write_text('extern "C" __global__ void k(int* p) { *p = 1; }\n')
    subprocess.run([nvcc, "-cubin", "-arch=sm_90a", "k.cu"], cwd=tmp_path, check=True)
    code = (tmp_path / "k.cubin").read_bytes()
    assert kernels_of(code)[0] == Arch(9, 0, "a")
    assert list(kernels(code)) == ["k"]


@from_table
def test_other_bytes_than_a_cubin_are_a_value_error(code):
    with pytest.raises(ValueError, match="not a"):
        kernels_of(code)
    with pytest.raises(ValueError, match="for machine"):  # ELF of the host
        kernels_of(Path("/proc/self/exe").read_bytes())


def test_a_truncated_cubin_is_an_error(sample):
    for end in [*range(0, len(sample), 97), len(sample) - 1]:
        with pytest.raises(ValueError, match="not a"):
            kernels_of(sample[:end])


def test_damage_is_a_value_error_or_harmless(sample):
    chance = random.Random(0)
    rejected = 0
    for _ in range(1500):
        damaged = bytearray(sample)
        for _ in range(chance.randint(1, 8)):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        # Damage in the headers has the largest effect, but they are a small part of the file.
        damaged[chance.randrange(16, 64)] = chance.randrange(256)
        try:
            kernels_of(bytes(damaged))
        except ValueError:
            rejected += 1
    assert rejected > 250
