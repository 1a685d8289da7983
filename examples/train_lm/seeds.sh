#!/bin/sh
# seeds.sh BUILD [OPTION OF train_lm...]: trains float32, mxfp8 and mxfp8-all once for each seed and compares their losses.
#
# SEEDS (1 2 3), AT_ONCE trainings side by side (1) on THREADS each (0: all processors; they change no bit) and OUT (build/demo-seeds)
# come from the environment. As soon as a seed is done it prints
#
#     val_loss_seed seed=1 float32=... mxfp8=... mxfp8_all=... ratio=... ratio_all=...
#
# and at the end fails where a ratio to float32 is above 1.015. Logs and curves: OUT/SEED.
#
# SPDX-License-Identifier: Apache-2.0
set -eu
cd "$(dirname "$0")/../.."
[ $# -ge 1 ] || { sed -n '2,9p' "$0"; exit 2; }
train=$1/train_lm
shift
seeds=${SEEDS:-1 2 3}
out=${OUT:-build/demo-seeds}
missed=0

for seed in $seeds; do
    mkdir -p "$out/$seed"
    echo "seed $seed: $train $* --threads ${THREADS:-0}"
    # xargs calls the command below with one kind after it.
    printf '%s\n' float32 mxfp8 mxfp8-all | xargs -P "${AT_ONCE:-1}" -n 1 sh -c '
        train=$1 folder=$2
        shift 2
        for kind; do :; done # the last argument
        "$train" "$@" >"$folder/$kind.log" 2>&1 || { cat "$folder/$kind.log"; exit 255; }
        ' sh "$train" "$out/$seed" "$@" --seed "$seed" --threads "${THREADS:-0}" --out "$out/$seed" --attention
    last() { tail -n 1 "$out/$seed/loss_$1.csv" | cut -d, -f4; }
    grep -h -A 1 'activations kept' "$out/$seed/mxfp8-all.log"
    awk -v seed="$seed" -v a="$(last float32)" -v b="$(last mxfp8)" -v c="$(last mxfp8-all)" 'BEGIN {
        printf "val_loss_seed seed=%s float32=%.4f mxfp8=%.4f mxfp8_all=%.4f ratio=%.4f ratio_all=%.4f\n", seed, a, b, c, b / a, c / a
        exit b > 1.015 * a || c > 1.015 * a
    }' || missed=1
done
exit $missed
