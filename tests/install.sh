#!/usr/bin/env bash
# Installs memlock into a scratch directory and uses it as a stranger would: by pkg-config, statically, by
# CMake and from C++; and looks at what the library exports and at what DESTDIR leaves where.
# Wants: cc, c++, make, cargo, cmake, pkg-config, binutils, memcached. The last line is "install: ...".
set -u

cd "$(dirname "$0")/.." || exit 1
[[ ${1-} == --with-server ]] || exec tests/c/run --with-server tests/install.sh --with-server
: "${CC:=cc}"
readonly programs=tests/cmake
readonly bare='mutex_lock mutex_lock_nonblock mutex_unlock
    distinct_list_insert distinct_list_set_up distinct_list_tear_down
    semaphore_set_up semaphore_acquire semaphore_acquire_nonblock semaphore_release semaphore_tear_down'
work=$(mktemp -d) || exit 1
readonly work prefix=$work/prefix
# shellcheck disable=SC2064 # the folder of now
trap "rm -rf '$work'" EXIT
trap 'exit 1' INT TERM
. tests/must.sh
# A library path from outside would hide that the installed one is not found.
unset LD_LIBRARY_PATH CFLAGS LDFLAGS PKG_CONFIG_SYSROOT_DIR

main() {
    must "make install works" make -s install "PREFIX=$prefix" DESTDIR=
    export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
    must "every file is there" all_files "$prefix"
    must "the links lead to the library" links
    must "the library and pkg-config know the version" versions
    must "the command locks" command_locks
    must "the manual and the completions can be read" pages
    must "a C program builds with pkg-config and locks" c_program
    must "a wholly static program locks" static_program
    must "the library can be linked statically, also beside another SQLite" static_library
    must "CMake finds both targets" cmake_project
    must "CMake refuses another major version" cmake_refuses
    must "the soname is that of the ABI" soname
    must "nothing but memlock's functions is exported" exports_nothing_else
    must "every function of the header is exported" exports_all
    must "the static library defines what the shared one exports" static_exports_the_same
    must "DESTDIR stages the files" make -s install PREFIX=/usr "DESTDIR=$work/stage"
    must "every file is staged" all_files "$work/stage/usr"
    must "nothing that is staged knows of the stage" staged_for_usr
    must "the crates can be packaged, each after those that it needs" crates
    must "the source of the Python module is complete" python_source
    echo "install: $passed passed, $failed failed"
    ((failed == 0))
}

all_files() {
    local file missing=0
    for file in include/memlock.h include/memlock.hpp lib/libmemlock.a lib/libmemlock.so lib/libmemlock.so.0 \
        "lib/libmemlock.so.$version" lib/pkgconfig/memlock.pc lib/cmake/memlock/memlock-config.cmake \
        lib/cmake/memlock/memlock-config-version.cmake bin/memlock share/man/man1/memlock.1 share/man/man1/memlock-run.1 \
        share/bash-completion/completions/memlock share/zsh/site-functions/_memlock \
        share/fish/vendor_completions.d/memlock.fish; do
        # Readable by everybody, whoever installed it.
        [[ $(stat -L -c %A "$1/$file") == ?r??r??r* ]] || { echo "no $1/$file"; missing=1; }
    done
    return $missing
}

links() {
    # Without a directory in them, or a staged tree could not be moved.
    [[ $(readlink "$prefix/lib/libmemlock.so.0") == "libmemlock.so.$version" ]] &&
        [[ $(readlink "$prefix/lib/libmemlock.so") == libmemlock.so?(.0|".$version") ]]
}

versions() {
    local program=$work/versions
    echo '#include <memlock.h>
          #include <stdio.h>
          int main(void) { return puts(memlock_version()) < 0; }' >"$program.c"
    # shellcheck disable=SC2046 # words are wanted
    "$CC" "$program.c" $(pkg-config --cflags --libs memlock) -o "$program" &&
        [[ $("$program") == "$version" && $(pkg-config --modversion memlock) == "$version" ]]
}

command_locks() {
    [[ $("$prefix/bin/memlock" --version) == "memlock $version" ]] &&
        [[ $("$prefix/bin/memlock" run installed -- sh -c "$prefix/bin/memlock run installed -n -- true; echo \$?") == 75 ]]
}

