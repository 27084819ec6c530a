"""A program: tries the sandbox where some system calls are refused, as a service manager does it.

Each argument is the number of a call and what it answers, `170:1`.
"""

import asyncio
import ctypes
import struct
import sys

from toolgate.sandbox import seccomp
from toolgate.sandbox.bwrap import BwrapSandbox
from toolgate.sandbox.sandbox import Command, SessionKey, SessionSpec

PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2


def refuse(calls: dict[int, int]) -> None:
    """For this process and whatever it starts."""
    code = [(seccomp.LOAD, 0, 0, seccomp.OFFSET_NUMBER)]
    for number, errno in calls.items():
        code += [(seccomp.JUMP_EQUAL, 0, 1, number), (seccomp.RETURN, 0, 0, seccomp.ERRNO | errno)]
    code.append((seccomp.RETURN, 0, 0, seccomp.ALLOW))
    steps = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in code))
    libc = ctypes.CDLL(None, use_errno=True)
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(steps))
    for asked in ((PR_SET_NO_NEW_PRIVS, 1, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program)):
        if libc.prctl(*asked, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "the filter was not taken")


async def use() -> None:
    sandbox = BwrapSandbox()
    try:
        await sandbox.check()
        session = await sandbox.open(SessionSpec(SessionKey("t_1", "w_1", "s_1")))
        await session.files.write("note", b"written")
        done = await session.exec(Command("cat note"))
        sys.stdout.write(done.stdout.decode())
    finally:
        await sandbox.close()


if __name__ == "__main__":
    pairs = (argument.split(":") for argument in sys.argv[1:])
    refuse({int(number): int(errno) for number, errno in pairs})
    asyncio.run(use())
