#!/usr/bin/env bash
# Decode and prefill of the CPU backend beside llama.cpp: interleaved rounds on the same machine, medians, ratios.
# Not part of CI: the first run builds llama.cpp from the PyPI sdist llama-cpp-python (about ten minutes on 2 cores).
#   bench/compare-llama-cpp.sh MODEL.gguf...        THREADS=2 ROUNDS=5 LLAMA_BENCH=path/of/llama-bench
set -euo pipefail
[ $# -gt 0 ] || { sed -n '2,4s/^# *//p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "$0")/.." && pwd)
work=$root/target/llama-cpp
threads=${THREADS:-2} rounds=${ROUNDS:-5}

build_llama_cpp() {
    mkdir -p "$work"
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install -q cmake
    "$work/venv/bin/pip" download -q --no-deps --no-binary :all: --no-build-isolation -d "$work" llama-cpp-python==0.3.36
    tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work" --strip-components 1
    "$work/venv/bin/cmake" -S "$work/vendor/llama.cpp" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF
    "$work/venv/bin/cmake" --build "$work/build" --target llama-bench -j "$(nproc)"
}

llama=${LLAMA_BENCH:-$work/build/bin/llama-bench}
[ -x "$llama" ] || build_llama_cpp
cargo build --release -p engine --example measure --manifest-path "$root/Cargo.toml"
ours=$root/target/release/examples/measure

median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
# llama-bench as CSV: the average rate is the last column but one. Prefill of 512 tokens first, then decode.
llama_rates() { "$llama" -m "$1" -t "$threads" -p 512 -n 0 -r 1 -o csv 2>/dev/null | tail -1 | rate
                "$llama" -m "$1" -t "$threads" -p 0 -n 64 -r 1 -o csv 2>/dev/null | tail -1 | rate; }
rate() { awk -F'"' '{ print $(NF - 3) }'; }
our_rates() { "$ours" "$1" "$threads" 2>&1 | sed -n 's/^prefill \([0-9.]*\) tok.*decode x1 \([0-9.]*\) tok.*/\1\n\2/p'; }

for model in "$@"; do
    results=$(mktemp)
    for _ in $(seq "$rounds"); do
        paste -d' ' <(printf 'prefill\ndecode\n') <(llama_rates "$model") <(our_rates "$model") >>"$results"
    done
    for phase in prefill decode; do
        theirs=$(awk -v p=$phase '$1 == p { print $2 }' "$results" | median)
        mine=$(awk -v p=$phase '$1 == p { print $3 }' "$results" | median)
        awk -v m="$(basename "$model")" -v p=$phase -v t="$theirs" -v o="$mine" \
            'BEGIN { if (!t) { printf "%s %s: llama.cpp failed, penstock %.0f tok/s\n", m, p, o; exit }
                     printf "%s %s: llama.cpp %.0f tok/s, penstock %.0f tok/s, ratio %.2f\n", m, p, t, o, o / t }'
    done
    rm "$results"
done
