"""The attacks. Each returns what got out, or an empty string; the judge is the host, not the attack.

Bounded by themselves where a plain subprocess would not bound them: the same text runs there too.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.hostile.arena import MEMORY_ALLOWED, Arena, host_has, host_text
from toolgate.sandbox.sandbox import MIB, SessionKey

Attack = Callable[[Arena], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    attack: Attack


CASES: Final[list[Case]] = []
SYSCALL: Final = """
import ctypes, os, platform, sys
libc = ctypes.CDLL(None, use_errno=True)
ARM = platform.machine() == "aarch64"
def syscall(x86, arm, *args):
    result = libc.syscall(arm if ARM else x86, *args)
    return result, ctypes.get_errno()
"""


def case(attack: Attack) -> Attack:
    CASES.append(Case(attack.__name__.replace("_", "-"), attack))
    return attack


def _leak(arena: Arena, output: bytes | str) -> str:
    text = output.decode("utf-8", "replace") if isinstance(output, bytes) else output
    return "read the canary" if arena.secret in text else ""


async def _left_over(arena: Arena) -> str:
    left = await arena.survivors()
    return f"{len(left)} processes survive" if left else ""


def _reached(arena: Arena, *names: str) -> str:
    hit = [name for name in arena.reached if name in names]
    return f"reached {', '.join(sorted(set(hit)))}" if hit else ""


def _changed(path: str, before: str) -> str:
    return f"{path} was changed" if host_text(path) != before else ""


def _remove_shared_memory(number: int) -> None:
    subprocess.run(["ipcrm", "-m", str(number)], check=False)


@case
async def fork_bomb(arena: Arena) -> str:
    async with arena.watching() as seen:
        await arena.attack("b() { b | b & }; b; sleep 1", seconds=1.0)
    return f"{seen.most} processes" if seen.most > 64 else await _left_over(arena)


@case
async def fork_bomb_of_daemons(arena: Arena) -> str:
    text = "for i in $(seq 300); do setsid sleep 30 & done 2>/dev/null; sleep 0.3"
    async with arena.watching() as seen:
        await arena.attack(text, seconds=2.0)
    return f"{seen.most} processes" if seen.most > 64 else await _left_over(arena)


@case
async def memory_bomb(arena: Arena) -> str:
    text = "b = []\nwhile len(b) < 900:\n    b.append(bytearray(b'x' * 1048576))\n"
    async with arena.watching() as seen:
        await arena.attack(text, python=True, seconds=5.0)
    return f"{seen.most_bytes // MIB} MiB" if seen.most_bytes > MEMORY_ALLOWED else ""


@case
async def memory_bomb_of_many(arena: Arena) -> str:
    text = (
        "import os, time\n"
        "for n in range(5):\n"
        "    if os.fork() == 0:\n"
        "        keep = bytearray(b'x' * (130 << 20)); open(f'full{n}', 'w').close(); time.sleep(4)\n"
        "        os._exit(0)\n"
        "end = time.monotonic() + 2\n"
        "while time.monotonic() < end and len([f for f in os.listdir() if 'full' in f]) < 5:\n"
        "    time.sleep(0.02)\n"
        "time.sleep(0.3)\n"
    )
    async with arena.watching() as seen:
        await arena.attack(text, python=True, seconds=4.0)
    return f"{seen.most_bytes // MIB} MiB" if seen.most_bytes > MEMORY_ALLOWED else ""


@case
async def output_flood(arena: Arena) -> str:
    ran = await arena.attack("yes flood", seconds=4.0)
    if len(ran.output) > 17 * MIB or ran.seconds > 6:
        return f"{len(ran.output)} bytes in {ran.seconds:.1f} s"
    return await _left_over(arena)


@case
async def output_flood_on_stderr(arena: Arena) -> str:
    ran = await arena.attack("yes flood >&2", seconds=4.0)
    if len(ran.output) > 17 * MIB or ran.seconds > 6:
        return f"{len(ran.output)} bytes in {ran.seconds:.1f} s"
    return await _left_over(arena)


@case
async def output_flood_by_a_daemon(arena: Arena) -> str:
    ran = await arena.attack("setsid yes flood & sleep 0.2; exit 0", seconds=2.0)
    if len(ran.output) > 17 * MIB:
        return f"{len(ran.output)} bytes"
    return await _left_over(arena)


@case
async def disk_fill(arena: Arena) -> str:
    text = "for i in 1 2 3 4 5; do head -c 40000000 /dev/zero > fill$i; done; sync fill1; sleep 0.1"
    await arena.attack(text, seconds=8.0)
    grown = sum(path.stat().st_blocks * 512 for path in _files_of_plain(arena))
    return f"{grown // MIB} MiB on the host's disk" if grown > 65 * MIB else ""


@case
async def inode_fill(arena: Arena) -> str:
    text = "import os\nos.makedirs('i', exist_ok=True)\nfor n in range(20000): open(f'i/{n}', 'w').close()\n"
    await arena.attack(text, python=True, seconds=4.0)
    count = len(_files_of_plain(arena))
    return f"{count} files on the host's disk" if count > 16_384 else ""


def _files_of_plain(arena: Arena) -> list[Path]:
    """A sandbox has no directory on the host's disk; a plain subprocess does."""
    workspace = getattr(arena.place, "workspace", None)
    return (
        [] if workspace is None else [path for path in Path(workspace).rglob("*") if path.is_file()]
    )


