"""A machine inside this one, whose addresses, host names and root folder are its own, so that examples run as written.

    with Sandbox(folder, {"10.0.0.1": "node1"}) as sandbox:
        sandbox.run("ping -c 1 node1")

It has namespaces of network, mounts, names and processes, and this machine's files; nothing outside changes. The folder
is `/shared` inside. It has all addresses that are given, and reaches no other. When it ends, or this process does, all
that runs inside is killed. Needs root.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NAMESPACES = "--net", "--mount", "--uts", "--pid", "--fork"
_SETUP = """
set -e
ip link set lo up
ip link add eth0 type veth peer name end0  # programs that leave out the loopback interface find one
ip link set end0 up
ip link set eth0 up
for address in $ADDRESSES; do ip address add "$address/24" dev eth0; done
hostname "$NAME"
mkdir "$FOLDER/root"
mount -t tmpfs none "$FOLDER/root"
cd "$FOLDER/root"
for each in /*; do
  if [ -L "$each" ]; then cp -P "$each" .; elif [ -d "$each" ]; then mkdir ".$each"; mount --rbind "$each" ".$each"; fi
done
mkdir -p shared
mount --bind "$FOLDER/shared" shared
mount -t proc proc proc
mount --bind "$FOLDER/hosts" etc/hosts
exec chroot . "$PYTHON" -S -c "$INIT"
"""
_INIT = """
import os, time
print("ready", flush=True)
while True:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(0.1)
"""  # as the first process of the namespace, of which all orphans become children


def why_not() -> str | None:
    """What is missing for a sandbox on this machine, or None."""
    command = ["unshare", *_NAMESPACES, "ip", "link", "set", "lo", "up"]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError:
        return "needs unshare of util-linux"
    return None if done.returncode == 0 else "needs root, with the right to make namespaces, and iproute2"


class Sandbox:
    """A machine inside this one.

    Args:
      folder: empty; its `shared` is `/shared` inside.
      hosts: names by address; the first name is the machine's own.
      environment: of what runs inside.
    """

    def __init__(self, folder: Path, hosts: Mapping[str, str], environment: Mapping[str, str] | None = None):
        self.folder, self.shared = folder, folder / "shared"
        self.hosts, self._environment = hosts, dict(os.environ if environment is None else environment)
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> "Sandbox":
        self.shared.mkdir()
        lines = [f"{address} {name}" for address, name in self.hosts.items()]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        own = {
            "ADDRESSES": " ".join(address for address in self.hosts if not address.startswith("127.")),
            "NAME": next(iter(self.hosts.values())),
            "FOLDER": str(self.folder),
            "PYTHON": sys.executable,
            "INIT": _INIT,
        }
        tied = ["setpriv", "--pdeathsig", "KILL", "unshare", "--kill-child", *_NAMESPACES]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self._process = subprocess.Popen([*tied, "sh", "-c", _SETUP], env=os.environ | own, **pipes)
        assert self._process.stdout is not None
        if (line := self._process.stdout.readline()) != "ready\n":
            raise RuntimeError(f"sandbox: {line}{self._process.communicate()[0]}")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()
        deadline = time.monotonic() + 10  # until the kernel has taken its mounts away
        while time.monotonic() < deadline:
            try:
                (self.folder / "root").rmdir()
                return
            except OSError:
                time.sleep(0.1)

    def open(self, command: str, **more: Any) -> subprocess.Popen:
        """Starts a command of bash inside, in `/shared`; as subprocess.Popen, whose arguments it takes too."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        enter = ["nsenter", "--target", children[0], "--net", "--mount", "--uts", "--pid", "--root", "--wd"]
        return subprocess.Popen([*enter, "bash", "-c", f"cd /shared\n{command}"], env=self._environment, **more)

    def run(self, command: str, timeout: float = 60) -> str:
        """Runs a command of bash inside; what it prints.

        Raises:
          subprocess.CalledProcessError: if it fails.
        """
        with self.open(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            out, _ = process.communicate(timeout=timeout)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, out)
        return out
