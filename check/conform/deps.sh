#!/bin/sh
# Installs what this machine lacks of what the tests need (packages.txt), or with `build` of what a build needs alone
# (build-packages.txt). Starts no service.
set -eu
cd "$(dirname "$0")"

lists=build-packages.txt
if [ "${1:-}" != build ]; then
    lists="$lists packages.txt"
    # A toolchain of the minimal profile has neither.
    for tool in rustfmt clippy; do
        command=$([ $tool = rustfmt ] && echo fmt || echo clippy)
        cargo $command --version >/dev/null 2>&1 || rustup component add $tool
    done
fi

command -v apt-get >/dev/null || {
    echo "deps: no apt-get here; what is needed is in check/conform/: $lists" >&2
    exit 0
}

missing=""
# shellcheck disable=SC2086
for package in $(sed 's/#.*//' $lists); do
    state=$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null || true)
    case $state in
        ii*) ;;
        *) missing="$missing $package" ;;
    esac
done
[ -n "$missing" ] || {
    echo "deps: nothing is missing"
    exit 0
}

as_root=""
if [ "$(id -u)" -ne 0 ]; then
    as_root="sudo"
    command -v sudo >/dev/null || {
        echo "deps: as root, run: apt-get install --no-install-recommends$missing" >&2
        exit 1
    }
fi

echo "deps: installing$missing"
# A package's daemon would take ports and files that the tests use: policy-rc.d refuses every start. It is put back after.
policy=/usr/sbin/policy-rc.d
added=""
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
    $as_root chmod 755 "$policy"
    added=$policy
fi
trap '[ -z "$added" ] || $as_root rm -f "$added"' EXIT
# A third-party source that cannot be reached must not stop us: the packages come from the distribution.
$as_root apt-get update -q || echo "deps: not every package index could be fetched; going on" >&2
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