@case
async def shared_memory_fill(arena: Arena) -> str:
    await arena.attack(f"head -c 30000000 /dev/zero > /dev/shm/{arena.token}; sleep 0.1")
    return "wrote the host's /dev/shm" if host_has(f"/dev/shm/{arena.token}") else ""


@case
async def file_left_in_tmp(arena: Arena) -> str:
    await arena.attack(f"echo here > /tmp/left-{arena.token}")
    return "left a file in the host's /tmp" if host_has(f"/tmp/left-{arena.token}") else ""


@case
async def many_open_files(arena: Arena) -> str:
    def in_use() -> int:
        return int(Path("/proc/sys/fs/file-nr").read_text().split()[0])

    text = (
        "import os, time\n"
        "for _ in range(30):\n"
        "    if os.fork() == 0:\n"
        "        try:\n"
        "            while True: os.open('/dev/null', 0)\n"
        "        except OSError: time.sleep(0.8); os._exit(0)\n"
        "time.sleep(0.8)\n"
    )
    before = in_use()
    running = asyncio.create_task(arena.attack(text, python=True, seconds=2.0))
    await asyncio.sleep(0.6)
    most = in_use() - before
    await running
    return f"{most} files" if most > 64 * 1024 else ""


@case
async def cpu_spin(arena: Arena) -> str:
    text = "for i in 1 2 3 4; do while :; do :; done & done; sleep 1.5"
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with arena.watching() as seen:
        await arena.attack(text, seconds=2.5)
    share = seen.cpu_seconds / (loop.time() - started)
    return f"{share:.1f} processors" if share > 1.35 else await _left_over(arena)


@case
async def priority_raised(arena: Arena) -> str:
    text = (
        "import os\n"
        "for how in (lambda: os.nice(-10), lambda: os.sched_setscheduler(0, 1, os.sched_param(50))):\n"
        "    try: how()\n"
        "    except OSError as no: print(no)\n"
        "import time; time.sleep(0.2)\n"
    )
    async with arena.watching() as seen:
        await arena.attack(text, python=True)
    ours = os.nice(0)
    return f"nice {min(seen.priorities)}" if min(seen.priorities, default=ours) < ours else ""


@case
async def huge_argv(arena: Arena) -> str:
    text = "import subprocess\ntry: subprocess.run(['/bin/true'] + ['x' * 100000] * 40)\nexcept OSError as no: print(no)\n"
    await arena.attack(text, python=True)
    return await _left_over(arena)


