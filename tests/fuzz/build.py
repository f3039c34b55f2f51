"""The extension with sanitizers, each build once per state of its sources, under build."""

import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "native"
DRIVER = Path(__file__).with_name("driver.c")
NAME = "scriba.native._native"
VARIABLE = "SCRIBA_SANITIZED"
"""In the environment: the file to load as the extension."""

CHECKS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


class NoCompiler(Exception):
    """What is missing, and what to do."""


def sanitized() -> Path:
    """Built by the compiler that builds everything else."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    return _built("sanitized", compiler, [], [])


def with_fuzzer() -> Path:
    """Built by clang, with libFuzzer in it."""
    if shutil.which("clang") is None:
        raise NoCompiler("fuzzing needs clang: run tools/setup.sh programs")
    library = _file_of("clang", f"libclang_rt.fuzzer_no_main-{platform.machine()}.a")
    flags = ["-fsanitize=fuzzer-no-link", "-shared-libasan"]
    # Calls of the library's own symbols stay inside it: AddressSanitizer has empty ones of the same
    # names, and is loaded first.
    end = ["-Wl,-Bsymbolic", str(DRIVER), library, "-lstdc++", "-lm", "-lpthread"]
    return _built("fuzzer", "clang", flags, end)


def environment(built: Path) -> dict[str, str]:
    """What a Python that loads the file needs: the sanitizer before anything else, and memory that
    it can watch."""
    clang = built.parent.name.startswith("fuzzer")
    if clang:
        runtimes = [_file_of("clang", f"libclang_rt.asan-{platform.machine()}.so")]
    else:
        compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
        runtimes = [_file_of(compiler, name) for name in ("libasan.so", "libubsan.so")]
    return {
        **os.environ,
        VARIABLE: str(built),
        "LD_PRELOAD": " ".join(runtimes),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=64:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def load() -> None:
    """Puts the file that the environment names in the place of the extension."""
    path = os.environ[VARIABLE]
    sys.modules[NAME] = loaded(NAME, Path(path))


def loaded(name: str, path: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _built(kind: str, compiler: str, flags: list[str], end: list[str]) -> Path:
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in (*sources, DRIVER)))
    digest.update(f"{sys.version} {compiler} {flags} {end}".encode())
    place = ROOT / "build" / "native" / f"{kind}-{digest.hexdigest()[:16]}"
    built = place / "_native.so"
    if built.exists():
        return built
    place.mkdir(parents=True, exist_ok=True)
    partial = place / f"{os.getpid()}.so"
    command = [compiler, "-shared", "-fPIC", "-std=gnu11", "-O1", "-g", *CHECKS, *flags]
    command += ["-DPy_LIMITED_API=0x030B0000", '-DSCRIBA_NATIVE_SOURCES="sanitized"']
    command += [f"-I{sysconfig.get_paths()['include']}", "-o", str(partial)]
    command += [str(path) for path in sources if path.suffix == ".c"]
    done = subprocess.run([*command, *end], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoCompiler(f"{compiler} could not build the extension:\n{done.stderr}")
    partial.replace(built)
    for old in place.parent.glob(f"{kind}-*"):
        if old != place:
            shutil.rmtree(old, ignore_errors=True)
    return built


def _file_of(compiler: str, name: str) -> str:
    command = [compiler, f"-print-file-name={name}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(found).is_file():
        raise NoCompiler(f"{compiler} has no {name}: run tools/setup.sh programs")
    return found
