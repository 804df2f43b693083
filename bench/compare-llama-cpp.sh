#!/usr/bin/env bash
# Prefill and decode of the CPU backend beside llama.cpp, in turns on one machine: medians [min .. max] and ratios.
# Not part of CI. The first run fetches llama.cpp inside the PyPI sdist llama-cpp-python, with the machine's own pip and
# so by its configuration, and builds it in target/llama-cpp: about ten minutes on 2 cores; needs a C++ compiler.
#   bench/compare-llama-cpp.sh MODEL.gguf...        THREADS=2 ROUNDS=5 LLAMA_BENCH=path/of/llama-bench
set -euo pipefail
[ $# -gt 0 ] || { sed -n '2,5s/^# *//p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
work=$target/llama-cpp
threads=${THREADS:-2} rounds=${ROUNDS:-5}

pip() { python3 -m pip "$@" --quiet --disable-pip-version-check --no-input; }

# `source` is there only whole, so a build that was cut short goes on where it was.
fetch_llama_cpp() {
    echo "fetching llama.cpp to $work"
    rm -rf "$work"
    mkdir -p "$work/unpacked"
    pip install --target "$work/tools" cmake ninja
    # Not `:all:`: pip asks the sdist for its metadata, and what that takes should come as wheels.
    pip download --no-deps --no-binary llama-cpp-python --dest "$work" llama-cpp-python==0.3.36
    tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work/unpacked" --strip-components 1
    keep_amx_tile_shapes "$work/unpacked/vendor/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp"
    mv "$work/unpacked" "$work/source"
}

build_llama_cpp() {
    [ -d "$work/source" ] || fetch_llama_cpp
    echo "building llama.cpp, log in $work/build.log"
    cmake_llama_cpp >"$work/build.log" 2>&1 || { tail -n 40 "$work/build.log" >&2; return 1; }
}

cmake_llama_cpp() {
    local cmake=(env PATH="$work/tools/bin:$PATH" PYTHONPATH="$work/tools" cmake)
    "${cmake[@]}" -G Ninja -S "$work/source/vendor/llama.cpp" -B "$work/build" -DCMAKE_BUILD_TYPE=Release \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_OPENSSL=OFF &&
        "${cmake[@]}" --build "$work/build" --target llama-bench
}

# GCC's _tile_loadconfig (12 and its neighbours) claims to read 8 of 64 bytes, so the stores of the tile shapes are dropped
# as dead and the first AMX product, in any prefill, is an illegal instruction (ggml-org/llama.cpp#26954).
keep_amx_tile_shapes() {
    grep -q '_tile_loadconfig(&tc);' "$1" || { echo "$1 is not as expected; see keep_amx_tile_shapes in $0" >&2; return 1; }
    sed -i.orig 's/_tile_loadconfig(&tc);/asm volatile("" : : "m"(tc)); &/' "$1"
}

llama=${LLAMA_BENCH:-$work/build/bin/llama-bench}
# It is linked last: there only when all before it went well.
[ -n "${LLAMA_BENCH:-}" ] || [ -x "$llama" ] || build_llama_cpp
cargo build --release -p engine --example measure --manifest-path "$root/Cargo.toml"
ours=$target/release/examples/measure

# Both print JSON. The workloads are those of `engine::measure`: a prompt of 512; 64 tokens after a prompt of 64.
llama_bench() { "$llama" -m "$1" -t "$threads" -r 1 -o json "${@:2}"; }
results=$(mktemp)
trap 'rm -f "$results"' EXIT
uptime
for model in "$@"; do
    for _ in $(seq "$rounds"); do
        {
            basename "$model"
            llama_bench "$model" -p 512 -n 0 | tr -d '\n'; echo
            llama_bench "$model" -p 0 -n 64 -d 64 | tr -d '\n'; echo
            "$ours" "$model" "$threads"
        } >>"$results"
    done
done
uptime

python3 - "$results" "$threads" <<'PYTHON'
import json, statistics, sys

def spread(values, digits=0):
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f} .. {max(values):.{digits}f}]"

rates = {}  # (model, workload) -> ([llama.cpp's], [ours])
with open(sys.argv[1]) as lines:
    for model, prefill, decode, ours in zip(*[(line.strip() for line in lines)] * 4):
        theirs = [json.loads(run)[0]["avg_ts"] for run in (prefill, decode)]
        ours = json.loads(ours)
        runs = [("prefill", ours["prefill"])] + [(f"decode x{d['sequences']}", d["tokens_per_second"]) for d in ours["decode"]]
        for index, (workload, rate) in enumerate(runs):
            llama, penstock = rates.setdefault((model, workload), ([], []))
            llama += theirs[index:index + 1]
            penstock.append(rate)

print(f"tok/s with {sys.argv[2]} threads, median [min .. max]")
for (model, workload), (llama, penstock) in rates.items():
    line = f"{model} {workload}: penstock {spread(penstock)}"
    if llama:
        ratios = [ours / theirs for ours, theirs in zip(penstock, llama)]
        line += f", llama.cpp {spread(llama)}, ratio {spread(ratios, 2)} over {len(ratios)} rounds"
    print(line)
PYTHON
