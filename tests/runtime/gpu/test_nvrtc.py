"""The GPU's kernel compiled by NVIDIA's run-time compiler for every GPU, without a GPU."""

from __future__ import annotations

import ctypes
import importlib.metadata
import re

import pytest

from runtime.dtypes import REDUCTIONS, TYPES
from runtime.gpu.cuda import compiler_options
from runtime.gpu.encoding import gpu_source

ARCHITECTURES = ("sm_70", "sm_80", "sm_90", "sm_100", "sm_120")
FORMS = ({}, {"paced": True}, {"several": True})


def libraries() -> list[ctypes.CDLL]:
    """Return NVRTC of every CUDA version that is installed here."""
    nvrtc_libraries = []
    for name in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13", "nvidia-cuda-nvrtc-cu12"):
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        nvrtc_libraries += [
            ctypes.CDLL(str(file.locate())) for file in files if re.fullmatch(r"libnvrtc\.so\.\d+", file.name)
        ]
    return nvrtc_libraries


def knows(library: ctypes.CDLL, arch: str) -> bool:
    """Return True if a library compiles for this GPU; CUDA 13 no longer does for sm_70."""
    count = ctypes.c_int()
    library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    numbers = (ctypes.c_int * count.value)()
    library.nvrtcGetSupportedArchs(numbers)
    return int(arch.removeprefix("sm_")) in list(numbers)


@pytest.fixture(params=ARCHITECTURES)
def arch(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def library(arch: str) -> ctypes.CDLL:
    """Return a compiler for this GPU, or skip the test."""
    nvrtc_libraries = libraries()
    if not nvrtc_libraries:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
    able = [library for library in nvrtc_libraries if knows(library, arch)]
    if not able:
        pytest.skip(f"no NVRTC here knows {arch}: sm_70 needs CUDA 12's, pip install nvidia-cuda-nvrtc-cu12")
    return able[0]


# Two of the three forms for each GPU, so that all types and reductions are compiled.
CASES = [(arch, (place + k) % len(FORMS)) for place, arch in enumerate(ARCHITECTURES) for k in range(2)]


@pytest.mark.parametrize(
    ("arch", "form"), CASES, ids=[f"{a}-{('plain', 'paced', 'several')[f]}" for a, f in CASES], indirect=["arch"]
)
def test_compiles_for_every_gpu(library: ctypes.CDLL, arch: str, form: int) -> None:
    """Check that every type and reduction is compiled once, with the options of the executor."""
    number = CASES.index((arch, form))
    kind, op = (
        list(TYPES)[number % len(TYPES)],
        REDUCTIONS[(number + number // len(REDUCTIONS)) % len(REDUCTIONS)],
    )
    program = ctypes.c_void_p()
    source = gpu_source().encode()
    assert library.nvrtcCreateProgram(ctypes.byref(program), source, b"interpreter.cu", 0, None, None) == 0
    options = compiler_options(kind, op, 512, **FORMS[form])
    arguments = [option.encode() for option in (*options, f"--gpu-architecture={arch}")]
    failed = library.nvrtcCompileProgram(program, len(arguments), (ctypes.c_char_p * len(arguments))(*arguments))
    log = output_of(library, program, "ProgramLog")
    assert not failed, log
    of_source = [line for line in log.splitlines() if not line.startswith("nvrtc: warning: Architectures prior")]
    assert not [line for line in of_source if "warning" in line]
    code = output_of(library, program, "CUBIN")
    assert "synth_interpret" in code
    assert "synth_average" in code
    check_scopes(output_of(library, program, "PTX"), "sys" if FORMS[form].get("several") else "gpu")
    library.nvrtcDestroyProgram(ctypes.byref(program))


def check_scopes(ptx: str, scope: str) -> None:
    """Check that every ordered access reaches as far as the ranks' memory, and that a packet is one store of 8 bytes.

    PTX: st.release, ld.acquire and relaxed accesses of `.gpu` order the memory of one GPU, those of `.sys` that of all.
    """
    ordered = re.findall(r"\b(?:st|ld)\.(?:release|acquire|relaxed)\.(\w+)\.(\w+)", ptx)
    assert {reached for reached, _ in ordered} == {scope}
    assert {"u32", "u64"} <= {kind for _, kind in ordered}
    swaps = re.findall(r"\batom\.(\S*)cas", ptx)
    assert swaps
    assert all(("sys" in swap) == (scope == "sys") for swap in swaps)
    for needed in (f"st.release.{scope}.u32", f"ld.acquire.{scope}.u64", f"st.relaxed.{scope}.u64"):
        assert needed in ptx
    assert not re.search(r"\b(?:st|ld)\.volatile", ptx)


def test_a_fence_of_too_small_a_scope_is_seen() -> None:
    ptx = "atom.sys.cas.b32; st.release.sys.u32; ld.acquire.sys.u64; st.relaxed.sys.u64; ld.relaxed.gpu.u32"
    with pytest.raises(AssertionError):
        check_scopes(ptx, "sys")
    check_scopes(ptx.replace("gpu", "sys"), "sys")


def test_every_type_and_reduction_is_compiled() -> None:
    indices = [(n % len(TYPES), (n + n // len(REDUCTIONS)) % len(REDUCTIONS)) for n in range(len(CASES))]
    assert {kind for kind, _ in indices} == set(range(len(TYPES)))
    assert {op for _, op in indices} == set(range(len(REDUCTIONS)))


def output_of(library: ctypes.CDLL, program: ctypes.c_void_p, output: str) -> str:
    """Return an output of NVRTC: its log, or the machine code."""
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{output}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{output}")(program, text)
    return text.raw.decode("latin-1")