@case
async def huge_environment(arena: Arena) -> str:
    with contextlib.suppress(OSError):
        await arena.attack("echo in", BIG="x" * 3_000_000)
    return await _left_over(arena)


@case
async def command_of_200_kilobytes(arena: Arena) -> str:
    ran = await arena.attack("# " + "x" * 200_000 + f"\necho done-{arena.token}")
    if arena.place.name != "plain" and f"done-{arena.token}" not in ran.text:
        return "a long command was lost"
    return await _left_over(arena)


@case
async def sleep_past_the_deadline(arena: Arena) -> str:
    ran = await arena.attack("sleep 30", seconds=0.5)
    return f"ran {ran.seconds:.1f} s" if ran.seconds > 3 else await _left_over(arena)


@case
async def setsid_daemon(arena: Arena) -> str:
    await arena.attack("setsid sleep 30 > /dev/null 2>&1 & sleep 0.2; exit 0", seconds=1.0)
    return await _left_over(arena)


@case
async def double_fork_daemon(arena: Arena) -> str:
    text = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.closerange(0, 64); time.sleep(30)\n"
        "    os._exit(0)\n"
    )
    await arena.attack(text, python=True, seconds=1.0)
    return await _left_over(arena)


@case
async def daemon_that_survives_the_deadline(arena: Arena) -> str:
    await arena.attack("(setsid sleep 30 > /dev/null 2>&1 &); sleep 30", seconds=0.5)
    return await _left_over(arena)


@case
async def daemon_that_outlives_its_session(arena: Arena) -> str:
    other = await arena.place.another(SessionKey("hostile", arena.token, "short"))
    await other.run(
        "setsid sleep 30 & sleep 0.2", python=False, seconds=1.0, env={"HOSTILE_TOKEN": arena.token}
    )
    await other.close()
    return await _left_over(arena)


@case
async def sigterm_ignored(arena: Arena) -> str:
    ran = await arena.attack("trap '' TERM INT HUP QUIT; while :; do sleep 0.1; done", seconds=0.5)
    return f"ran {ran.seconds:.1f} s" if ran.seconds > 3 else await _left_over(arena)


@case
async def stopped_processes(arena: Arena) -> str:
    text = "setsid sh -c 'kill -STOP $$; sleep 30' & kill -STOP $$"
    ran = await arena.attack(text, seconds=0.5)
    return f"ran {ran.seconds:.1f} s" if ran.seconds > 3 else await _left_over(arena)


@case
async def zombies(arena: Arena) -> str:
    text = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    for _ in range(30):\n"
        "        if os.fork() == 0: os._exit(0)\n"
        "    time.sleep(30)\n"
        "time.sleep(0.3)\n"
    )
    await arena.attack(text, python=True, seconds=1.0)
    return await _left_over(arena)


@case
async def killed_while_killing(arena: Arena) -> str:
    running = asyncio.create_task(arena.attack("while :; do sleep 0.01; done", seconds=5.0))
    await asyncio.sleep(0.2)
    await asyncio.gather(*(arena.place.kill() for _ in range(20)))
    ran = await running
    return f"ran {ran.seconds:.1f} s" if ran.seconds > 4 else await _left_over(arena)


@case
async def kill_everyone(arena: Arena) -> str:
    await arena.attack("kill -9 -1", seconds=2.0)
    await asyncio.sleep(0.05)
    return "" if arena.victim_lives() else "killed another's process"


@case
async def kill_by_pid(arena: Arena) -> str:
    assert arena.victim is not None
    await arena.attack(f"kill -9 {arena.victim.pid}", seconds=2.0)
    await asyncio.sleep(0.05)
    return "" if arena.victim_lives() else "killed another's process"


@case
async def command_lines_of_others(arena: Arena) -> str:
    ran = await arena.attack(
        "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | tail -c 100000"
    )
    return _leak(arena, ran.output)


