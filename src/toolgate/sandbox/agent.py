"""PID 1 inside a sandbox: runs one command at a time and reads and writes the workspace's files.

It runs under whatever Python the sandbox has (3.9 or newer), so it may use the standard library
only, and little of that: each import is paid for at every opening. It gets marshalled messages on
its standard input and answers in frames on its standard output; the host trusts nothing it says.
"""

# ruff: noqa: SIM105, PTH101, PTH110, PTH208 - contextlib and pathlib would be paid for at every opening

from __future__ import annotations

import ctypes
import errno
import marshal
import os
import select
import stat
import struct
import sys
import time

FRAME = struct.Struct("!BII")  # kind, request id, length
LENGTH = struct.Struct("!I")
END = struct.Struct("!iBQQ")  # exit code, flags, bytes of stdout, bytes of stderr

READY, OUT, ERR, TAIL_OUT, TAIL_ERR, ENDED, DONE, FAILED, NO_CWD = range(1, 10)
TIMED_OUT, FLOODED, KILLED, CROWDED = 1, 2, 4, 8

CHUNK = 65536
LARGEST_ARGUMENT = 100_000  # the kernel refuses one argument of 128 KiB and more
LOOK_SECONDS = (
    0.1  # between two looks at how many files there are: some 10,000 can be made meanwhile
)
SCRIPT_FD = 197
RUN_SCRIPT = "exec(compile(open('/proc/self/fd/197', 'rb').read(), '<string>', 'exec'))"
STATE_FD = 198
PRELUDE_FD = 199
LARGEST_STATE = 65536
STATIC_BASH = "/bin/bash-static"
PROXY_PORT = 3128
SIGINT = 2
SIGKILL = 9
SIGPIPE = 13
SIG_IGN = ctypes.c_void_p(1)
PR_SET_DUMPABLE = 4
IPC_RMID = 0
OPENAT2 = 437  # the same number everywhere
RESOLVE = 0x01 | 0x02 | 0x08  # NO_XDEV, NO_MAGICLINKS, BENEATH
NO_SYMLINKS = 0x04
HAS_LINK = "the path has a link in it, and the policy decides by path"
HAS_NAMES = "the file has another name too, and the policy decides by path"

# Report the shell's last directory and its exported variables, for the next shell to start with.
# What a shell that shows its steps (`set -x`) would show of this goes nowhere.
PRELUDE = rb"""unset BASH_ENV
__toolgate_keep() {
  set -- "$?"
  { builtin printf '%s\0' "$PWD"; /usr/bin/env -0; } > /proc/self/fd/198
  return "$1"
}
trap '{ __toolgate_keep; } 2>/dev/null' EXIT
exec 199<&-
"""
# For a command with traps of its own: at its exit ours goes first, and leaves `$?` as it was.
TRAPS = rb"""trap() {
  { local -; set +x; } 2>/dev/null
  builtin trap "$@" || return
  [[ $BASHPID == "$$" ]] || return 0
  eval "set -- $(builtin trap -p EXIT)"
  [[ ${3-} == *__toolgate_keep* ]] && return
  builtin trap -- "{ __toolgate_keep && :; } 2>/dev/null; ${3-}" EXIT
}
"""
# A shell that becomes another program has no exit.
EXECS = b"""trap '{ [[ $BASH_COMMAND != "exec "* ]] || __toolgate_keep || :; } 2>/dev/null' DEBUG
"""
# Exported variables with plain names are kept, functions are not. Nor are variables that redefine
# how programs load or how a shell reads; with POSIXLY_CORRECT a shell would report no state.
NOT_KEPT = ("_", "SHLVL", "SHELLOPTS", "ENV", "IFS", "PS4", "POSIXLY_CORRECT")
NOT_KEPT_PREFIXES = ("LD_", "BASH", "GLIBC_", "MALLOC_")
# In a clean command git starts no other program, whatever its configuration names: filters, drivers,
# monitors, signers, hooks. The kernel refuses it every new process and thread (dash has -p for -u).
# Only `git help` becomes another program without a new process, also behind an alias.
GIT = (
    'git() { case " $* " in *" --help "*|" help "*) echo "git: no help here" >&2; return 126;; esac; '
    "case ${1-} in "
    'diff|log|show) GIT_SUB=$1; shift; set -- "$GIT_SUB" --no-ext-diff --no-textconv "$@";; '
    "-*|status|branch|tag|remote|rev-parse|ls-files|describe|blame|'') ;; "
    '*) if command git config "alias.$1" >/dev/null 2>&1; '
    'then echo "git: $1 is an alias" >&2; return 126; fi;; esac; '
    '( { ulimit -u 0 || ulimit -p 0; } 2>/dev/null || exit 126; exec git "$@"; ); }; '
)
CHANGES_STATE = ("=", ". ", "cd", "pushd", "popd", "export", "declare", "unset", "source", "eval")
# What a shell would exit with, where the kernel does not execute a program.
UNSTARTABLE = {errno.ENOENT: 127, errno.ENOTDIR: 127, errno.EACCES: 126, errno.ENOEXEC: 126}

