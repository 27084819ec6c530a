"""The system-call filter, run on a machine of our own: the kernel's is tried in the battery."""

import struct
from typing import Final

import pytest

from toolgate.sandbox import seccomp

MACHINES: Final = ("x86_64", "aarch64")
READ: Final = {"x86_64": 0, "aarch64": 63}


def run(machine: str, number: int, *args: int, arch: int | None = None) -> int:
    """What the filter returns for a call."""
    expected = seccomp.MACHINES[machine].audit_arch
    padded = [*args, *[0] * (6 - len(args))]
    data = struct.pack("<iIQ6Q", number, expected if arch is None else arch, 0, *padded)
    code = seccomp.assemble(machine)
    program = list(struct.iter_unpack("<HBBI", code))
    register, at = 0, 0
    while True:
        operation, true, false, operand = program[at]
        at += 1
        match operation:
            case seccomp.LOAD:
                register = struct.unpack_from("<I", data, operand)[0]
            case seccomp.AND:
                register &= operand
            case seccomp.JUMP_EQUAL:
                at += true if register == operand else false
            case seccomp.JUMP_GREATER:
                at += true if register > operand else false
            case seccomp.JUMP_SET:
                at += true if register & operand else false
            case seccomp.RETURN:
                return int(operand)
            case other:
                raise AssertionError(f"unknown instruction {other:#x}")


def refused(errno: int) -> int:
    return seccomp.ERRNO | errno


@pytest.mark.parametrize("machine", MACHINES)
def test_ordinary_calls_pass(machine: str) -> None:
    assert run(machine, READ[machine]) == seccomp.ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_every_listed_call_is_refused(machine: str) -> None:
    column = seccomp.MACHINES[machine].column
    for name, numbers in seccomp.REFUSED.items():
        number = numbers[column]
        if number is not None:
            assert run(machine, number) == refused(seccomp.EPERM), name


@pytest.mark.parametrize("machine", MACHINES)
def test_a_call_of_another_machine_kills(machine: str) -> None:
    assert run(machine, READ[machine], arch=0x40000003) == seccomp.KILL_PROCESS


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_newer_than_the_table_do_not_exist(machine: str) -> None:
    for number in (seccomp.NEWEST_KNOWN + 1, 467, 1000, 0x40000000, 0x40000001):
        assert run(machine, number) == refused(seccomp.ENOSYS)
    # Where the numbers of all machines begin, and what newer kernels fill the gap before them with.
    assert run(machine, 424) == seccomp.ALLOW
    for number in (335, 336, 400, 423):
        assert run(machine, number) == refused(seccomp.ENOSYS)


def test_the_last_call_before_the_gap_is_there() -> None:
    assert run("x86_64", 334) == seccomp.ALLOW  # rseq
    assert run("aarch64", 293) == seccomp.ALLOW  # rseq
    assert run("aarch64", 294) == refused(seccomp.EPERM)  # kexec_file_load


@pytest.mark.parametrize("machine", MACHINES)
def test_processes_may_be_made_but_no_namespaces(machine: str) -> None:
    clone = seccomp.MACHINES[machine].clone
    assert run(machine, clone, 0x1200011) == seccomp.ALLOW
    assert run(machine, clone, 0x3D0F00) == seccomp.ALLOW  # a thread
    for flag in (
        0x20000,
        0x2000000,
        0x4000000,
        0x8000000,
        0x10000000,
        0x20000000,
        0x40000000,
        0x80,
    ):
        assert run(machine, clone, flag | 17) == refused(seccomp.EPERM)
    assert run(machine, seccomp.MACHINES[machine].clone3) == refused(seccomp.ENOSYS)


@pytest.mark.parametrize("machine", MACHINES)
def test_sockets_are_local_or_of_the_internet_and_never_raw(machine: str) -> None:
    call = seccomp.MACHINES[machine].socket
    stream, datagram, raw, packet, closed_on_exec = 1, 2, 3, 10, 0x80000
    for family in (seccomp.AF_UNIX, seccomp.AF_INET, seccomp.AF_INET6):
        for kind in (stream, datagram, stream | closed_on_exec):
            assert run(machine, call, family, kind, 0) == seccomp.ALLOW
    for family in (seccomp.AF_INET, seccomp.AF_INET6):
        for kind in (raw, packet):
            assert run(machine, call, family, kind | closed_on_exec, 0) == refused(seccomp.EPERM)
    for family in (0, 3, 17, 21, 29, 38, 40, 44):
        assert run(machine, call, family, stream, 0) == refused(seccomp.EAFNOSUPPORT)
    assert run(machine, call, seccomp.AF_NETLINK, raw, 0) == seccomp.ALLOW
    assert run(machine, call, seccomp.AF_NETLINK, raw, 12) == refused(seccomp.EAFNOSUPPORT)


@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_is_typed_into_a_terminal_and_no_personality_is_changed(machine: str) -> None:
    numbers = seccomp.MACHINES[machine]
    assert run(machine, numbers.ioctl, 0, 0x5401) == seccomp.ALLOW
    for operation in seccomp.TTY_INJECTION:
        assert run(machine, numbers.ioctl, 0, operation) == refused(seccomp.EPERM)
        assert run(machine, numbers.ioctl, 0, operation | 1 << 32) == refused(seccomp.EPERM)
    assert run(machine, numbers.personality, 0) == seccomp.ALLOW
    assert run(machine, numbers.personality, 0xFFFFFFFF) == seccomp.ALLOW
    assert run(machine, numbers.personality, 0x0400000) == refused(seccomp.EPERM)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_program_fits_the_kernel_s_limit(machine: str) -> None:
    assert len(seccomp.assemble(machine)) // 8 <= 4096