@case
async def environments_of_others(arena: Arena) -> str:
    ran = await arena.attack(
        "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | tail -c 100000"
    )
    return _leak(arena, ran.output)


@case
async def ptrace_another(arena: Arena) -> str:
    assert arena.victim is not None
    text = (
        SYSCALL
        + f"print(syscall(101, 117, 16, {arena.victim.pid}, 0, 0))\nimport time; time.sleep(0.4)\n"
    )
    async with arena.watching() as seen:
        await arena.attack(text, python=True)
    return "traced another's process" if seen.traced else ""


@case
async def memory_of_another(arena: Arena) -> str:
    assert arena.victim is not None
    text = (
        f"maps = open('/proc/{arena.victim.pid}/maps').read().splitlines()\n"
        "stack = next(line for line in maps if '[stack]' in line).split('-')\n"
        "low, high = int(stack[0], 16), int(stack[1].split()[0], 16)\n"
        f"memory = open('/proc/{arena.victim.pid}/mem', 'rb')\n"
        "memory.seek(low)\n"
        "print(memory.read(high - low))\n"
    )
    ran = await arena.attack(text, python=True)
    return _leak(arena, ran.output)


@case
async def memory_and_token_of_the_runner(arena: Arena) -> str:
    text = (
        f"for pid in ({os.getpid()}, {os.getppid()}, 1):\n"
        "    for name in ('environ', 'mem', 'maps'):\n"
        "        try: print(open(f'/proc/{pid}/{name}', 'rb').read(100000))\n"
        "        except OSError as no: pass\n"
    )
    ran = await arena.attack(text, python=True)
    return _leak(arena, ran.output) or ("read the runner" if "TOOLGATE_HOSTILE" in ran.text else "")


@case
async def memory_of_the_agent(arena: Arena) -> str:
    text = (
        "try:\n"
        "    maps = open('/proc/1/maps').read()\n"
        "    memory = open('/proc/1/mem', 'r+b', buffering=0)\n"
        "    print('opened')\n"
        "except OSError as no: print(no)\n"
    )
    ran = await arena.attack(text, python=True)
    return "opened the agent's memory" if "opened" in ran.text else ""


@case
async def signals_to_the_agent(arena: Arena) -> str:
    await arena.attack("for s in 9 15 19 11 6 1; do kill -$s 1; done; sleep 0.1; echo alive")
    return await _left_over(arena)


@case
async def frames_forged_at_the_agents_channel(arena: Arena) -> str:
    text = (
        "for f in /proc/1/fd/*; do printf 'forged-frame-forged' > $f; done 2>/dev/null; echo done"
    )
    ran = await arena.attack(text)
    return "wrote to the channel" if "forged-frame" in ran.text else ""


@case
async def processes_of_another_session(arena: Arena) -> str:
    other = await arena.place.another(SessionKey("hostile", arena.token, "other"))
    running = asyncio.create_task(
        other.run("sleep 1", python=False, seconds=2, env={"SECRET": arena.secret})
    )
    await asyncio.sleep(0.3)
    ran = await arena.attack("cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep SECRET")
    await running
    return _leak(arena, ran.output)


@case
async def sysctl_writes(arena: Arena) -> str:
    paths = [
        f"/proc/sys/{name}" for name in ("kernel/core_pattern", "vm/swappiness", "kernel/hostname")
    ]
    before = {path: host_text(path) for path in paths}
    await arena.attack("\n".join(f"echo 7 > {path}" for path in paths))
    return "".join(_changed(path, text) for path, text in before.items())


@case
async def sysfs_writes(arena: Arena) -> str:
    path = "/sys/kernel/mm/transparent_hugepage/enabled"
    before = host_text(path)
    await arena.attack(f"echo never > {path}; echo h > /proc/sysrq-trigger")
    return _changed(path, before)


@case
async def core_dump(arena: Arena) -> str:
    await arena.attack(
        f"cd {arena.folder} 2>/dev/null; ulimit -c unlimited; bash -c 'kill -SEGV $$'"
    )
    return "left a core" if list(arena.folder.glob("core*")) else ""