libc = ctypes.CDLL(None, use_errno=True)
counts = (ctypes.c_int * 64)()  # room for what the *_INFO commands answer
# Name, call, its *_INFO command, and where the answer says how many there are.
SHARED = (
    ("shm", libc.shmctl, 14, 0),
    ("sem", libc.semctl, 19, 7),
    ("msg", libc.msgctl, 12, 0),
)


class Gone(Exception):
    """The host has closed the channel."""


class Channel:
    """Messages from the host, frames to it."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd
        self.incoming = bytearray()
        self.outgoing = b""

    def send(self, kind: int, request: int, payload: bytes, more: bool = False) -> None:
        """With `more`, what is sent next goes out in one piece with this."""
        self.outgoing += FRAME.pack(kind, request, len(payload)) + payload
        if not more or len(self.outgoing) >= CHUNK:
            write_all(self.write_fd, self.outgoing)
            self.outgoing = b""

    def receive(self) -> dict[str, object]:
        while True:
            message = self.next()
            if message is None:
                self.fill()
            elif message["op"] != "kill":  # one that came too late
                return message

    def fill(self) -> None:
        data = os.read(self.read_fd, CHUNK)
        if not data:
            raise Gone
        self.incoming += data

    def next(self) -> dict[str, object] | None:
        if len(self.incoming) < LENGTH.size:
            return None
        end = LENGTH.size + LENGTH.unpack_from(self.incoming)[0]
        if len(self.incoming) < end:
            return None
        message: dict[str, object] = marshal.loads(bytes(self.incoming[LENGTH.size : end]))  # noqa: S302 - the host's own words
        del self.incoming[:end]
        return message


class Workspace:
    """The session's files. The kernel refuses every way out, at every step of a path."""

    def __init__(self, root: str, links: bool = True) -> None:
        """Without links, a path is what it is spelt, or refused."""
        self.root = root
        self.links = links
        self.resolve = RESOLVE if links else RESOLVE | NO_SYMLINKS

    def relative(self, path: str) -> str:
        if path == self.root or path.startswith(self.root + "/"):
            path = path[len(self.root) :].lstrip("/")
        if "\0" in path:
            raise ValueError("a path cannot hold NUL")
        return path or "."

    def open(self, path: str, flags: int, mode: int = 0) -> int:
        how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode, self.resolve)
        root = os.open(self.root, os.O_PATH | os.O_DIRECTORY)
        try:
            name = os.fsencode(self.relative(path))
            while True:
                fd: int = libc.syscall(OPENAT2, root, name, how, len(how))
                if fd >= 0:
                    return fd
                problem = ctypes.get_errno()
                if problem == errno.EXDEV:
                    raise OSError(problem, "the path leads out of the workspace")
                if problem == errno.ELOOP and not self.links:
                    raise OSError(problem, HAS_LINK)
                if problem != errno.EAGAIN:  # a rename somewhere made the kernel unsure
                    raise OSError(problem, os.strerror(problem))
        finally:
            os.close(root)

    def open_regular(self, path: str, flags: int, mode: int = 0) -> int:
        fd = self.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, mode)
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a regular file")
        if info.st_nlink > 1 and not self.links:
            os.close(fd)
            raise OSError(errno.EMLINK, HAS_NAMES)
        return fd

    def read(self, path: str, limit: int, offset: int) -> bytes:
        fd = self.open_regular(path, os.O_RDONLY)
        try:
            os.lseek(fd, offset, os.SEEK_SET)
            parts = []
            while limit > 0:
                part = os.read(fd, min(limit, CHUNK * 16))
                if not part:
                    break
                parts.append(part)
                limit -= len(part)
            return b"".join(parts)
        finally:
            os.close(fd)

    def version(self, path: str) -> bytes:
        """Another one whenever the file or what is in it is another."""
        fd = self.open_regular(path, os.O_RDONLY)
        try:
            info = os.fstat(fd)
            return b"%d-%d-%d" % (info.st_ino, info.st_size, info.st_ctime_ns)
        finally:
            os.close(fd)

    def write(self, path: str, content: bytes, append: bool) -> int:
        """All of it, or, where there is no room for that, nothing: the file stays as it was."""
        self.make_parents(path)
        fd = self.open_regular(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            before = os.fstat(fd).st_size
            start = before if append else 0
            if content:
                try:
                    os.posix_fallocate(fd, start, len(content))
                except OSError:
                    os.ftruncate(fd, before)
                    raise
            os.lseek(fd, start, os.SEEK_SET)
            write_all(fd, content)
            os.ftruncate(fd, start + len(content))
            return start + len(content)
        finally:
            os.close(fd)

    def make_parents(self, path: str) -> None:
        path = self.relative(path)
        if path.startswith("/"):  # it leads out, as will be said; below us it would be another
            return
        parts = [part for part in path.split("/") if part]
        for count in range(1, len(parts)):
            try:
                os.close(self.open("/".join(parts[:count]), os.O_PATH | os.O_DIRECTORY))
            except FileNotFoundError:
                parent = self.open("/".join(parts[: count - 1]), os.O_PATH | os.O_DIRECTORY)
                try:
                    os.mkdir(parts[count - 1], 0o755, dir_fd=parent)
                finally:
                    os.close(parent)

    def list(self, path: str, recursive: bool, limit: int) -> bytes:
        found: list[str] = []
        path = self.relative(path)
        queue = [path.rstrip("/") or path]
        while queue and len(found) < limit:
            folder = queue.pop(0)
            try:
                fd = self.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    for name in sorted(os.listdir(fd))[: limit - len(found)]:
                        where = name if folder == "." else folder + "/" + name
                        info = os.stat(name, dir_fd=fd, follow_symlinks=False)
                        kind = kind_of(info.st_mode)
                        found.append(f"{kind}\0{info.st_size}\0{where}\0")
                        if recursive and kind == "dir":
                            queue.append(where)
                finally:
                    os.close(fd)
            except OSError:  # below the one that was asked for, it hides what is in it, and no more
                if not found:
                    raise
        return "".join(found).encode("utf-8", "surrogateescape")


class Stream:
    """One of a command's outputs: its head is sent on as it comes, of the rest the tail is kept."""

    def __init__(self, fd: int, kind: int, keep: int) -> None:
        self.fd = fd
        self.kind = kind
        self.head_left = keep // 2
        self.tail_size = keep - keep // 2
        self.tail = bytearray()
        self.total = 0

    def take(self, data: bytes) -> bytes:
        """Count the data, keep what the tail needs, and return what should be sent now."""
        self.total += len(data)
        now = b""
        if self.head_left:
            now = data[: self.head_left]
            self.head_left -= len(now)
            data = data[len(now) :]
        if data:
            self.tail += data
            if len(self.tail) > 2 * self.tail_size:
                del self.tail[: -self.tail_size]
        return now


class Order:
    """One command as the host words it, and the files it was given."""

    def __init__(self, message: dict[str, object]) -> None:
        self.id = int(str(message["id"]))
        self.text = str(message["text"])
        argv = message.get("argv")
        self.argv = [str(word) for word in argv] if isinstance(argv, list) else []
        self.clean = bool(message.get("clean"))
        self.python = message["interpreter"] == "python"
        self.cwd = str(message["cwd"])
        self.links = bool(message.get("links", True))
        given = message["env"]
        self.env: dict[str, str] = given if isinstance(given, dict) else {}
        self.wall = float(str(message["wall"]))
        self.drain = float(str(message["drain"]))
        self.keep = int(str(message["keep"]))
        self.flood = int(str(message["flood"]))
        self.files = int(str(message["files"]))
        self.opened: list[int] = []
        self.state: int | None = None

    def hold(self, content: bytes) -> int:
        fd = os.memfd_create("toolgate")
        self.opened.append(fd)
        write_all(fd, content)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self.opened += ends
        return ends

    def close(self) -> None:
        for fd in self.opened:
            os.close(fd)


class Unstartable(Exception):
    """A program that cannot be executed, with the exit code that a shell gives for it."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class NoCwd(OSError):
    """The command's directory is outside the workspace, or cannot be entered."""


class Agent:
    def __init__(self, channel: Channel, workspace: Workspace) -> None:
        self.channel = channel
        self.workspace = workspace
        self.unlinked = Workspace(workspace.root, links=False)
        self.contained = os.getpid() == 1  # only then does kill(-1) stay inside
        self.cwd = workspace.root
        self.env: dict[str, str] = {}
        self.first_env: dict[str, str] = {}
        self.null = os.open("/dev/null", os.O_RDWR)
        self.shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
        # The same shell, without the dynamic linker: it starts in two thirds of the time.
        self.static = STATIC_BASH if os.path.exists(STATIC_BASH) else ""
        self.oom: int | None = None
        self.own_score = 0
        self.flags = 0

    def serve(self) -> None:
        self.channel.send(READY, 0, b"1")
        while True:
            message = self.channel.receive()
            request = int(str(message["id"]))
            try:
                if message["op"] == "exec":
                    self.execute(Order(message))
                else:
                    self.channel.send(DONE, request, self.answer(message))
            except (OSError, ValueError) as failed:
                reason = getattr(failed, "strerror", None) or str(failed)
                kind = NO_CWD if isinstance(failed, NoCwd) else FAILED
                self.channel.send(kind, request, reason.encode("utf-8", "replace"))

    def answer(self, message: dict[str, object]) -> bytes:
        operation, path = message["op"], str(message.get("path", ""))
        limit = int(str(message.get("limit", 0)))
        workspace = self.workspace if message.get("links", True) else self.unlinked
        if operation == "read":
            return workspace.read(path, limit, int(str(message["offset"])))
        if operation == "version":
            return workspace.version(path)
        if operation == "list":
            return workspace.list(path, bool(message["recursive"]), limit)
        if operation == "write":
            content = message["content"]
            assert isinstance(content, bytes)
            return b"%d" % workspace.write(path, content, bool(message["append"]))
        if operation == "begin":
            given = message["env"]
            assert isinstance(given, dict)
            self.env = self.first_env = given
            if path:
                forward(path)
            return b""
        raise ValueError("unknown operation")

    def execute(self, order: Order) -> None:
        try:
            out_read, out_write = order.pipe()
            err_read, err_write = order.pipe()
            try:
                started = self.start(order, out_write, err_write)
            except Unstartable as failed:
                message = f"{failed}\n".encode("utf-8", "surrogateescape")[: order.keep // 2]
                self.channel.send(ERR, order.id, message, more=True)
                self.channel.send(ENDED, order.id, END.pack(failed.code, 0, 0, len(message)))
                return
            for fd in (out_write, err_write):
                os.close(fd)
                order.opened.remove(fd)
            out, err = Stream(out_read, OUT, order.keep), Stream(err_read, ERR, order.keep)
            code = self.watch(started, [out, err], order)
            for stream, kind in ((out, TAIL_OUT), (err, TAIL_ERR)):
                if stream.tail:
                    tail = bytes(stream.tail[-stream.tail_size :])
                    self.channel.send(kind, order.id, tail, more=True)
            if order.state is not None and not self.flags:
                self.keep_state(order.state, order)
        finally:
            order.close()
        self.channel.send(ENDED, order.id, END.pack(code, self.flags, out.total, err.total))

    def start(self, order: Order, out: int, err: int) -> int:
        """Start the command; raises Unstartable where the kernel does not execute its program."""
        env = {**(self.first_env if order.clean else self.env), **order.env}
        actions = [
            (os.POSIX_SPAWN_DUP2, self.null, 0),
            (os.POSIX_SPAWN_DUP2, out, 1),
            (os.POSIX_SPAWN_DUP2, err, 2),
        ]
        if not order.argv:
            argv = self.by_interpreter(order, env, actions)
        elif order.clean and os.path.basename(order.argv[0]) == "git":  # noqa: PTH119
            argv = [self.shell, "-c", f'{GIT}"$@"', self.shell, "git", *order.argv[1:]]
        else:
            argv = order.argv
        self.enter(order.cwd, self.workspace if order.links else self.unlinked)
        program = find_program(argv[0], env)
        if program == "/bin/bash" and not (order.argv and argv is order.argv):
            program = self.static or program
        self.set_oom(min(self.own_score + 500, 1000))
        try:
            return os.posix_spawn(
                program, argv, env, file_actions=actions, setsid=True, setsigdef=[SIGINT, SIGPIPE]
            )
        except OSError as refused:
            if not order.argv or refused.errno not in UNSTARTABLE:
                raise
            code = UNSTARTABLE[refused.errno]
            raise Unstartable(code, f"{argv[0]}: {refused.strerror}") from None
        finally:
            self.set_oom(self.own_score)  # not to 0: nobody may go below what it was given

    def by_interpreter(
        self, order: Order, env: dict[str, str], actions: list[tuple[int, int, int]]
    ) -> list[str]:
        """The words that run a text; files that go with it are added to `actions`, state to `env`."""
        argv = [sys.executable or "/usr/bin/python3", "-B"] if order.python else [self.shell]
        text = order.text
        if order.clean and not order.python:  # whatever its text: the shell also runs g''it
            text = GIT + text
        if len(text) * 4 < LARGEST_ARGUMENT:
            argv += ["-c", text] if order.python else ["-c", "--", text]
        else:
            script = order.hold(text.encode("utf-8", "surrogateescape"))
            actions.append((os.POSIX_SPAWN_DUP2, script, SCRIPT_FD))
            # As `-c` has it, and not as a file: a file's modules are looked for beside it.
            argv += ["-c", RUN_SCRIPT] if order.python else [f"/proc/self/fd/{SCRIPT_FD}"]
        if argv[0] == "/bin/bash" and any(word in order.text for word in CHANGES_STATE):
            env["BASH_ENV"] = f"/proc/self/fd/{PRELUDE_FD}"
            order.state = order.hold(b"")
            actions.append((os.POSIX_SPAWN_DUP2, order.state, STATE_FD))
            prelude = order.hold(prelude_for(order.text))
            actions.append((os.POSIX_SPAWN_DUP2, prelude, PRELUDE_FD))
        return argv

    def enter(self, cwd: str, workspace: Workspace) -> None:
        if cwd:
            try:
                fd = workspace.open(cwd, os.O_RDONLY | os.O_DIRECTORY)
            except OSError as refused:
                raise NoCwd(f"cwd: {refused.strerror}") from None
            try:
                os.fchdir(fd)
            except OSError as refused:
                raise NoCwd(f"cwd: {refused.strerror}") from None
            finally:
                os.close(fd)
            return
        try:
            os.chdir(self.cwd)
        except OSError as lost:  # the last command left a directory that is gone or closed by now
            self.cwd = self.workspace.root
            if isinstance(lost, PermissionError):  # of the workspace: no command could open it
                os.chmod(self.cwd, 0o700)
            os.chdir(self.cwd)

    def watch(self, started: int, streams: list[Stream], order: Order) -> int:
        """Pass the output on until the command ends or must end; then end all that it left."""
        self.flags = 0
        status = None
        now = time.monotonic()
        deadline, look = now + order.wall, now + LOOK_SECONDS
        most = max(order.files, self.count_files())  # who has too many may still remove some
        pidfd = os.pidfd_open(started)
        waiting = select.poll()
        waiting.register(self.channel.read_fd, select.POLLIN)
        waiting.register(pidfd, select.POLLIN)
        flowing = {stream.fd: stream for stream in streams}
        for fd in flowing:
            waiting.register(fd, select.POLLIN)
        try:
            self.heed_kill(order)  # it may have come in one piece with the command
            while status is None and not self.flags:
                now = time.monotonic()
                if now >= deadline:
                    self.flags = TIMED_OUT
                    break
                if now >= look:
                    look = now + LOOK_SECONDS
                    if self.count_files() > most:
                        self.flags = CROWDED
                        break
                ready = [fd for fd, _ in waiting.poll(min(deadline - now, LOOK_SECONDS) * 1000)]
                for fd in ready:
                    if fd in flowing:
                        if not self.pass_on(flowing[fd], order, more=pidfd in ready):
                            waiting.unregister(fd)
                            del flowing[fd]
                    elif fd == self.channel.read_fd:
                        self.channel.fill()
                        self.heed_kill(order)
                status = self.reap(started)
        except (Gone, OSError):  # a channel that ends with something unread in it is reset
            self.end_all(started, status)
            raise
        finally:
            os.close(pidfd)
        status = self.end_all(started, status)
        for stream in flowing.values():
            self.drain(stream, order)
        return 128 - status if status < 0 else status

    def count_files(self) -> int:
        """The largest number of files in one of our file systems; an empty file costs memory, no quota."""
        most = 0
        if self.contained:  # otherwise they are the machine's
            for place in (self.workspace.root, "/tmp", "/dev/shm"):  # noqa: S108 - inside
                try:
                    held = os.statvfs(place)
                except OSError:
                    continue
                most = max(most, held.f_files - held.f_ffree)
        return most

    def pass_on(self, stream: Stream, order: Order, more: bool) -> bool:
        data = os.read(stream.fd, CHUNK)
        now = stream.take(data)
        if now:
            self.channel.send(stream.kind, order.id, now, more)
        if stream.total > order.flood:
            self.flags |= FLOODED
        return bool(data)

    def drain(self, stream: Stream, order: Order) -> None:
        """Read the rest of the pipe; stop after a time if another process keeps it open."""
        waiting = select.poll()
        waiting.register(stream.fd, select.POLLIN)
        deadline = time.monotonic() + order.drain
        patience = 0 if self.contained else 100
        while time.monotonic() < deadline and waiting.poll(patience):
            if not self.pass_on(stream, order, more=True):
                return

    def heed_kill(self, order: Order) -> None:
        while True:
            message = self.channel.next()
            if message is None:
                return
            if message["op"] == "kill" and message["id"] == order.id:
                self.flags |= KILLED

    def reap(self, started: int) -> int | None:
        """Take in every dead child; the status of the one that was started, once it is there."""
        status = None
        while True:
            try:
                pid, raw = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return status
            if pid == 0:
                return status
            if pid == started:
                status = os.waitstatus_to_exitcode(raw)

    def end_all(self, started: int, status: int | None) -> int:
        """Kill whatever runs, and take in whatever died. PID 1's kill(-1) misses nobody."""
        if not self.contained:
            try:
                os.killpg(started, SIGKILL)
            except ProcessLookupError:
                pass
            if status is None:
                status = os.waitstatus_to_exitcode(os.waitpid(started, 0)[1])
            return status
        while True:
            try:
                os.kill(-1, SIGKILL)
                pid, raw = os.waitpid(-1, 0)
            except (ProcessLookupError, ChildProcessError):
                remove_shared()
                return -SIGKILL if status is None else status
            if pid == started:
                status = os.waitstatus_to_exitcode(raw)

    def set_oom(self, score: int) -> None:
        """Make the kernel kill the command before the agent when memory runs out."""
        if self.oom is not None:
            try:
                os.pwrite(self.oom, b"%d" % score, 0)
            except OSError:
                pass

    def keep_state(self, fd: int, order: Order) -> None:
        told = os.pread(fd, LARGEST_STATE + 1, 0)
        cwd, *pairs = told.decode("utf-8", "surrogateescape").split("\0")
        if cwd.startswith("/") and not order.cwd:
            self.cwd = cwd
        if len(told) > LARGEST_STATE or order.clean:
            return
        pairs = [pair for pair in pairs if is_kept(pair.partition("=")[0])]
        env = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        for name, value in order.env.items():  # what was said for this command alone
            if env.get(name) == value:
                del env[name]
                if name in self.env:
                    env[name] = self.env[name]
        if env:
            self.env = env


def is_kept(name: str) -> bool:
    """True if the next command gets an exported variable; a function's name is no identifier."""
    is_plain = name.isascii() and name.isidentifier()
    return is_plain and name not in NOT_KEPT and not name.startswith(NOT_KEPT_PREFIXES)


def find_program(name: str, env: dict[str, str]) -> str:
    """The file that a shell would execute by this name; raises Unstartable."""
    if "/" in name:
        return name
    for folder in env.get("PATH", "").split(":"):
        path = os.path.join(folder, name)  # noqa: PTH118
        if os.path.isfile(path) and os.access(path, os.X_OK):  # noqa: PTH113
            return path
    raise Unstartable(127, f"{name}: command not found")


def forward(path: str) -> None:
    """Listen on the sandbox's own loopback and pass each connection to the proxy's socket."""
    import _thread  # noqa: PLC0415 - only a session with network pays for these
    import socket  # noqa: PLC0415

    listener = socket.create_server(("127.0.0.1", PROXY_PORT))

    def copy(source: socket.socket, sink: socket.socket) -> None:
        try:
            while True:
                data = source.recv(CHUNK)
                if not data:
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def connect(client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as proxy:
            try:
                proxy.connect(path)
                _thread.start_new_thread(copy, (client, proxy))
            except (OSError, RuntimeError):
                return
            copy(proxy, client)

    def accept() -> None:
        while True:
            try:
                _thread.start_new_thread(connect, (listener.accept()[0],))
            except (OSError, RuntimeError):
                time.sleep(0.05)

    _thread.start_new_thread(accept, ())


def remove_shared() -> None:
    """Shared memory, semaphores and queues outlive their makers, and hold the session's memory."""
    for kind, control, info, where in SHARED:
        first = (0,) if kind == "sem" else ()  # which of a set; the others have none
        control(0, *first, info, counts)
        for number in shared(kind) if counts[where] else ():
            control(number, *first, IPC_RMID, None)


def shared(kind: str) -> list[int]:
    listed = b""
    try:
        fd = os.open(f"/proc/sysvipc/{kind}", os.O_RDONLY)
    except OSError:
        return []
    try:
        while part := os.read(fd, CHUNK):
            listed += part
    finally:
        os.close(fd)
    return [int(line.split()[1]) for line in listed.splitlines()[1:]]


def prelude_for(text: str) -> bytes:
    if "RETURN" in text or "DEBUG" in text:  # such traps of its own would fire at ours
        return PRELUDE
    execs = EXECS if "exec" in text.replace(";", " ").split() else b""
    return PRELUDE + execs + (TRAPS if "trap" in text else b"")


def write_all(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def kind_of(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "dir"
    return "link" if stat.S_ISLNK(mode) else "other"


def main() -> None:
    channel = Channel(os.dup(0), os.dup(1))
    agent = Agent(channel, Workspace(sys.argv[1]))
    if agent.contained:
        try:
            agent.oom = os.open("/proc/self/oom_score_adj", os.O_RDWR)
            agent.own_score = int(os.pread(agent.oom, 16, 0))
        except OSError:
            pass
        # Python has a handler for this signal only; the kernel keeps the others from PID 1.
        libc.signal(SIGINT, SIG_IGN)
        # Without this a command could write the agent's memory through /proc/1/mem.
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    for standard in (0, 1, 2):
        os.dup2(agent.null, standard, inheritable=False)
    try:
        agent.serve()
    except (Gone, BrokenPipeError, ConnectionResetError):
        os._exit(0)


if __name__ == "__main__":
    main()
