"""The sandbox's system-call filter, assembled here: no library, x86_64 and aarch64.

What foreign code has no use for, and what the kernel's past holes were reached through, is refused.
A call that is newer than this table is answered as if the kernel did not have it.
"""

import struct
from dataclasses import dataclass
from typing import Final

EPERM: Final = 1
ENOSYS: Final = 38
EAFNOSUPPORT: Final = 97

ALLOW: Final = 0x7FFF0000
ERRNO: Final = 0x00050000
KILL_PROCESS: Final = 0x80000000

LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
AND: Final = 0x54
JUMP_EQUAL: Final = 0x15
JUMP_GREATER: Final = 0x25
JUMP_SET: Final = 0x45
RETURN: Final = 0x06

OFFSET_NUMBER: Final = 0
OFFSET_ARCH: Final = 4
OFFSET_ARGS: Final = 16  # each 8 bytes, the low half first on both machines

# name: (x86_64, aarch64); None where the machine never had it
REFUSED: Final[dict[str, tuple[int | None, int | None]]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "mount_setattr": (442, 442),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, None),
    "query_module": (178, None),
    "get_kernel_syms": (177, None),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "lookup_dcookie": (212, 18),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "memfd_secret": (447, 447),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "set_mempolicy_home_node": (450, 450),
    "_sysctl": (156, None),
    "sysfs": (139, None),
    "ustat": (136, None),
    "uselib": (134, None),
    "vserver": (236, None),
}

NEWEST_KNOWN: Final = 456  # futex_requeue; later ones were not looked at
FIRST_SHARED: Final = 424  # from here on a number means the same on every machine
NEW_NAMESPACES: Final = 0x7E020080  # every CLONE_NEW* flag
TTY_INJECTION: Final = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
NETLINK_ROUTE: Final = 0
RAW_TYPES: Final = (3, 10)  # SOCK_RAW, and SOCK_PACKET, by which AF_INET becomes AF_PACKET
SOCK_TYPE_MASK: Final = 0xF


@dataclass(frozen=True, slots=True)
class Machine:
    audit_arch: int
    column: int
    last_own: int  # up to the shared ones was nothing; newer kernels have uprobes there
    clone: int
    clone3: int
    ioctl: int
    socket: int
    personality: int


MACHINES: Final = {
    "x86_64": Machine(
        0xC000003E, 0, 334, clone=56, clone3=435, ioctl=16, socket=41, personality=135
    ),
    "aarch64": Machine(
        0xC00000B7, 1, 294, clone=220, clone3=435, ioctl=29, socket=198, personality=92
    ),
}

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


def assemble(machine: str) -> bytes:
    """The filter as the kernel reads it: an array of struct sock_filter."""
    return b"".join(struct.pack("<HBBI", *each) for each in program(MACHINES[machine]))


def program(machine: Machine) -> list[Instruction]:
    code: list[Instruction] = [
        (LOAD, 0, 0, OFFSET_ARCH),
        (JUMP_EQUAL, 1, 0, machine.audit_arch),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, OFFSET_NUMBER),
        # Above the table, in its gap, and the x32 calls with their bit 30: not here.
        (JUMP_GREATER, 2, 0, NEWEST_KNOWN),
        (JUMP_GREATER, 2, 0, FIRST_SHARED - 1),
        (JUMP_GREATER, 0, 1, machine.last_own),
        _errno(ENOSYS),
    ]
    for numbers in REFUSED.values():
        number = numbers[machine.column]
        if number is not None:
            code += [(JUMP_EQUAL, 0, 1, number), _errno(EPERM)]
    # glibc falls back to clone, whose flags a filter can see.
    code += [(JUMP_EQUAL, 0, 1, machine.clone3), _errno(ENOSYS)]
    code += _only(machine.clone, [_argument(0), (JUMP_SET, 0, 1, NEW_NAMESPACES), _errno(EPERM)])
    code += _only(
        machine.ioctl,
        [
            _argument(1),
            *(step for op in TTY_INJECTION for step in ((JUMP_EQUAL, 0, 1, op), _errno(EPERM))),
        ],
    )
    code += _only(
        machine.personality,
        [
            _argument(0),
            (JUMP_EQUAL, 2, 0, 0),
            (JUMP_EQUAL, 1, 0, 0xFFFFFFFF),  # asks which one it is
            _errno(EPERM),
        ],
    )
    code += _only(machine.socket, _sockets())
    code.append((RETURN, 0, 0, ALLOW))
    return code


def _sockets() -> list[Instruction]:
    """Unix, IPv4 and IPv6 but no raw ones; of netlink what getifaddrs needs; nothing else."""
    return [
        _argument(0),
        (JUMP_EQUAL, 0, 1, AF_UNIX),
        (RETURN, 0, 0, ALLOW),
        (JUMP_EQUAL, 0, 4, AF_NETLINK),
        _argument(2),
        (JUMP_EQUAL, 0, 1, NETLINK_ROUTE),
        (RETURN, 0, 0, ALLOW),
        _errno(EAFNOSUPPORT),
        (JUMP_EQUAL, 2, 0, AF_INET),
        (JUMP_EQUAL, 1, 0, AF_INET6),
        _errno(EAFNOSUPPORT),
        _argument(1),
        (AND, 0, 0, SOCK_TYPE_MASK),
        *(step for kind in RAW_TYPES for step in ((JUMP_EQUAL, 0, 1, kind), _errno(EPERM))),
    ]


def _argument(index: int) -> Instruction:
    return (LOAD, 0, 0, OFFSET_ARGS + 8 * index)


def _errno(number: int) -> Instruction:
    return (RETURN, 0, 0, ERRNO | number)


def _only(number: int, block: list[Instruction]) -> list[Instruction]:
    """Run the block for this call alone, and allow what it lets through."""
    return [(JUMP_EQUAL, 0, len(block) + 1, number), *block, (RETURN, 0, 0, ALLOW)]
