#!/usr/bin/env bash
# Uses the wheel in target/wheels as a stranger would: in a fresh environment of a Python of this system, without
# Rust, a compiler, memlock's sources or other packages. And looks whether the source distribution is complete.
# Wants: python3 with venv, memcached, cargo. The last line is "wheel: ...".
set -euo pipefail
cd "$(dirname "$0")/.."
[ "${1-}" = --with-server ] || exec tests/c/run --with-server tests/wheel.sh --with-server
work=$(mktemp -d)
readonly work server=$MEMLOCK_URL
trap 'rm -rf "$work"' EXIT

wheel=$(ls target/wheels/*manylinux*.whl)
sdist=$(ls target/wheels/*.tar.gz)
wheel=$PWD/$wheel sdist=$PWD/$sdist root=$PWD
/usr/bin/python3 -m venv "$work/venv"
mkdir "$work/empty"

# The environment of a container in which there is nothing but Python.
bare() { env -i PATH="$work/empty" HOME="$work" TMPDIR="$work" MEMLOCK_URL="${url-}" "$@"; }

echo "installing $(basename "$wheel")"
bare "$work/venv/bin/python" -m pip install -q --disable-pip-version-check --no-index "$wheel"
# The files that the package shows to tools and people.
cd "$work"
bare venv/bin/python - <<'E2'
import importlib.metadata as metadata
import importlib.resources as resources

about = metadata.metadata("memlock")
assert about["Requires-Python"] == ">=3.9", about["Requires-Python"]
assert about["License-Expression"] == "MIT OR Apache-2.0", about["License-Expression"]
assert "with client.mutex(" in about.get_payload(), "no README"
names = {path.name for path in metadata.files("memlock")}
assert {"LICENSE-MIT", "LICENSE-APACHE", "py.typed"} <= names, names
assert '"""Acquire the lock' in resources.files("memlock").joinpath("_memlock.pyi").read_text()
E2

for url in "$server" "sqlite://$work/locks.db" memory://wheel; do
  bare venv/bin/python - <<'E2'
import asyncio

import memlock
import memlock.aio

with memlock.connect() as client:
    with client.mutex("x", lease=5) as mutex:
        assert mutex.check()
        assert not client.mutex("x", lease=5).acquire(blocking=False)
        first = mutex.fence
    with client.mutex("x", lease=5) as mutex:
        assert mutex.fence > first


async def main() -> None:
    async with memlock.aio.connect() as client, client.mutex("x", lease=5) as mutex:
        assert mutex.fence > first


asyncio.run(main())
E2
  echo "a lock on ${url%%:*}"
done

url=$server
# The interpreter ends the threads by unwinding them, through the module.
bare venv/bin/python - <<'E2'
import threading
import time

import memlock

client = memlock.connect()


def go_on() -> None:
    while True:
        client.mutex("x", lease=5).locked()


for _ in range(8):
    threading.Thread(target=go_on, daemon=True).start()
time.sleep(0.3)
E2
echo "a program that ends while its threads go on"

mkdir sdist
tar -xzf "$sdist" -C sdist --strip-components 1
for file in pyproject.toml Cargo.lock LICENSE-MIT README.md memlock-core/src/store/postgresql/schema.sql; do
  find sdist -path "*$file" | grep -q . || { echo "The source distribution has no $file."; exit 1; }
done
(cd sdist && cargo metadata --format-version 1 >"$work/metadata")
cd "$root"
echo "wheel: it installs and locks without Rust, a compiler or a network; the source distribution is complete"
