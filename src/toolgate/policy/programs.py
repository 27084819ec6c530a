"""Programs that run others: facts for `toolgate policy check` and for approvals of scripts.

Data only. The facts are from the programs' manuals and from GTFOBins
(https://gtfobins.github.io, the functions shell, command and sudo), in our own words.
"""

from collections.abc import Mapping
from typing import Final

from toolgate.policy.shell import SHELLS

# Interpreters and build tools: a file of the workspace says what runs.
_RUN_FILES: Final[Mapping[str, str]] = {
    "the script that its words name": " ".join(sorted(SHELLS))
    + " perl python python2 python3 pypy3 ruby node nodejs deno bun php lua luajit tclsh expect guile "
    "rscript julia groovy scala jshell osascript pwsh irb octave ghci",
    "the code that its words name": "awk gawk mawk nawk sed gsed ed ex bc dc jjs m4 gdb lldb psql mysql "
    "sqlite3 mongosh redis-cli",
    "what a file of the directory says": "make gmake cmake ninja meson scons rake just task npm npx yarn "
    "pnpm pip pip3 pipx poetry uv uvx tox nox pytest ansible ansible-playbook cargo go gradle mvn ant "
    "bazel dotnet composer bundle bundler gem mix rebar3 stack cabal docker docker-compose podman kubectl "
    "helm terraform vagrant packer pre-commit procmail",
}
# Programs with an option, a command or a variable that starts another program.
_START_OTHERS: Final[Mapping[str, str]] = {
    "a program that an option names": "tar bsdtar cpio zip unzip rsync scp sftp ssh sort split man less more "
    "most rg ag ack fd tcpdump tshark nmap socat nc ncat curl wget openssl git hg svn bzr find xargs parallel "
    "entr watch dpkg apt apt-get rpm yum dnf snap flatpak pkg pacman apk systemctl journalctl crontab at batch "
    "logrotate run-parts start-stop-daemon capsh chroot nsenter unshare setarch strace ltrace perf valgrind "
    "ld.so cpulimit stdbuf timeout time nice nohup env command install ctags ffmpeg convert pdftex latex",
    "a shell, from inside it": "vi vim nvim view vimdiff emacs nano pico joe ftp telnet screen tmux script "
    "rlwrap dialog whiptail mutt irssi gimp top htop",
}

RUNS_FILES: Final[Mapping[str, str]] = {
    name: f"runs {what}" for what, names in _RUN_FILES.items() for name in names.split()
}
RUNS_OTHERS: Final[Mapping[str, str]] = {
    **{
        name: f"can start {what}" for what, names in _START_OTHERS.items() for name in names.split()
    },
    **RUNS_FILES,
}
