"""Every way to take the library up is tried: a small program is built by it and run."""
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile

import tap

HERE = pathlib.Path(__file__).resolve().parent
COMPILER = os.environ["RESHARD_CXX"]
MESON = os.environ["RESHARD_MESON"]
over_mpi = os.environ["RESHARD_MPI"] == "yes"
report = tap.Report()
scratch = pathlib.Path(tempfile.mkdtemp())
environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class Broken(Exception):
    """A command that failed, with its output."""


def run(*command, **extra):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=300, env={**environment, **extra}, check=False)
    if done.returncode != 0:
        raise Broken(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def folder(name):
    path = scratch / name
    path.mkdir()
    return path


def way(name, function, tool=None):
    """One check: the function raises where the way does not work."""
    if tool is not None and shutil.which(tool) is None:
        report.skipped(name, f"no {tool}")
        return
    try:
        function()
        report.passed(name)
    except (Broken, subprocess.TimeoutExpired, OSError) as why:
        report.failed(name, why)


def install():
    run(MESON, "setup", scratch / "install", tap.SOURCE, "--prefix", scratch / "prefix", "-Dtests=disabled",
        "-Dexamples=disabled", "-Dbench=disabled")
    run(MESON, "install", "-C", scratch / "install")
    installed = {str(path.relative_to(scratch / "prefix/include")) for path in (scratch / "prefix/include").rglob("*.hpp")}
    lacking = set(tap.headers()) - installed
    if lacking:
        raise Broken(f"not installed: {sorted(lacking)}")


def pkg_config(package, source):
    def build():
        paths = ":".join(str(path.parent) for path in (scratch / "prefix").rglob("*.pc"))
        flags = run("pkg-config", "--cflags", "--libs", package, PKG_CONFIG_PATH=paths).split()
        program = folder("pkg-config-" + package) / "consumer"
        run(COMPILER, "-std=c++20", HERE / source, "-o", program, *flags)
        run(program)
    return build


def cmake(how):
    def build():
        path = folder("cmake-" + how)
        definitions = [f"-DRESHARD_WAY={how}", f"-DRESHARD_SOURCE={tap.SOURCE}", f"-DCMAKE_PREFIX_PATH={scratch}/prefix",
                       f"-DRESHARD_MPI={'ON' if over_mpi else 'OFF'}", f"-DCMAKE_CXX_COMPILER={COMPILER}"]
        if how == "FetchContent":
            archive = path / "reshard.tar.gz"
            with tarfile.open(archive, "w:gz") as tar:
                for name in ("include", "LICENSE", "meson.build", "meson_options.txt"):
                    tar.add(tap.SOURCE / name, "reshard/" + name)
            definitions.append(f"-DRESHARD_ARCHIVE={archive}")
        run("cmake", "-S", HERE / "cmake", "-B", path / "build", *definitions)
        run("cmake", "--build", path / "build")
        for program in ["consumer"] + (["consumer_mpi"] if over_mpi else []):
            run(path / "build" / program)
    return build


def meson_subproject():
    path = folder("meson")
    for name in ("meson/meson.build", "meson/meson_options.txt", "main.cpp", "main_mpi.cpp"):
        shutil.copy(HERE / name, path)
    (path / "subprojects").mkdir()
    (path / "subprojects/reshard").symlink_to(tap.SOURCE)
    run(MESON, "setup", path / "build", path, f"-Dover_mpi={'true' if over_mpi else 'false'}")
    targets = run(MESON, "introspect", "--targets", path / "build")
    if "unit_test" in targets:
        raise Broken("a subproject builds the library's own tests")
    run(MESON, "compile", "-C", path / "build")
    for program in ["consumer"] + (["consumer_mpi"] if over_mpi else []):
        run(path / "build" / program)


def plain_include():
    program = folder("plain") / "consumer"
    run(COMPILER, "-std=c++20", "-I", tap.INCLUDE, HERE / "main.cpp", "-o", program)
    run(program)


def cxx17_program():
    path = folder("cxx17")
    run(COMPILER, "-std=c++17", "-c", HERE / "cxx17/main.cpp", "-o", path / "main.o")
    run(COMPILER, "-std=c++20", "-I", tap.INCLUDE, "-c", HERE / "cxx17/trainer.cpp", "-o", path / "trainer.o")
    run(COMPILER, path / "main.o", path / "trainer.o", "-o", path / "consumer")
    run(path / "consumer")


try:
    way("installed", install)
    way("pkg-config", pkg_config("reshard", "main.cpp"), "pkg-config")
    if over_mpi:
        way("pkg-config over MPI", pkg_config("reshard-mpi", "main_mpi.cpp"), "pkg-config")
    way("CMake find_package", cmake("find_package"), "cmake")
    way("CMake FetchContent of a local archive", cmake("FetchContent"), "cmake")
    way("CMake add_subdirectory", cmake("add_subdirectory"), "cmake")
    way("Meson subproject", meson_subproject)
    way("-I include -std=c++20", plain_include)
    way("C++17 program with one C++20 file", cxx17_program)
finally:
    shutil.rmtree(scratch)
report.end()