@case
async def io_uring(arena: Arena) -> str:
    text = (
        SYSCALL
        + "print('opened', syscall(425, 425, 8, ctypes.create_string_buffer(120))[0] >= 0)\n"
    )
    ran = await arena.attack(text, python=True)
    return "opened a ring" if "opened True" in ran.text else ""


@case
async def keyring(arena: Arena) -> str:
    text = (
        SYSCALL
        + f"syscall(248, 217, b'user', b'key-{arena.token}', b'x', 1, -4)\nimport time; time.sleep(0.3)\n"
    )
    running = asyncio.create_task(arena.attack(text, python=True))
    found = ""
    while not running.done():
        if f"key-{arena.token}" in host_text("/proc/keys"):
            found = "left a key in the host's keyring"
        await asyncio.sleep(0.03)
    return found


@case
async def bpf_perf_and_userfaultfd(arena: Arena) -> str:
    text = SYSCALL + (
        "doors = {'bpf': (321, 280, 0, ctypes.create_string_buffer(128), 48),\n"
        "  'perf': (298, 241, ctypes.create_string_buffer(b'\\0\\0\\0\\0\\x70', 112), 0, -1, -1, 0),\n"
        "  'userfaultfd': (323, 282, 1)}\n"
        "for name, call in doors.items():\n"
        "    print(name, 'opened' if syscall(*call)[0] >= 0 else 'shut')\n"
    )
    ran = await arena.attack(text, python=True)
    return "opened one" if "opened" in ran.text else ""


@case
async def modules_and_kexec(arena: Arena) -> str:
    text = (
        SYSCALL
        + "print([syscall(*c)[1] for c in ((175, 105, 0, 0, b''), (246, 104, 0, 0, 0, 0), (313, 273, 0, b'', 0))])\n"
    )
    before = host_text("/proc/modules")
    await arena.attack(text, python=True)
    return _changed("/proc/modules", before)


@case
async def clock_set(arena: Arena) -> str:
    text = SYSCALL + "import struct\nprint(syscall(227, 112, 0, struct.pack('qq', 86400, 0))[0])\n"
    await arena.attack(text, python=True)
    return "set the clock" if datetime.now(UTC).year < 2000 else ""


@case
async def mount_something(arena: Arena) -> str:
    before = host_text("/proc/self/mounts")
    text = (
        SYSCALL
        + "print('mounted' if libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0 else 'refused')\n"
    )
    ran = await arena.attack(text, python=True)
    if host_text("/proc/self/mounts") != before:
        return "mounted on the host"
    return "mounted inside" if "mounted" in ran.text else ""


@case
async def new_user_namespace(arena: Arena) -> str:
    async with arena.watching() as seen:
        await arena.attack("sleep 0.1; unshare -U sleep 0.4; true", seconds=2.0)
    return "made a user namespace" if len(seen.userns) > 1 else ""


@case
async def namespace_by_clone3(arena: Arena) -> str:
    text = SYSCALL + (
        "import struct, time\n"
        "time.sleep(0.1)\n"
        "args = struct.pack('11Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0)\n"
        "pid, no = syscall(435, 435, args, 88)\n"
        "if pid == 0:\n    time.sleep(0.4)\n    os._exit(0)\n"
        "time.sleep(0.4)\n"
    )
    async with arena.watching() as seen:
        await arena.attack(text, python=True, seconds=2.0)
    return "made a user namespace" if len(seen.userns) > 1 else ""


@case
async def entering_the_hosts_namespaces(arena: Arena) -> str:
    text = f"for p in 1 $PPID; do nsenter -t $p -m -p -n cat {arena.canary}; done 2>&1"
    ran = await arena.attack(text)
    return _leak(arena, ran.output)


