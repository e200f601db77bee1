#!/bin/sh
# Build the extension into the package, where `holdfast/native.py` finds it. Without it everything works in Python:
# whatever is missing or fails is one line, and no error.
cd "$(dirname "$0")/.." || exit 1
extension=src/holdfast/_native.abi3.so
log=.venv/native.log
without() {
    rm -f "$extension" # of older sources
    echo "holdfast-native is not built ($1): Holdfast runs in Python alone"
    exit 0
}
command -v cargo >/dev/null 2>&1 || without "there is no cargo"
# A network that drops packets must not hold up the installation for minutes.
export CARGO_NET_RETRY="${CARGO_NET_RETRY:-1}" CARGO_HTTP_TIMEOUT="${CARGO_HTTP_TIMEOUT:-20}"
touch .venv/.native # tried: again when the sources change, or with `make native`
cargo build --release --locked --manifest-path native/Cargo.toml --target-dir native/target >"$log" 2>&1
status=$?
[ "$1" = --verbose ] && cat "$log"
[ "$status" = 0 ] || without "cargo failed: see $log"
# A program that runs keeps the file that it loaded.
cp native/target/release/libholdfast_native.so "$extension.new" 2>"$log" && mv "$extension.new" "$extension" ||
    without "there is no library for this system"
