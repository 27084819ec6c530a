#!/bin/sh
# Installs what the tests and the full product need from the system. Does nothing where all is there.
set -eu
missing=
command -v bwrap >/dev/null 2>&1 || missing="$missing bubblewrap"
command -v bash-static >/dev/null 2>&1 || missing="$missing bash-static"
command -v dockerd >/dev/null 2>&1 || missing="$missing docker.io"
command -v docker-compose >/dev/null 2>&1 || missing="$missing docker-compose"
command -v strace >/dev/null 2>&1 || missing="$missing strace"
command -v curl >/dev/null 2>&1 || missing="$missing curl"
command -v busybox >/dev/null 2>&1 || missing="$missing busybox-static"
command -v chromium-headless-shell >/dev/null 2>&1 || missing="$missing chromium-headless-shell"
[ -d /usr/lib/postgresql ] || missing="$missing postgresql"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "toolgate: these are missing, and the tests that need them will be skipped:$missing" >&2
  echo "toolgate: as root on Debian: apt-get install --no-install-recommends$missing" >&2
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
# The tests start servers of their own: make no cluster, and so start no service.
if [ ! -e /etc/postgresql-common/createcluster.conf ]; then
  mkdir -p /etc/postgresql-common
  echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
fi
apt-get update -qq
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $missing >/dev/null