pages() {
    local page
    for page in "$prefix"/share/man/man1/*.1; do
        grep -q '^\.SH NAME' "$page" && grep -q '^\.SH DESCRIPTION' "$page" || { echo "$page"; return 1; }
    done
    bash -n "$prefix/share/bash-completion/completions/memlock" &&
        grep -q '^#compdef memlock' "$prefix/share/zsh/site-functions/_memlock" &&
        grep -q 'complete -c memlock' "$prefix/share/fish/vendor_completions.d/memlock.fish"
}

c_program() {
    # shellcheck disable=SC2046
    "$CC" $programs/lock.c $(pkg-config --cflags --libs memlock) -o "$work/c" && "$work/c"
}

static_program() {
    # shellcheck disable=SC2046
    "$CC" -static $programs/lock.c $(pkg-config --static --cflags --libs memlock) -o "$work/static" &&
        "$work/static" && ! needs_memlock "$work/static"
}

# The program has functions with the names of SQLite's; neither may be called in place of the other. Without naming
# the archive a linker takes the shared library that lies beside it.
static_library() {
    cat >"$work/own.c" <<'C'
#include <memlock.h>
#include <stdio.h>
int sqlite3_open_v2(void) { return 1; }
int sqlite3_initialize(void) { return 2; }
int sqlite3_step(void) { return 3; }
const char *sqlite3_libversion(void) { return "its own"; }
int main(int count, char **words) {
    for (int i = 1; i < count; i++) {
        memlock_client *client;
        memlock_lock *lock;
        if (memlock_client_open(words[i], &client) || memlock_mutex_lock(client, "a", 5000, 0, &lock)) {
            puts(memlock_last_error());
            return 1;
        }
        memlock_unlock(lock);
        memlock_client_close(client);
    }
    return sqlite3_open_v2() + sqlite3_initialize() + sqlite3_step() - 6 || puts(sqlite3_libversion()) < 0;
}
C
    # shellcheck disable=SC2046
    "$CC" "$work/own.c" -o "$work/own" $(pkg-config --static --cflags --libs memlock | sed 's/-lmemlock/-l:libmemlock.a/') &&
        ! needs_memlock "$work/own" &&
        [[ $("$work/own" "$MEMLOCK_URL" "sqlite:$work/own.db") == "its own" && -s $work/own.db ]]
}

needs_memlock() { readelf -d "$1" | grep NEEDED | grep memlock; }

cmake_project() {
    cmake -S $programs -B "$work/build" "-DCMAKE_PREFIX_PATH=$prefix" &&
        cmake --build "$work/build" &&
        (cd "$work/build" && ctest --output-on-failure) &&
        needs_memlock "$work/build/c_memlock" && needs_memlock "$work/build/cpp_memlock" &&
        ! needs_memlock "$work/build/c_static"
}

cmake_refuses() {
    ! cmake "$work/build" -DMEMLOCK_VERSION=99
}

crates() {
    "${CARGO:-cargo}" publish --dry-run --no-verify --allow-dirty -p memlock-core -p memlock-ffi -p memlock-cli 2>&1 | tee "$work/crates" &&
        ! grep -E "has no (description|license|documentation|homepage|repository)" "$work/crates"
}

python_source() {
    local file
    "$(dirname "${PYTHON:-target/venv/bin/python}")/maturin" sdist -m memlock-py/Cargo.toml -o "$work/source" || return
    tar -C "$work/source" -xf "$work/source/memlock-$version.tar.gz"
    for file in LICENSE-MIT LICENSE-APACHE README.md Cargo.lock python/memlock/py.typed memlock-core/src/lib.rs; do
        [[ -e $work/source/memlock-$version/$file ]] || { echo "no $file"; return 1; }
    done
    grep -q '^Description-Content-Type: text/markdown' "$work/source/memlock-$version/PKG-INFO"
}

soname() { readelf -d "$prefix/lib/libmemlock.so.0" | grep -F 'soname: [libmemlock.so.0]'; }

exported() { nm -D --defined-only "$prefix/lib/libmemlock.so" | awk '{ print $3 }' | sort; }

exports_nothing_else() {
    # shellcheck disable=SC2086 # words are wanted
    ! exported | grep -v '^memlock_' | grep -vxF "$(printf '%s\n' $bare)"
}

exports_all() {
    # shellcheck disable=SC2086
    { printf '%s\n' $bare; grep -oE '\bmemlock_[a-z_]+\(' "$prefix/include/memlock.h" | tr -d '('; } |
        sort -u >"$work/declared"
    [[ $(wc -l <"$work/declared") -gt 20 ]] &&
        [[ -z $(exported | comm -13 - "$work/declared" | tee /dev/stderr) ]]
}

static_exports_the_same() {
    nm -g --defined-only "$prefix/lib/libmemlock.a" | awk 'NF == 3 { print $3 }' | sort >"$work/static"
    exported | diff "$work/static" -
}

staged_for_usr() {
    ! grep -rIF "$work" "$work/stage" && grep -E '^prefix=/usr$' "$work/stage/usr/lib/pkgconfig/memlock.pc"
}

main
