"""The first program of a start: join the cgroups, stage the mounts, become the sandbox's command.

It runs outside the sandbox and knows no secret. As root it stages each source in a mount namespace
of its own, so that the program's uid, which may not walk to the source, still gets exactly that.
Standard library only: each import is paid for at every start.
"""

# ruff: noqa: PTH102, PTH123 - pathlib would be paid for at every start

import ctypes
import json
import os
import stat
import sys

STAGE = "/tmp"  # noqa: S108 - an empty file system of our own is put there
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 0x4000, 0x40000
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE = -100, 0x1000, 0x8000
OPEN_TREE, MOVE_MOUNT, OPENAT2, MOUNT_SETATTR = 428, 429, 437, 442  # the same on every machine
OPEN_TREE_CLONE = 1
MOVE_MOUNT_F_EMPTY_PATH = 4
MOUNT_ATTR_IDMAP = 0x100000
RESOLVE_NO_SYMLINKS = 0x04

libc = ctypes.CDLL(None, use_errno=True)


def call(*arguments: object) -> int:
    """Make a system call; raises OSError."""
    return checked(libc.syscall(*arguments))


def checked(answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer


def mount(kind: bytes, where: bytes, flags: int, data: bytes) -> None:
    checked(libc.mount(kind, where, kind, flags, data))


def open_without_links(path: str) -> int:
    """A descriptor of what the path names; raises OSError where a symbolic link is in it."""
    how = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_CLOEXEC, 0, RESOLVE_NO_SYMLINKS)
    return call(OPENAT2, AT_FDCWD, path.encode(), ctypes.byref(how), ctypes.sizeof(how))


def user_namespace(owner: os.stat_result, uid: int) -> int:
    """A namespace in which the owner of a source is the program's uid."""
    ready, made = os.pipe()
    leave, left = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(left)
        os.write(made, b"+" if libc.unshare(CLONE_NEWUSER) == 0 else b"-")
        os.read(leave, 1)
        os._exit(0)
    try:
        os.close(leave)
        if os.read(ready, 1) != b"+":
            raise OSError("no user namespace")
        for kind, number in (("uid", owner.st_uid), ("gid", owner.st_gid)):
            with open(f"/proc/{child}/{kind}_map", "w") as mapping:
                mapping.write(f"{number} {uid} 1\n")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(left)
        os.close(ready)
        os.close(made)
        os.waitpid(child, 0)


def show_as_owned(tree: int, owner: os.stat_result, uid: int) -> None:
    """Let the program use a source as its owner does, where the file system can show it so."""
    try:
        namespace = user_namespace(owner, uid)
        attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_IDMAP, 0, 0, namespace)
        flags = AT_EMPTY_PATH | AT_RECURSIVE
        size = ctypes.sizeof(attributes)
        call(MOUNT_SETATTR, tree, b"", flags, ctypes.byref(attributes), size)
    except OSError:
        pass  # then the permissions for others count


def stage(sources: list[tuple[str, bool]], uid: int) -> None:
    """Put each source under STAGE by its number, in a mount namespace of this process's own."""
    checked(libc.unshare(CLONE_NEWNS))
    checked(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
    trees = []
    for path, writable in sources:
        found = open_without_links(path)
        flags = OPEN_TREE_CLONE | AT_EMPTY_PATH | AT_RECURSIVE | os.O_CLOEXEC
        tree = call(OPEN_TREE, found, b"", flags)
        owner = os.fstat(found)
        # Not where it could write as root: a file of root's with the setuid bit would be its way out.
        if owner.st_uid != uid and (owner.st_uid != 0 or not writable):
            show_as_owned(tree, owner, uid)
        trees.append((tree, stat.S_ISDIR(owner.st_mode)))
    mount(b"tmpfs", STAGE.encode(), MS_NOSUID | MS_NODEV, b"mode=0755")
    for number, (tree, is_folder) in enumerate(trees):
        where = f"{STAGE}/{number}"
        if is_folder:
            os.mkdir(where)
        else:
            os.close(os.open(where, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        call(MOVE_MOUNT, tree, b"", AT_FDCWD, where.encode(), MOVE_MOUNT_F_EMPTY_PATH)


def main() -> None:
    plan = json.loads(sys.argv[1])
    for entrance in plan["entrances"]:
        with open(entrance, "w") as group:
            group.write(str(os.getpid()))
    if plan["uid"]:
        stage(plan["sources"], plan["uid"])
    os.chdir("/")
    os.execv(plan["command"][0], plan["command"])  # noqa: S606 - the command is ours


if __name__ == "__main__":
    try:
        main()
    except OSError as failed:
        sys.stderr.write(f"toolgate: the sandbox cannot be set up: {failed}\n")
        sys.exit(125)