@case
async def chroot_out(arena: Arena) -> str:
    text = (
        "import os\n"
        "try:\n"
        "    os.mkdir('c'); os.chroot('c'); print('entered')\n"
        "    for _ in range(50): os.chdir('..')\n"
        f"    os.chroot('.'); print(open('{arena.canary}').read())\n"
        "except OSError as no: print(no)\n"
    )
    ran = await arena.attack(text, python=True)
    return _leak(arena, ran.output) or ("chroot worked" if "entered" in ran.text else "")


@case
async def cgroup_left(arena: Arena) -> str:
    text = "for f in $(find /sys/fs/cgroup -maxdepth 2 -name cgroup.procs 2>/dev/null); do echo $$ > $f && echo moved; done; true"
    ran = await arena.attack(text)
    return "left its cgroup" if "moved" in ran.text else ""


@case
async def ipc_with_the_host(arena: Arena) -> str:
    key = int(arena.token[:7], 16)
    text = SYSCALL + f"print(libc.shmget({key}, 4096, 0o1600))\n"
    await arena.attack(text, python=True)
    found = [
        line for line in host_text("/proc/sysvipc/shm").splitlines() if str(key) in line.split()[:1]
    ]
    for line in found:
        _remove_shared_memory(int(line.split()[1]))
    return "left shared memory on the host" if found else ""


def _connect(family: str, address: str) -> str:
    return (
        "import socket\n"
        f"s = socket.socket(socket.{family})\n"
        "s.settimeout(0.7)\n"
        f"try: s.connect({address}); print('connected')\n"
        "except OSError as no: print(type(no).__name__, no)\n"
    )


@case
async def network_to_loopback(arena: Arena) -> str:
    address = f"('127.0.0.1', {arena.ports['loopback']})"
    await arena.attack(_connect("AF_INET", address), python=True)
    return _reached(arena, "loopback")


@case
async def network_to_loopback_by_ipv6(arena: Arena) -> str:
    address = f"('::1', {arena.ports.get('loopback6', 9)})"
    await arena.attack(_connect("AF_INET6", address), python=True)
    return _reached(arena, "loopback6")


@case
async def network_to_the_host(arena: Arena) -> str:
    text = (
        "import socket\n"
        f"for host in {_addresses()!r}:\n"
        "    s = socket.socket(); s.settimeout(0.5)\n"
        f"    try: s.connect((host, {arena.ports['anywhere']}))\n"
        "    except OSError as no: print(no)\n"
    )
    await arena.attack(text, python=True)
    return _reached(arena, "anywhere")


def _addresses() -> list[str]:
    found = {"127.0.0.2", "0.0.0.0"}
    with contextlib.suppress(OSError):
        found |= {
            str(each[4][0])
            for each in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        }
    return sorted(found)


@case
async def network_to_the_metadata_address(arena: Arena) -> str:
    ran = await arena.attack(_connect("AF_INET", "('169.254.169.254', 80)"), python=True)
    refused_at_once = "unreachable" in ran.text or "not permitted" in ran.text.lower()
    return "" if refused_at_once else "packets leave"


@case
async def dns(arena: Arena) -> str:
    text = (
        "import socket\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        f"try: s.sendto(b'query', ('127.0.0.1', {arena.ports['dns']}))\n"
        "except OSError as no: print(no)\n"
        "try: print(socket.getaddrinfo('example.org', 80))\n"
        "except OSError as no: print(no)\n"
    )
    await arena.attack(text, python=True)
    await asyncio.sleep(0.05)
    return _reached(arena, "dns")


@case
async def raw_and_packet_sockets(arena: Arena) -> str:
    text = (
        "import socket\n"
        "for args in ((2, 3, 1), (17, 3, 0), (2, 10, 0)):\n"
        "    try: socket.socket(*args); print('opened', args)\n"
        "    except OSError as no: print(no)\n"
    )
    ran = await arena.attack(text, python=True)
    return "opened one" if "opened" in ran.text else ""


