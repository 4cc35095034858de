#!/bin/sh
# Installs the packages of packages.txt that are missing, or with `build` only those of build-packages.txt. Starts no
# service.
set -eu
cd "$(dirname "$0")"

lists=build-packages.txt
if [ "${1:-}" != build ]; then
    lists="$lists packages.txt"
    # Toolchains of the minimal profile do not have them.
    for tool in rustfmt clippy; do
        command=$([ $tool = rustfmt ] && echo fmt || echo clippy)
        cargo $command --version >/dev/null 2>&1 || rustup component add $tool
    done
fi

command -v apt-get >/dev/null || {
    echo "deps: this machine has no apt-get; install the packages listed in check/conform/: $lists" >&2
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
# npm, which fetches the checker of accessibility, may come from another source than the distribution.
[ "${1:-}" = build ] || command -v npm >/dev/null || missing="$missing npm"
[ -n "$missing" ] || {
    echo "deps: all packages are installed"
    exit 0
}

as_root=""
if [ "$(id -u)" -ne 0 ]; then
    as_root="sudo"
    command -v sudo >/dev/null || {
        echo "deps: run as root: apt-get install --no-install-recommends$missing" >&2
        exit 1
    }
fi

echo "deps: installing$missing"
# A package's daemon would occupy ports and files that the tests use: a policy-rc.d refuses every start until the end.
policy=/usr/sbin/policy-rc.d
added=""
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
    $as_root chmod 755 "$policy"
    added=$policy
fi
trap '[ -z "$added" ] || $as_root rm -f "$added"' EXIT
# Continue if a third-party source cannot be reached: the packages come from the distribution.
$as_root apt-get update -q || echo "deps: some package indexes could not be fetched; continuing without them" >&2
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
