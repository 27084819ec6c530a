"""Run a command under a seccomp profile in Docker's form: under_seccomp.py PROFILE COMMAND...

By libseccomp, as the container runtimes do.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

ACTIONS = {"SCMP_ACT_ALLOW": 0x7FFF0000, "SCMP_ACT_ERRNO": 0x00050000}
COMPARISONS = {"SCMP_CMP_EQ": 4}
UNKNOWN = -1


class Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def load(profile: Path) -> None:
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    told = json.loads(profile.read_text())
    default = ACTIONS[told["defaultAction"]] | told["defaultErrnoRet"]
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(default)))
    for rule in told["syscalls"]:
        action = ctypes.c_uint32(ACTIONS[rule["action"]] | rule.get("errnoRet", 0))
        where = [
            Comparison(one["index"], COMPARISONS[one["op"]], one["value"], 0)
            for one in rule.get("args", ())
        ]
        array = (Comparison * len(where))(*where)
        for name in rule["names"]:
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number == UNKNOWN:  # as runtimes do with a name that is newer than they
                continue
            failed = library.seccomp_rule_add_array(context, action, number, len(where), array)
            if failed:
                raise OSError(-failed, f"{name}: {os.strerror(-failed)}")
    if failed := library.seccomp_load(context):
        raise OSError(-failed, os.strerror(-failed))


if __name__ == "__main__":
    load(Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