@case
async def sockets_of_the_virtual_machine(arena: Arena) -> str:
    text = (
        "import socket\n"
        "try: socket.socket(40, socket.SOCK_STREAM); print('opened')\n"
        "except OSError as no: print(no)\n"
    )
    ran = await arena.attack(text, python=True)
    return "opened a vsock" if "opened" in ran.text else ""


@case
async def unix_socket_of_the_host(arena: Arena) -> str:
    await arena.attack(_connect("AF_UNIX", f"'{arena.folder}/host.sock'"), python=True)
    return _reached(arena, "unix")


@case
async def docker_socket(arena: Arena) -> str:
    await arena.attack(_connect("AF_UNIX", f"'{arena.folder}/docker.sock'"), python=True)
    ran = await arena.attack("ls -l /var/run/docker.sock /run/docker.sock 2>/dev/null")
    return _reached(arena, "docker") or ("sees the engine's socket" if "docker" in ran.text else "")


@case
async def abstract_unix_socket(arena: Arena) -> str:
    await arena.attack(_connect("AF_UNIX", rf"'\0hostile-{arena.token}'"), python=True)
    return _reached(arena, "abstract")


@case
async def files_of_the_host(arena: Arena) -> str:
    ran = await arena.attack(f"cat {arena.canary} /etc/shadow /root/.bash_history; ls /root /home")
    return _leak(arena, ran.output)


@case
async def symlink_out_of_the_workspace(arena: Arena) -> str:
    await arena.attack(f"ln -s {arena.canary} link; ln -s / root")
    return _leak(arena, await arena.place.read("link")) or _leak(
        arena, await arena.place.read(f"root{arena.canary}")
    )


@case
async def symlink_written_through(arena: Arena) -> str:
    await arena.attack(f"ln -s {arena.folder} door")
    await arena.place.write("door/planted", b"x")
    return "wrote outside" if (arena.folder / "planted").exists() else ""


@case
async def hard_link_out_of_the_workspace(arena: Arena) -> str:
    await arena.attack(f"ln {arena.canary} hard; ln /etc/passwd passwd")
    return _leak(arena, await arena.place.read("hard"))


@case
async def race_on_symlinks(arena: Arena) -> str:
    text = (
        "import os, time\n"
        "end = time.monotonic() + 0.8\n"
        "while time.monotonic() < end:\n"
        "    for make in (lambda: open('r', 'w').close(), "
        f"lambda: os.symlink('{arena.canary}', 'r')):\n"
        "        try: os.unlink('r')\n"
        "        except OSError: pass\n"
        "        try: make()\n"
        "        except OSError: pass\n"
    )
    running = asyncio.create_task(arena.attack(text, python=True, seconds=2.0))
    found = ""
    for _ in range(200):
        found = found or _leak(arena, await arena.place.read("r"))
        if running.done() or found:
            break
        await asyncio.sleep(0.003)
    await running
    return found


@case
async def dots_in_paths(arena: Arena) -> str:
    await arena.attack("mkdir -p a/b")
    climb = "../" * 12
    await arena.place.write(f"a/{climb}{str(arena.folder)[1:]}/planted", b"x")
    await arena.place.write(f"{climb}{str(arena.folder)[1:]}/planted", b"x")
    if (arena.folder / "planted").exists():
        return "wrote outside"
    return _leak(arena, await arena.place.read(f"{climb}{str(arena.canary)[1:]}"))


@case
async def absolute_paths(arena: Arena) -> str:
    await arena.place.write(f"{arena.folder}/planted", b"x")
    if (arena.folder / "planted").exists():
        return "wrote outside"
    return _leak(arena, await arena.place.read(str(arena.canary)))


@case
async def dots_in_session_ids(arena: Arena) -> str:
    key = SessionKey(f"../..{arena.folder}", "..", f"/../../{arena.token}\0x")
    other = await arena.place.another(key)
    ran = await other.run("pwd; echo x > here", python=False, seconds=2, env={})
    await other.close()
    planted = [path.name for path in arena.folder.iterdir() if path.name == "here"]
    return "chose its directory" if planted or str(arena.folder) in ran.text else ""


