# What scripts of promises share: `version`, and `must`, which counts in `passed` and `failed`. Wants `work`, a folder.
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
readonly version
failed=0 passed=0

# must WHAT COMMAND...: one line for one promise, and what the command said only if it failed.
must() {
    local what=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        echo "ok $what"
        passed=$((passed + 1))
    else
        printf 'FAILED %s\n%s\n' "$what" "$(tail -n 40 "$work/log" | sed 's/^/    /')"
        failed=$((failed + 1))
    fi
}
