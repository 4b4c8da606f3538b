"""Nodes: machines on a network, in one machine. Linux namespaces joined by veth pairs.

A node has a network, a host name, a list of processes and mounts of its own, and shares the rest:
files, page cache, CPUs. All nodes are connected to one bridge, in a namespace of its own, so the
machine's network stays as it is. Each namespace is held by a process that ends with this one,
however this one ends: nothing is left, not even after SIGKILL.

It takes root, or unprivileged user namespaces, and the programs of `_TOOLS`.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
_TOOLS = ("hostname", "ip", "nsenter", "tc", "unshare")
# Bits per second of the units that tc takes.
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


class NoNodesError(Exception):
    """Nodes cannot be made here; the text is the reason."""


class _Space:
    """Namespaces, held by a process until its standard input ends, as it does when this one ends.

    Args:
        kinds: What `unshare` makes.
        around: The command that enters the namespaces in which these are made.
    """

    def __init__(self, kinds: Sequence[str], around: Sequence[str] = ()) -> None:
        self._holder = subprocess.Popen(
            [*around, "unshare", *kinds, "sh", "-c", "echo; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self._holder.pid
        if self._holder.stdout is not None and not self._holder.stdout.readline():
            told = self._holder.communicate()[1].decode().strip()
            raise NoNodesError(f"this system makes no namespaces: {told}")

    def enter(self, *kinds: str) -> list[str]:
        """Return the command that runs another one in namespaces of these kinds."""
        flags = {"pid": "pid_for_children", "mount": "mnt"}
        return ["nsenter", *(f"--{kind}=/proc/{self.pid}/ns/{flags.get(kind, kind)}" for kind in kinds)]

    def end(self) -> None:
        """Kill all processes in a namespace of processes; the last one takes the others with it."""
        self._holder.kill()
        self._holder.communicate()


class Node:
    """A machine.

    Attributes:
        name: Its host name, which all nodes know.
        address: Its address.
        enter: The command that runs another one in it.
    """

    def __init__(self, number: int, space: _Space, enter: Sequence[str], switch: Sequence[str]) -> None:
        self.name, self.address = f"node{number}", f"10.77.0.{number + 1}"
        self.enter, self._space, self._switch = enter, space, switch
        self._net = os.readlink(f"/proc/{space.pid}/ns/net")
        self._started: list[subprocess.Popen[str]] = []

    def popen(self, *command: str | Path, **options: Any) -> subprocess.Popen[str]:
        """Start a program in this node, in the project's folder; options are those of Popen."""
        words = [*self.enter, "env", f"--chdir={ROOT}", *map(str, command)]
        self._started.append(subprocess.Popen(words, text=True, **options))
        return self._started[-1]

    def run(self, script: str) -> str:
        """Run a shell script in this node and return its output.

        Raises:
            NoNodesError: it failed.
        """
        return _run(self.enter, script)

    def processes(self) -> dict[int, dict[str, str]]:
        """Return the environments of this node's processes, by their numbers outside of it."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if int(folder.name) != self._space.pid and os.readlink(folder / "ns/net") == self._net:
                    words = (folder / "environ").read_text(errors="replace").split("\0")
                    found[int(folder.name)] = dict(word.split("=", 1) for word in words if "=" in word)
            except (OSError, ProcessLookupError):  # it has ended since, or is another user's
                continue
        return found

    def kill(self) -> None:
        """Kill all its processes at once, and wait until they are gone."""
        self._space.end()
        self._space.end()
        for process in self._started:
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        while self.processes():  # their parents end first
            time.sleep(0.01)


class Network:
    """Nodes on one switch.

    Attributes:
        nodes: The nodes; each knows the names of all, "node0", "node1", ...
        rate: The rate of each node's link in both directions, in words.
        delay: The delay that each link adds to what a node sends, in words, or why there is none.
    """

    def __init__(self, nodes: Sequence[Node], switch: Sequence[str]) -> None:
        self.nodes, self._switch = tuple(nodes), switch
        self.limit()

    def limit(self, rate: str | None = None, delay: str | None = None) -> None:
        """Set the rate and the delay of all links; the arguments are those of `network`.

        Raises:
            ValueError: the rate has another unit.
            NoNodesError: tc cannot set the rate.
        """
        for node in self.nodes:
            for enter, device in ((node.enter, "eth0"), (self._switch, f"port-{node.name}")):
                _run(enter, f"tc qdisc del dev {device} root 2> /dev/null || true\n{_limit(device, rate)}")
        self.rate = rate or "not limited"
        self.delay = _delay(self.nodes, delay, limited=rate is not None)


@contextmanager
def network(count: int, *, rate: str | None = None, delay: str | None = None) -> Iterator[Network]:
    """Make nodes and a network between them; at the end all of it is gone, and all its processes.

    Args:
        count: How many nodes.
        rate: Bits per second of each node's link, such as "100mbit"; None: as fast as it gets.
        delay: What each link adds to the time of a packet that a node sends, such as "1ms".

    Raises:
        NoNodesError: root, a program or the kernel's permission is missing.
    """
    absent = [name for name in _TOOLS if shutil.which(name) is None]
    if sys.platform != "linux" or absent:
        raise NoNodesError(f"the program {absent[0]} is missing" if absent else "network namespaces are Linux's")
    root = os.geteuid() == 0
    with ExitStack() as stack:
        switch = _Space(["--net"] if root else ["--user", "--map-root-user", "--net"])
        stack.callback(switch.end)
        user = [] if root else [*switch.enter("user"), "--preserve-credentials"]
        inside = switch.enter("net") if root else [*switch.enter("user", "net"), "--preserve-credentials"]
        _run(inside, "ip link add bridge type bridge && ip link set bridge up")
        nodes = []
        for number in range(count):
            kinds = ["--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
            space = _Space(kinds, user)
            stack.callback(space.end)
            enter = space.enter("net", "uts", "mount", "pid")
            node = Node(number, space, [*user, *enter], inside)
            stack.callback(node.kill)
            nodes.append(node)
        hosts = "\\n".join(["127.0.0.1 localhost", *(f"{node.address} {node.name}" for node in nodes)])
        for node in nodes:
            port = f"port-{node.name}"
            _run(
                inside,
                f"ip link add {port} type veth peer name eth0 netns {node._space.pid}\n"
                f"ip link set {port} master bridge up",
            )
            node.run(
                f"hostname {node.name}\n"
                f"mount -t tmpfs nodes /run\nprintf '{hosts}\\n' > /run/hosts\nmount --bind /run/hosts /etc/hosts\n"
                f"ip link set lo up\nip address add {node.address}/24 dev eth0\nip link set eth0 up"
            )
        made = Network(nodes, inside)
        made.limit(rate, delay)
        yield made


@functools.cache
def why_not() -> str | None:
    """Return why nodes cannot be made here; None if they can."""
    try:
        with network(1):
            return None
    except NoNodesError as error:
        return str(error)


def _limit(device: str, rate: str | None) -> str:
    if rate is None:
        return ""
    unit = next((unit for unit in _UNITS if rate.endswith(unit)), None)
    if unit is None:
        raise ValueError(f"a rate ends in {', '.join(_UNITS)}: {rate!r}")
    # The bucket holds what 10 ms bring, or a large packet: the kernel refills it in its own ticks.
    burst = max(1 << 16, round(float(rate.removesuffix(unit)) * _UNITS[unit] / 8 * 0.01))
    return f"tc qdisc add dev {device} root handle 1: tbf rate {rate} burst {burst} latency 100ms"


def _delay(nodes: Sequence[Node], delay: str | None, *, limited: bool) -> str:
    if delay is None:
        return "none"
    for node in nodes:
        try:
            node.run(f"tc qdisc add dev eth0 {'parent 1:1 handle 2:' if limited else 'root'} netem delay {delay}")
        except NoNodesError:
            return "not set: the kernel has no netem"
    return delay


def _run(enter: Sequence[str], script: str) -> str:
    done = subprocess.run([*enter, "sh", "-e", "-c", script], check=False, capture_output=True, text=True)
    if done.returncode:
        raise NoNodesError(f"this system does not let a node be made: {done.stderr.strip()}")
    return done.stdout