@case
async def fifo_that_blocks_a_read(arena: Arena) -> str:
    await arena.attack("mkfifo pipe")
    try:
        async with asyncio.timeout(3):
            await arena.place.read("pipe")
    except TimeoutError:
        return "a read hangs"
    return ""


@case
async def proc_through_the_workspace(arena: Arena) -> str:
    await arena.attack(
        "ln -s /proc/self/environ e; ln -s /proc/1/root/etc/hostname h; ln -s /proc/self/root r"
    )
    read = await arena.place.read("e") + await arena.place.read("h")
    return _leak(arena, read) or _leak(arena, await arena.place.read(f"r{arena.canary}"))


@case
async def device_nodes(arena: Arena) -> str:
    text = (
        "import os, stat\n"
        "for kind, major, minor in ((stat.S_IFCHR, 1, 1), (stat.S_IFBLK, 254, 0), (stat.S_IFBLK, 8, 0)):\n"
        "    try: os.mknod('node', kind | 0o666, os.makedev(major, minor)); print('made')\n"
        "    except OSError as no: print(no)\n"
        "for name in ('/dev/mem', '/dev/kmsg', '/dev/vda', '/dev/sda', '/dev/kvm', '/dev/fuse'):\n"
        "    try: open(name, 'rb').read(1); print('made', name)\n"
        "    except OSError: pass\n"
    )
    ran = await arena.attack(text, python=True)
    return "has a device" if "made" in ran.text else ""


@case
async def setuid_programs(arena: Arena) -> str:
    text = (
        "cp /bin/sleep s; chmod 4755 s; ./s 0.2 & "
        "for p in su sudo newgrp passwd mount; do (echo | timeout 0.2 $p -c 'sleep 0.2') 2>/dev/null & done; "
        "python3 -c 'import os; os.setuid(0)' 2>/dev/null; sleep 0.5"
    )
    async with arena.watching() as seen:
        await arena.attack(text, seconds=2.0)
    return "ran as root" if seen.as_root else ""


@case
async def secrets_in_the_environment(arena: Arena) -> str:
    ran = await arena.attack(
        "env; cat /proc/self/environ /proc/$PPID/environ /proc/1/environ 2>/dev/null"
    )
    return (
        "saw the runner's environment"
        if "TOOLGATE_HOSTILE" in ran.text
        else _leak(arena, ran.output)
    )


@case
async def files_of_another_session(arena: Arena) -> str:
    other = await arena.place.another(SessionKey("hostile", arena.token, "other"))
    await other.run(f"echo {arena.secret} > mine", python=False, seconds=2, env={})
    text = "cat ../*/mine /workspace/../*/mine /proc/[0-9]*/cwd/mine /proc/[0-9]*/root/workspace/mine 2>/dev/null"
    ran = await arena.attack(text)
    return _leak(arena, ran.output)


@case
async def bytes_that_are_no_text(arena: Arena) -> str:
    text = "import sys\nsys.stdout.buffer.write(b'\\0\\xff\\xfe' * 1000 + b'end')\n"
    ran = await arena.attack(text, python=True)
    return "" if ran.output.count(b"\xff") == 1000 and ran.output.endswith(b"end") else "lost bytes"


@case
async def terminal_escapes_and_typing(arena: Arena) -> str:
    text = (
        "import fcntl, os, termios\n"
        "print('\\x1b]0;owned\\x07\\x1b[2J')\n"
        "for name in ('/dev/tty', '/dev/console', '/dev/pts/0'):\n"
        "    try:\n"
        "        fd = os.open(name, os.O_RDWR)\n"
        "        fcntl.ioctl(fd, termios.TIOCSTI, b'x'); print('typed')\n"
        "    except OSError as no: print(no)\n"
    )
    ran = await arena.attack(text, python=True)
    return "typed at a terminal" if "typed" in ran.text else ""
