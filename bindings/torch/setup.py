"""The wheel: superop's library, the adapter, and what they need beside glibc, all in superop/lib.

    pip install .                        from this folder; CMake, Ninja, gcc and the -dev packages of the
                                         README build it, with CUDA where tools/cuda.sh finds nvcc
    SUPEROP_CUDA=0|1                     never, or always with CUDA
    SUPEROP_BUILD=build/cuda             take this build folder as it is configured

Where the wheel is installed there is no compiler: no file in it belongs to one Python or one PyTorch."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# What every Linux of this C library has; all else comes along.
GLIBC = re.compile(r"(libc|libm|libdl|libpthread|librt|ld-linux-x86-64)\.so")


def said(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def has_nvcc():
    want = os.environ.get("SUPEROP_CUDA", "")
    if want:
        return want != "0"
    found = subprocess.run([ROOT / "tools" / "cuda.sh", "nvcc"], capture_output=True, text=True, cwd=ROOT)
    return found.stdout.strip() if found.returncode == 0 else ""


def build():
    """The folder with the shared objects."""
    folder = os.environ.get("SUPEROP_BUILD")
    if folder:
        folder = pathlib.Path(folder) if os.path.isabs(folder) else ROOT / folder
    else:
        nvcc = has_nvcc()
        folder = ROOT / "build" / ("wheel-cuda" if nvcc else "wheel")
        options = ["-DBUILD_TESTING=OFF", "-DSOP_TORCH=ON", f"-DSOP_CUDA={'ON' if nvcc else 'OFF'}"]
        if isinstance(nvcc, str) and nvcc:
            options.append(f"-DCMAKE_CUDA_COMPILER={nvcc}")
        subprocess.run(["cmake", "-G", "Ninja", "-S", ROOT, "-B", folder, *options], check=True)
    subprocess.run(["cmake", "--build", folder, "--target", "superop_shared", "superop_torch"], check=True)
    return folder


def needed(path):
    """The libraries beside glibc that a shared object names: their names and files."""
    names = re.findall(r"NEEDED\s+(\S+)", said("objdump", "-p", path))
    files = dict(re.findall(r"(\S+) => (/\S+)", said("ldd", path)))
    return {n: files[n] for n in names if not GLIBC.match(n) and n in files}


def put(source, target):
    """A copy without its symbols that looks for its libraries beside itself."""
    shutil.copyfile(source, target)
    subprocess.run(["strip", "--strip-unneeded", target], check=True)
    subprocess.run(["patchelf", "--set-rpath", "$ORIGIN", target], check=True)


def bundle(folder, lib):
    """Everything into lib. What is not ours gets a name of its own: a process may have another one of
    the same name open already, for Python's own modules."""
    lib.mkdir(parents=True, exist_ok=True)
    sources = [folder / "libsuperop.so.0", folder / "bindings" / "torch" / "libsuperop_torch.so"]
    renamed, files = {}, []
    for source in sources:
        target = lib / source.name
        put(source, target)
        for name, file in needed(source).items():
            if name == "libsuperop.so.0":
                continue
            if name not in renamed:
                renamed[name] = re.sub(r"\.so", "-superop.so", name, count=1)
                put(file, lib / renamed[name])
                files.append(file)
                subprocess.run(["patchelf", "--set-soname", renamed[name], lib / renamed[name]], check=True)
                deeper = needed(file)
                if deeper:
                    sys.exit(f"{name} needs {', '.join(deeper)}: what a dependency needs is not bundled")
            subprocess.run(["patchelf", "--replace-needed", name, renamed[name], target], check=True)
    licenses(files, folder, lib / "licenses")


def licenses(files, folder, into):
    """The words that what comes along wants beside it: of Debian's packages, and of CUTLASS's headers."""
    into.mkdir(exist_ok=True)
    for file in files:
        owner = subprocess.run(["dpkg", "-S", f"*/{pathlib.Path(file).name}"], capture_output=True, text=True).stdout
        package = owner.partition(":")[0]
        text = pathlib.Path("/usr/share/doc") / package / "copyright"
        if package and text.exists():
            shutil.copyfile(text, into / f"{package}.txt")
    cache = (folder / "CMakeCache.txt").read_text()
    cutlass = re.search(r"^SOP_CUTLASS:PATH=(.+)$", cache, re.M)
    if cutlass:
        for text in pathlib.Path(cutlass[1]).glob("../../../nvidia_cutlass-*.dist-info/licenses/LICENSE.txt"):
            shutil.copyfile(text, into / "cutlass.txt")


def glibc_of(lib):
    """The newest version of glibc that a file in lib asks for."""
    versions = [(2, 17)]
    for path in lib.glob("*.so*"):
        versions += [tuple(map(int, v)) for v in re.findall(r"GLIBC_(\d+)\.(\d+)", said("objdump", "-T", path))]
    return max(versions)


class Build(build_py):
    def run(self):
        super().run()
        lib = pathlib.Path(self.build_lib) / "superop" / "lib"
        shutil.rmtree(lib, ignore_errors=True)
        bundle(build(), lib)


class Wheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        lib = pathlib.Path(self.get_finalized_command("build_py").build_lib) / "superop" / "lib"
        major, minor = glibc_of(lib)
        return "py3", "none", f"manylinux_{major}_{minor}_{os.uname().machine}"


class HasFiles(Distribution):
    def has_ext_modules(self):
        return True


setup(cmdclass={"build_py": Build, "bdist_wheel": Wheel}, distclass=HasFiles)
